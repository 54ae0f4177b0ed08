"""Recurrent: a trunk that reads columns one after the other."""

from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from unifier.nn.attention import AttentionMode
from unifier.trunks.trunk import Trunk, check_depth, check_tokens, isolated_seed, numbered_layers
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.errors import check_choice

Cell = Literal["lstm", "gru"]


CELLS: dict[Cell, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
"""Long short-term memory (Hochreiter and Schmidhuber 1997), and gated units (Cho et al. 2014, section 2.3)."""


def rnn_layers(
    cell: Cell, inputs: int, width: int, depth: int = 1, *, bidirectional: bool = False, dropout: float = 0.0
) -> nn.LSTM | nn.GRU:
    """Layers that read (B, L, `inputs`), with `dropout` between them.

    The forget gates of an LSTM start with a bias of 1 (Jozefowicz et al. 2015, section 2.2): torch adds two biases, and
    the second one starts at 0 there.
    """
    kind = CELLS[check_choice("cell", cell, tuple(CELLS))]
    layers = kind(
        inputs, width, depth, batch_first=True, dropout=dropout if depth > 1 else 0.0, bidirectional=bidirectional
    )
    if cell == "lstm":
        for name, parameter in layers.named_parameters():
            if name.startswith("bias"):
                parameter.detach()[width : 2 * width] = float(name.startswith("bias_ih"))
    return layers


@final
class RecurrentTrunk(Trunk):
    """Layers of one of `CELLS`, each with a norm and a residual path.

    It reads in the order of the columns. Layers that read both ways, each with half the rows, let all columns see all;
    those that read forwards alone let them see the past.
    """

    def __init__(
        self, dim: int, depth: int, *, bidirectional: bool = True, cell: Cell = "lstm", dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_depth(depth)
        if bidirectional and dim % 2:
            raise InputError(f"D = {dim} does not split into two directions: take an even one")
        self.dim, self.both_ways = dim, bidirectional
        width = dim // 2 if bidirectional else dim
        with isolated_seed():
            self.layers = nn.ModuleList(rnn_layers(cell, dim, width, bidirectional=bidirectional) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        check_tokens(tokens, self.dim)
        seen = "bidirectional" if self.both_ways else "causal"
        if isinstance(mode, Tensor) or mode != seen:
            raise InputError(
                f"this trunk's columns see {seen}, and its head asks for another view: "
                f"Recurrent(bidirectional=True) sees all, bidirectional=False the past, and none a prefix"
            )
        x = tokens.matrix.transpose(1, 2)
        lengths = tokens.mask.sum(1).cpu()
        with torch.autocast(x.device.type, enabled=False):
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = x + self.dropout(self._read(layer, norm(x.float()), lengths))
            return tokens._replace(matrix=self.norm(x).transpose(1, 2))

    def layer_outputs(self) -> dict[str, nn.Module]:
        return numbered_layers("layers", [*self.norms, self.norm][1:])

    def _read(self, layer: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])[0]
