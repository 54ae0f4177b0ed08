"""Dropout with cheap random numbers on a CPU."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import check_fraction
from unifier_tokenizers.tokens import is_host_readable


@final
class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014): zeroes a fraction p of the entries in training and rescales the rest.

    torch draws 64 random bits per entry on one core, which takes a fifth of a small model's step. Here 16 bits are
    drawn, which resolve p to multiples of 1/65536.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_fraction("dropout", p)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, of any shape, with entries dropped in training."""
        if not self.training or self.p == 0:
            return x
        if not is_host_readable(x):  # The code below is for CPUs only, and torch.compile cannot trace it.
            return functional.dropout(x, self.p)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        entries = words.view(torch.int16)[: x.numel()].view(x.shape)
        keep = entries.ge_(round(self.p * 2**16) - 2**15)  # In place, because torch is slow with bool tensors.
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))

    def extra_repr(self) -> str:
        """Return the arguments that `repr` prints."""
        return f"p={self.p}"
