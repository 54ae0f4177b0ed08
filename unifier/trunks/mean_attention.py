"""A transformer trunk with a plain mean in place of attention."""

from typing import final

from torch import Tensor, nn

from unifier.nn.attention import AttentionMode, build_attention_mask
from unifier.nn.block import init_weights
from unifier.nn.feed_forward import FeedForward
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.trunk import Trunk, check_depth, check_tokens, isolated_seed, numbered_layers
from unifier_tokenizers import Dropout, Tokens


@final
class MeanAttentionTrunk(Trunk):
    """Transformer with fixed attention: each token attends equally to all tokens that the mask allows.

    The attention weights do not depend on the contents of the tokens. This trunk has the form of deep sets (Zaheer et
    al. 2017, section 3). In mode "causal", this trunk computes average attention (Zhang et al. 2018).
    """

    def __init__(self, dim: int, depth: int, ffn_dim: int | None = None, *, dropout: float = 0.0) -> None:
        """Build the trunk. `ffn_dim` is the width of the feed-forward networks, by default 4 * `dim`."""
        super().__init__()
        check_depth(depth)
        self.dim = dim
        ffn_dim = 4 * dim if ffn_dim is None else ffn_dim
        with isolated_seed():
            self.blocks = nn.ModuleList(_MeanBlock(dim, ffn_dim, dropout) for _ in range(depth))
        self.norm = LayerNorm(dim)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        check_tokens(tokens, self.dim)
        x = to_compute_dtype(tokens.matrix).transpose(1, 2)
        mask = build_attention_mask(tokens.mask, mode)
        weights = None if mask is None else (mask / mask.sum(-1, keepdim=True).clamp(min=1)).to(x.dtype)[:, 0]
        for block in self.blocks:
            x = block(x, weights)
        return tokens._replace(matrix=self.norm(x).transpose(1, 2))

    def layer_outputs(self) -> dict[str, nn.Module]:
        return numbered_layers("blocks", [*self.blocks, self.norm][1:])


@final
class _MeanBlock(nn.Module):
    """Pre-norm transformer block with fixed attention weights."""

    def __init__(self, dim: int, ffn_dim: int, dropout: float) -> None:
        super().__init__()
        self.mean_norm = LayerNorm(dim)
        self.value = nn.Linear(dim, dim)
        self.feed_forward_norm = LayerNorm(dim)
        self.feed_forward = FeedForward(dim, ffn_dim, "gelu", dropout)
        self.dropout = Dropout(dropout)
        init_weights(self)

    def forward(self, x: Tensor, weights: Tensor | None) -> Tensor:
        """Run the block on x (B, N, D) with attention weights (B, 1 or N, N).

        Without `weights`, all attention weights are equal.
        """
        values = self.value(self.mean_norm(x))
        means = values.mean(1, keepdim=True) if weights is None else weights @ values
        x = x + self.dropout(means)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
