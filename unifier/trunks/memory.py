"""The memory of a trunk: the hidden states of the tokens before a batch, for texts that are read in pieces."""

from collections.abc import Sequence
from typing import NamedTuple, Self, final

import torch
from torch import Tensor


@final
class Memory(NamedTuple):
    """The last M tokens before the current segment of each row, as in Transformer-XL (Dai et al. 2019, section 3.2).

    The real tokens of a row are last. No gradient flows into a memory.
    """

    states: tuple[Tensor, ...]
    """The tokens (B, M, D) in front of each block."""
    mask: Tensor
    """(B, M), True for real tokens."""

    @classmethod
    def empty(cls, length: int, num_blocks: int, x: Tensor) -> Self:
        """Create a memory of `length` absent tokens for the rows of x (B, N, D)."""
        state = x.new_zeros(x.shape[0], length, x.shape[2])
        return cls((state,) * num_blocks, torch.zeros(state.shape[:2], dtype=torch.bool, device=x.device))

    def extended(self, states: Sequence[Tensor], mask: Tensor) -> "Memory":
        """Append tokens (B, N, D) in front of each block, with their mask (B, N), and keep the last M real tokens."""
        is_real = torch.cat([self.mask, mask], 1)
        rows = torch.arange(len(mask), device=mask.device)[:, None]
        newest = is_real.long().argsort(dim=1, stable=True)[:, -self.mask.shape[1] :]
        joined = (torch.cat([old, new.detach()], 1) for old, new in zip(self.states, states, strict=True))
        return Memory(tuple(part[rows, newest] for part in joined), is_real[rows, newest])
