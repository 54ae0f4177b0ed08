"""A transformer in plain torch that lacks one of its parts, on sentences of a grammar and on handwritten digits."""

import math
from dataclasses import replace
from typing import Any, Literal, final, get_args

from torch import Tensor, nn

import unifier as uf
from pictures import PLAIN, pictures
from translation import translation
from unifier.options import DecoderConfig, ImageFrontend, TrunkConfig

Variant = Literal[
    "complete",
    "no_scale",
    "no_residual",
    "no_norm",
    "no_feed_forward",
    "no_positions",
    "heads_4",
    "heads_2",
    "heads_1",
]
"""The complete transformer with 8 heads, the transformer without one part, and with fewer heads."""

VARIANTS: tuple[Variant, ...] = get_args(Variant)
TRUNK = TrunkConfig(depth=3, heads=8, ffn_dim=256)
TRAINING = uf.Training(tokens=500_000, batch_tokens=1024, learning_rate=1e-3, num_validations=4)


class SelfAttention(nn.Module):
    """Scaled dot-product attention with several heads (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, dim: int, heads: int, variant: Variant) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1.0 if variant == "no_scale" else 1 / math.sqrt(dim // heads)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map tokens (B, N, D) to tokens (B, N, D). `mask` (B, N) is False for padding."""
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (query @ key.mT * self.scale).masked_fill(~mask[:, None, None], -math.inf)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a feed-forward network, each after a norm and with a residual connection."""

    def __init__(self, dim: int, heads: int, ffn_dim: int, dropout: float, variant: Variant) -> None:
        super().__init__()
        hidden = nn.Linear(dim, ffn_dim), nn.GELU(), nn.Linear(ffn_dim, dim)
        self.attention = SelfAttention(dim, heads, variant)
        self.feed_forward = None if variant == "no_feed_forward" else nn.Sequential(*hidden)
        self.norms = nn.ModuleList(nn.Identity() if variant == "no_norm" else nn.LayerNorm(dim) for _ in range(2))
        self.keep = 0 if variant == "no_residual" else 1
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map tokens (B, N, D) to tokens (B, N, D). `mask` (B, N) is False for padding."""
        x = self.keep * x + self.dropout(self.attention(self.norms[0](x), mask))
        if self.feed_forward is None:
            return x
        return self.keep * x + self.dropout(self.feed_forward(self.norms[1](x)))


@final
class PlainTransformer(uf.Trunk):
    """A stack of layers and a final norm."""

    def __init__(self, dim: int, depth: int, heads: int, ffn_dim: int, dropout: float, variant: Variant) -> None:
        super().__init__()
        self.dim = dim
        with uf.isolated_seed():
            self.layers = nn.ModuleList(Layer(dim, heads, ffn_dim, dropout, variant) for _ in range(depth))
        self.norm = nn.Identity() if variant == "no_norm" else nn.LayerNorm(dim)

    def forward(self, tokens: uf.Tokens, mode: Any = "bidirectional") -> uf.Tokens:
        if not isinstance(mode, str) or mode != "bidirectional":
            raise uf.InputError("a PlainTransformer attends to all tokens: use a head that needs mode bidirectional")
        x = tokens.matrix.mT
        for layer in self.layers:
            x = layer(x, tokens.mask)
        return tokens._replace(matrix=self.norm(x).mT)


def build_plain(variant: Variant, trunk: TrunkConfig) -> PlainTransformer:
    """Create the trunk of a variant. `heads` is the number of heads of each variant except "heads_4" to "heads_1"."""
    heads = int(variant.removeprefix("heads_")) if variant.startswith("heads_") else trunk.heads or 8
    if trunk.dim % heads:
        raise uf.InputError(f"dim={trunk.dim} cannot be divided between {heads} heads: give a multiple of {heads}")
    return PlainTransformer(trunk.dim, trunk.depth, heads, trunk.ffn_dim or 4 * trunk.dim, trunk.dropout, variant)


def grammar(
    *, variant: Variant = "complete", trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING
) -> uf.Experiment:
    """Translate sentences of a small grammar. Only the encoder lacks a part; the decoder is a complete layer.

    Args:
        variant: complete, no_scale, no_residual, no_norm, no_feed_forward, no_positions, heads_4, heads_2 or heads_1.
    """
    positions = "none" if uf.check_choice("variant", variant, VARIANTS) == "no_positions" else "sinusoid"
    decoder = DecoderConfig(decoder_depth=1)
    base = translation(trunk=replace(trunk, positions=positions), decoder=decoder, training=training)
    return replace(base, trunk=build_plain(variant, trunk))


def digits(
    *, variant: Variant = "complete", trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING
) -> uf.Experiment:
    """Classify handwritten digits without augmentation.

    Args:
        variant: complete, no_scale, no_residual, no_norm, no_feed_forward, no_positions, heads_4, heads_2 or heads_1.
    """
    positions = "none" if uf.check_choice("variant", variant, VARIANTS) == "no_positions" else "learned"
    trunk = replace(trunk, positions=positions)
    base = pictures(frontend=ImageFrontend(stem=None), trunk=trunk, augmentation=PLAIN, training=training)
    return replace(base, trunk=build_plain(variant, trunk))


def parts(*, variants: tuple[Variant, ...] = VARIANTS, seeds: tuple[int, ...] = (0, 1, 2, 3, 4)) -> uf.Comparison:
    """Compare a complete transformer with transformers that lack one part. The report names diverged runs.

    Args:
        variants: The variants to compare.
        seeds: Random seeds; each variant is trained once per seed.
    """
    return uf.Comparison(
        "parts",
        [grammar, digits],
        seeds=seeds,
        grid={"variant": variants},
        question="What is each part of a transformer worth?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
