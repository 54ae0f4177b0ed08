"""Dropout that needs fewer random bits than torch's dropout on a CPU."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import check_fraction
from unifier_tokenizers.shares import drawn_shape, own_rows
from unifier_tokenizers.tokens import is_host_readable


@final
class Dropout(nn.Module):
    """Layer that sets a fraction p of the entries to 0 in training, and divides all other entries by 1 - p.

    Srivastava et al. 2014 introduced dropout. On a CPU, torch's dropout needs a fifth of a small model's training time,
    because torch generates 64 random bits per entry. This class generates 16 random bits per entry, so p is rounded to
    a multiple of 1/65536. The entries that are dropped do not depend on the number of processes (see `use_share`).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_fraction("dropout", p)

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries of x (any shape) in training; return x unchanged in evaluation."""
        if not self.training or self.p == 0:
            return x
        shape = drawn_shape(x.shape)
        if not is_host_readable(x):  # torch.compile cannot trace the code below, which is for CPUs only.
            if shape == x.shape:
                return functional.dropout(x, self.p)
            return x * own_rows(functional.dropout(x.new_ones(shape), self.p))
        words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        entries = own_rows(words.view(torch.int16)[: shape.numel()].view(shape))
        keep = entries.ge_(round(self.p * 2**16) - 2**15)  # torch is slow with bool tensors, so the mask is int16.
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))

    def extra_repr(self) -> str:
        """Return the arguments that `repr` prints."""
        return f"p={self.p}"
