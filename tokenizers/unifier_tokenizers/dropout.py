"""Dropout whose random numbers cost little on a CPU."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import check_fraction
from unifier_tokenizers.tokens import is_host_readable


@final
class Dropout(nn.Module):
    """Sets a share of the entries to 0 in training, and scales the rest to keep the mean (Srivastava et al. 2014).

    torch's own draws 64 random bits an entry on one core, which takes a fifth of a small model's step; 16 are enough
    for a share that is a multiple of 1/65536.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_fraction("dropout", p)

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape -> the same shape."""
        if not self.training or self.p == 0:
            return x
        if not is_host_readable(x):  # what follows is for a CPU alone, and no compiler sees through it
            return functional.dropout(x, self.p)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        entries = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = entries.ge_(round(self.p * 2**16) - 2**15)  # in place: torch is slow with bools
        return x * kept.to(x.dtype).mul_(1 / (1 - self.p))

    def extra_repr(self) -> str:
        return f"share={self.p}"
