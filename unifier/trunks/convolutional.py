"""Convolutional: a trunk whose columns see their neighbors."""

from typing import final

from torch import Tensor, nn
from torch.nn import functional

from unifier.nn.attention import AttentionMode
from unifier.nn.block import init_weights
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.trunk import Trunk, check_depth, check_tokens, isolated_seed, numbered_layers
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.errors import check_choice


@final
class ConvolutionalTrunk(Trunk):
    """Gated convolutions over the order of the columns (Gehring et al. 2017, section 3.2), each with a residual path.

    A column of a stack of depth d and width k sees d (k - 1) / 2 columns to each side, or d (k - 1) of the past; those
    of a picture stand row after row.
    """

    def __init__(self, dim: int, depth: int, *, kernel_size: int = 5, dropout: float = 0.0) -> None:
        """`width` is that of a kernel, in columns."""
        super().__init__()
        check_depth(depth)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise InputError(f"a kernel of {kernel_size} columns has no middle: take an odd width")
        self.dim, self.width = dim, kernel_size
        with isolated_seed():
            self.layers = nn.ModuleList(nn.Conv1d(dim, 2 * dim, kernel_size) for _ in range(depth))
            init_weights(self)
        self.norms = nn.ModuleList(LayerNorm(dim) for _ in range(depth))
        self.dropout = Dropout(dropout)
        self.norm = LayerNorm(dim)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        check_tokens(tokens, self.dim)
        if isinstance(mode, Tensor):
            raise InputError("a convolution sees as far for every column: its head can ask for all or the past")
        reach = self.width - 1
        sides = (
            (reach // 2, reach // 2)
            if check_choice("mode", mode, ("bidirectional", "causal")) == "bidirectional"
            else (reach, 0)
        )
        x = to_compute_dtype(tokens.matrix).transpose(1, 2)
        real = tokens.mask[:, None].to(x.dtype)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            columns = functional.pad(norm(x).transpose(1, 2) * real, sides)
            x = x + self.dropout(functional.glu(layer(columns), dim=1).transpose(1, 2))
        return tokens._replace(matrix=self.norm(x).transpose(1, 2))

    def layer_outputs(self) -> dict[str, nn.Module]:
        return numbered_layers("layers", [*self.norms, self.norm][1:])
