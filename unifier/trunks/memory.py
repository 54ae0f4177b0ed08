"""The memory of a trunk: the hidden states of the tokens before a batch, for sequences that are read in pieces."""

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


@final
class Stream(NamedTuple):
    """The memory after a batch, and the places where the sequences of the rows continue."""

    memory: Memory
    example_indices: Tensor
    """The index of each row's piece (B,)."""
    next_positions: Tensor
    """The position (B, A) after each row's last token."""

    @classmethod
    def after(cls, memory: Memory, example_indices: Tensor, positions: Tensor) -> Self:
        """Create the stream after pieces with these example indices (B,) and positions (B, A, N)."""
        return cls(memory, example_indices, positions.amax(2) + 1)

    def memory_for(self, example_indices: Tensor, positions: Tensor) -> Memory:
        """Return the memory for the next pieces. A row whose sequence does not continue gets an empty memory.

        Args:
            example_indices: The index of each row's next piece (B',). The number of rows may differ.
            positions: The positions (B', A, N) of the next pieces.
        """
        last = len(self.example_indices) - 1
        rows = torch.arange(len(example_indices), device=example_indices.device).clamp_(max=last)
        follows = (self.next_positions[rows] == positions[:, :, 0]).all(1)
        continues = follows & (self.example_indices[rows] + 1 == example_indices)
        return Memory(tuple(state[rows] for state in self.memory.states), self.memory.mask[rows] & continues[:, None])

    def to_list(self) -> list[Tensor]:
        """Return all tensors, for a checkpoint."""
        return [self.example_indices, self.next_positions, self.memory.mask, *self.memory.states]

    @classmethod
    def from_list(cls, tensors: Sequence[Tensor]) -> Self:
        """Create a stream from the tensors of `to_list`."""
        indices, positions, mask, *states = tensors
        return cls(Memory(tuple(states), mask), indices, positions)

    def to(self, device: torch.device) -> "Stream":
        """Return the stream on a device."""
        return Stream.from_list([tensor.to(device) for tensor in self.to_list()])
