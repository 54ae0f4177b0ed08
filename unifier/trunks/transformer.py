"""The transformer trunk."""

from collections.abc import Sequence
from typing import Literal, final

from torch import Tensor, nn

from unifier.nn.attention import Cache, Visible, visibility
from unifier.nn.block import Activation, Block, Norm, quieten
from unifier.nn.precision import LayerNorm, working
from unifier.trunks.trunk import AttentiveTrunk, check_columns, check_depth, drawn_from_seed_alone, numbered
from unifier_tokenizers import Tokens, rotary_angles
from unifier_tokenizers.errors import check_share, choose

Size = Literal["tiny", "small", "base"]


SIZES: dict[Size, tuple[int, int, int, int]] = {
    "tiny": (128, 4, 4, 256),
    "small": (256, 6, 4, 1024),
    "base": (512, 6, 8, 2048),
}
"""D, depth, heads and hidden width; "base" is that of Vaswani et al. 2017, table 3."""


@final
class Transformer(AttentiveTrunk):
    """A stack of blocks; depth 0 passes the columns through the final norm alone.

    Its parameters are drawn from the seed last set, and from nothing else: arms built on the same seed start equal.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        hidden: int,
        *,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        rotary: bool = False,
        qk_norm: bool = False,
        projections: bool = True,
        quiet: bool = False,
    ) -> None:
        """`hidden` is the width of the feed-forward part; `rotary` turns queries and keys by the columns' positions.

        `stochastic_depth` is the probability of skipping each part of the last block for an example in training; it
        rises linearly over the blocks (Huang et al. 2016, eq. 4).
        `qk_norm` and `projections` are as `Attention` has them; `quiet` starts as `quieten` does.
        """
        super().__init__()
        check_depth(depth)
        check_share("stochastic_depth", stochastic_depth)
        self.dim, self.rotary = dim, rotary
        with drawn_from_seed_alone():
            self.blocks = nn.ModuleList(
                Block(
                    dim,
                    heads,
                    hidden,
                    norm=norm,
                    activation=activation,
                    dropout=dropout,
                    qk_norm=qk_norm,
                    projections=projections,
                    stochastic_depth=stochastic_depth * (layer + 1) / depth,
                )
                for layer in range(depth)
            )
            if quiet:
                quieten(self.blocks)
        self.head_depth = dim // heads
        self.norm = LayerNorm(dim) if norm == "pre" else nn.Identity()

    @classmethod
    def preset(cls, size: Size, *, norm: Norm = "pre", dropout: float = 0.0, rotary: bool = False) -> "Transformer":
        """A trunk of one of `SIZES`."""
        return cls(*SIZES[choose("size", size, tuple(SIZES))], norm=norm, dropout=dropout, rotary=rotary)

    def forward(self, tokens: Tokens, visible: Visible = "all") -> Tokens:
        return self._read(tokens, visibility(tokens.mask, visible))

    def first(self, tokens: Tokens, visible: Visible = "all") -> Tokens:
        """As the contract; the last block computes no column that nobody reads."""
        return self._read(tokens, visibility(tokens.mask, visible), columns=1)

    def attention(self, tokens: Tokens, visible: Visible = "all") -> tuple[Tokens, list[Tensor]]:
        """The same answer as `forward`, with the attention (B, H, N, N) of each block."""
        weights: list[Tensor] = []
        return self._read(tokens, visibility(tokens.mask, visible), weights), weights

    def readers(self) -> dict[str, nn.Module]:
        return numbered("blocks", [*self.blocks, self.norm][1:])

    def go_on(self, tokens: Tokens, seen: Tensor, caches: Sequence[Cache]) -> Tokens:
        """What `forward` gives of columns (B, D, M) that follow those in the caches, one a block, and then join them.

        `seen` (B, N + M) says which of the N held and of these they all see.
        """
        return self._read(tokens, seen[:, None, None], caches=caches)

    def _read(
        self,
        tokens: Tokens,
        mask: Tensor | None,
        weights: list[Tensor] | None = None,
        columns: int | None = None,
        caches: Sequence[Cache] = (),
    ) -> Tokens:
        check_columns(tokens, self.dim)
        x = working(tokens.matrix).transpose(1, 2)
        angles = rotary_angles(tokens.positions, self.head_depth) if self.rotary else None
        for i, block in enumerate(self.blocks):
            asked = columns if block is self.blocks[-1] else None
            own = (caches[i], None) if caches else None
            x = block(x, mask, angles=angles, caches=own, weights=weights, columns=asked)
        x = x[:, :columns]  # with no block, they are all still there
        return Tokens(self.norm(x).transpose(1, 2), tokens.mask[:, :columns], tokens.positions[:, :, :columns])
