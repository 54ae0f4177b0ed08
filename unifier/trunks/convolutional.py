"""Convolutional: a trunk whose columns see their neighbours."""

from typing import final

from torch import Tensor, nn
from torch.nn import functional

from unifier.nn.attention import Visible
from unifier.nn.block import initialise
from unifier.nn.precision import LayerNorm, working
from unifier.trunks.trunk import Trunk, check_columns, check_depth, drawn_from_seed_alone, numbered
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.errors import choose


@final
class Convolutional(Trunk):
    """Gated convolutions over the order of the columns (Gehring et al. 2017, section 3.2), each with a residual path.

    A column of a stack of depth d and width k sees d (k - 1) / 2 columns to each side, or d (k - 1) of the past; those
    of a picture stand row after row.
    """

    def __init__(self, dim: int, depth: int, *, width: int = 5, dropout: float = 0.0) -> None:
        """`width` is that of a kernel, in columns."""
        super().__init__()
        check_depth(depth)
        if width < 1 or width % 2 == 0:
            raise InputError(f"a kernel of {width} columns has no middle: take an odd width")
        self.dim, self.width = dim, width
        with drawn_from_seed_alone():
            self.layers = nn.ModuleList(nn.Conv1d(dim, 2 * dim, width) for _ in range(depth))
            initialise(self)
        self.norms = nn.ModuleList(LayerNorm(dim) for _ in range(depth))
        self.dropout = Dropout(dropout)
        self.norm = LayerNorm(dim)

    def forward(self, tokens: Tokens, visible: Visible = "all") -> Tokens:
        check_columns(tokens, self.dim)
        if isinstance(visible, Tensor):
            raise InputError("a convolution sees as far for every column: its head can ask for all or the past")
        reach = self.width - 1
        sides = (reach // 2, reach // 2) if choose("visible", visible, ("all", "past")) == "all" else (reach, 0)
        x = working(tokens.matrix).transpose(1, 2)
        real = tokens.mask[:, None].to(x.dtype)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            columns = functional.pad(norm(x).transpose(1, 2) * real, sides)
            x = x + self.dropout(functional.glu(layer(columns), dim=1).transpose(1, 2))
        return tokens._replace(matrix=self.norm(x).transpose(1, 2))

    def readers(self) -> dict[str, nn.Module]:
        return numbered("layers", [*self.norms, self.norm][1:])
