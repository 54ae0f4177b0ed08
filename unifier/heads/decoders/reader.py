"""Recurrent layers, LSTM or GRU, over the text so far."""

from typing import final

import torch
from torch import Tensor, nn

from unifier.trunks.recurrent import Cell, recurrent_layers
from unifier.trunks.trunk import check_depth


@final
class Reader(nn.Module):
    """Layers of LSTM or GRU; a state is one tensor (B, S, D), of S vectors for each text, the hidden ones first."""

    def __init__(self, inputs: int, dim: int, *, cell: Cell, depth: int, dropout: float) -> None:
        """`inputs` is the width of what it reads, `dropout` stands between layers."""
        super().__init__()
        check_depth(depth, 1)
        self.dim, self.depth = dim, depth
        self.pair = cell == "lstm"
        self.layers = recurrent_layers(cell, inputs, dim, depth, dropout=dropout)
        self.first = nn.Linear(dim, dim * depth * (2 if self.pair else 1))

    def start(self, vector: Tensor) -> Tensor:
        """The state before anything is read, by a learned map: (B, D) -> (B, S, D)."""
        return self.first(vector).tanh().unflatten(1, (-1, self.dim))

    def top(self, state: Tensor) -> Tensor:
        """What the last layer gave last: (B, D)."""
        return state[:, self.depth - 1]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, L, E) after a state (B, S, D) -> what the last layer gives (B, L, D), and the state after it."""
        with torch.autocast(x.device.type, enabled=False):
            own = state.float().transpose(0, 1).contiguous()
            answer, after = self.layers(x.float(), tuple(own.chunk(2)) if self.pair else own)
            return answer, (torch.cat(after) if self.pair else after).transpose(0, 1)
