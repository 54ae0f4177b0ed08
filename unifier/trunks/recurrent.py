"""A trunk of recurrent layers, which process the tokens one after another, and optionally a block of attention."""

from contextlib import nullcontext
from functools import partial
from typing import Literal, cast, final

import torch
from torch import Tensor, nn

from unifier.nn.attention import AttentionMode, build_attention_mask
from unifier.nn.block import Block
from unifier.nn.precision import to_compute_dtype
from unifier.nn.recurrence import run_padded
from unifier.trunks.trunk import Trunk, check_depth, check_tokens, isolated_seed, numbered_layers
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.errors import check_choice

Cell = Literal["lstm", "gru"]

CELLS: dict[Cell, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
"""The layer for each cell: LSTM (Hochreiter and Schmidhuber 1997) and GRU (Cho et al. 2014, section 2.3)."""


@final
class RecurrentTrunk(Trunk):
    """Trunk of LSTM or GRU layers, each with a pre-norm and a residual connection.

    A bidirectional layer has D / 2 hidden features per direction, and each output depends on all tokens. In a layer
    with one direction, each output depends only on the current token and on earlier tokens. A block of attention after
    LSTM layers of one direction, with a single head, is similar to SHA-RNN (Merity 2019).
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        *,
        bidirectional: bool = True,
        cell: Cell = "lstm",
        dropout: float = 0.0,
        attention_heads: int = 0,
        ffn_dim: int | None = None,
    ) -> None:
        """Build the trunk.

        Args:
            dim: D, the width of the tokens.
            depth: The number of recurrent layers.
            bidirectional: Read in both directions.
            cell: One of `CELLS`.
            dropout: The dropout probability at the end of each residual branch.
            attention_heads: The number of heads of a transformer block after the recurrent layers; 0 means no block.
            ffn_dim: The width of the block's feed-forward network. The default is 4 * `dim`.
        """
        super().__init__()
        check_depth(depth)
        if bidirectional and dim % 2:
            raise InputError(
                f"dim={dim} cannot be divided between two directions: use an even dim or bidirectional=False"
            )
        self.dim, self.bidirectional = dim, bidirectional
        width = dim // 2 if bidirectional else dim
        with isolated_seed():
            self.layers = nn.ModuleList(rnn_layers(cell, dim, width, bidirectional=bidirectional) for _ in range(depth))
            hidden = 4 * dim if ffn_dim is None else ffn_dim
            self.block = Block(dim, attention_heads, hidden, dropout=dropout) if attention_heads else None
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        check_tokens(tokens, self.dim)
        supported = "bidirectional" if self.bidirectional else "causal"
        if isinstance(mode, Tensor) or mode != supported:
            raise InputError(
                f"this RecurrentTrunk is {supported}, but the head needs mode "
                f"{'prefix' if isinstance(mode, Tensor) else mode}: set bidirectional=True for mode bidirectional, "
                "set bidirectional=False for mode causal, or use another trunk for a prefix"
            )
        x = tokens.matrix.transpose(1, 2)
        lengths = tokens.mask.sum(1).cpu()
        # torch.export cannot store a scan inside autocast, and exported graphs are in float32 anyway.
        is_exporting = torch.compiler.is_exporting()
        in_float32 = nullcontext if is_exporting else partial(torch.autocast, x.device.type, enabled=False)
        with in_float32():
            for layer, norm in zip(cast("list[nn.LSTM | nn.GRU]", self.layers), self.norms, strict=True):
                x = x + self.dropout(run_padded(layer, norm(x.float()), tokens.mask, lengths))
        if self.block is not None:
            x = self.block(to_compute_dtype(x), build_attention_mask(tokens.mask, mode)).float()
        with in_float32():
            return tokens._replace(matrix=self.norm(x).transpose(1, 2))

    def layer_outputs(self) -> dict[str, nn.Module]:
        block = [] if self.block is None else [self.block]
        return numbered_layers("layers", [*self.norms, *block, self.norm][1:])


def rnn_layers(
    cell: Cell, input_dim: int, dim: int, depth: int = 1, *, bidirectional: bool = False, dropout: float = 0.0
) -> nn.LSTM | nn.GRU:
    """Create `depth` recurrent layers with `dim` hidden features per direction, for inputs (B, L, `input_dim`).

    The forget gates of an LSTM start with a bias of 1 (Jozefowicz et al. 2015, section 2.2). PyTorch adds two biases
    for each gate: `bias_ih` starts at 1, and `bias_hh` starts at 0.

    Args:
        cell: One of `CELLS`.
        input_dim: The number of input features.
        dim: The number of hidden features per direction.
        depth: The number of layers.
        bidirectional: Read in both directions and concatenate the outputs.
        dropout: The dropout probability between layers.
    """
    rnn_class = CELLS[check_choice("cell", cell, tuple(CELLS))]
    between = dropout if depth > 1 else 0.0
    layers = rnn_class(input_dim, dim, depth, batch_first=True, dropout=between, bidirectional=bidirectional)
    if cell == "lstm":
        for name, parameter in layers.named_parameters():
            if name.startswith("bias"):
                parameter.detach()[dim : 2 * dim] = float(name.startswith("bias_ih"))
    return layers
