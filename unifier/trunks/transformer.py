"""The transformer trunk."""

from collections.abc import Sequence
from typing import Literal, final

from torch import Tensor, nn

from unifier.nn.attention import AttentionMode, KVCache, build_attention_mask
from unifier.nn.block import Activation, Block, Norm, scale_residual_init
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.trunk import AttentiveTrunk, check_depth, check_tokens, isolated_seed, numbered_layers
from unifier_tokenizers import Tokens, rope_frequencies
from unifier_tokenizers.errors import check_choice, check_fraction

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

    Its parameters are drawn from the seed last set, and from nothing else: tasks built on the same seed start equal.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        ffn_dim: int,
        *,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        rotary: bool = False,
        qk_norm: bool = False,
        projections: bool = True,
        scaled_residual_init: bool = False,
    ) -> None:
        """`hidden` is the width of the feed-forward part; `rotary` turns queries and keys by the columns' positions.

        `stochastic_depth` is the probability of skipping each part of the last block for an example in training; it
        rises linearly over the blocks (Huang et al. 2016, eq. 4).
        `qk_norm` and `projections` are as `Attention` has them; `quiet` starts as `quieten` does.
        """
        super().__init__()
        check_depth(depth)
        check_fraction("drop_path", drop_path)
        self.dim, self.rotary = dim, rotary
        with isolated_seed():
            self.blocks = nn.ModuleList(
                Block(
                    dim,
                    heads,
                    ffn_dim,
                    norm=norm,
                    activation=activation,
                    dropout=dropout,
                    qk_norm=qk_norm,
                    projections=projections,
                    drop_path=drop_path * (layer + 1) / depth,
                )
                for layer in range(depth)
            )
            if scaled_residual_init:
                scale_residual_init(self.blocks)
        self.head_depth = dim // heads
        self.norm = LayerNorm(dim) if norm == "pre" else nn.Identity()

    @classmethod
    def preset(cls, size: Size, *, norm: Norm = "pre", dropout: float = 0.0, rotary: bool = False) -> "Transformer":
        """A trunk of one of `SIZES`."""
        return cls(*SIZES[check_choice("size", size, tuple(SIZES))], norm=norm, dropout=dropout, rotary=rotary)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        return self._read(tokens, build_attention_mask(tokens.mask, mode))

    def forward_first_token(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        """As the contract; the last block computes no column that nobody reads."""
        return self._read(tokens, build_attention_mask(tokens.mask, mode), columns=1)

    def attention(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> tuple[Tokens, list[Tensor]]:
        """The same answer as `forward`, with the attention (B, H, N, N) of each block."""
        weights: list[Tensor] = []
        return self._read(tokens, build_attention_mask(tokens.mask, mode), weights), weights

    def layer_outputs(self) -> dict[str, nn.Module]:
        return numbered_layers("blocks", [*self.blocks, self.norm][1:])

    def forward_cached(self, tokens: Tokens, seen: Tensor, caches: Sequence[KVCache]) -> Tokens:
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
        caches: Sequence[KVCache] = (),
    ) -> Tokens:
        check_tokens(tokens, self.dim)
        x = to_compute_dtype(tokens.matrix).transpose(1, 2)
        angles = rope_frequencies(tokens.positions, self.head_depth) if self.rotary else None
        for i, block in enumerate(self.blocks):
            asked = columns if block is self.blocks[-1] else None
            own = (caches[i], None) if caches else None
            x = block(x, mask, angles=angles, caches=own, weights=weights, columns=asked)
        x = x[:, :columns]  # with no block, they are all still there
        return Tokens(self.norm(x).transpose(1, 2), tokens.mask[:, :columns], tokens.positions[:, :, :columns])
