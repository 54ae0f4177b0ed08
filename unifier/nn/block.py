"""One layer of a transformer: attention and a feed-forward network, each with a residual path and a norm."""

from collections.abc import Callable
from typing import Any, Literal, final, get_args

from torch import Tensor, nn

from unifier.nn.attention import Attention, KVCache
from unifier.nn.experts import BALANCE_WEIGHT, MixtureOfExperts, check_experts
from unifier.nn.feed_forward import Activation, FeedForward
from unifier.nn.local_attention import LocalMask
from unifier.nn.precision import LayerNorm
from unifier_tokenizers import Dropout
from unifier_tokenizers.errors import check_choice

Norm = Literal["pre", "post"]


@final
class DropPath(nn.Module):
    """Layer that drops a residual branch for a fraction p of the examples (Huang et al. 2016, section 3).

    In training, all other residual branches are divided by 1 - p, so the mean does not change.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout = Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, ...) with all entries of a dropped example set to 0."""
        if not self.training or self.dropout.p == 0:
            return x
        return x * self.dropout(x.new_ones(len(x), *[1] * (x.ndim - 1)))


@final
class Block(nn.Module):
    """Transformer layer: self-attention, optional cross-attention to a memory, and a feed-forward network.

    With norm="pre", a norm comes before attention and before the feed-forward network (Xiong et al. 2020). With
    norm="post", a norm comes after each residual sum (Vaswani et al. 2017).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        ffn_dim: int,
        *,
        cross: bool = False,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        qk_norm: bool = False,
        drop_path: float = 0.0,
        projections: bool = True,
        experts: int = 1,
        experts_per_token: int = 1,
        balance_weight: float = BALANCE_WEIGHT,
    ) -> None:
        """Create the layer with Xavier-uniform weights.

        Args:
            dim: D, the width of the tokens.
            heads: H, the number of attention heads.
            ffn_dim: The width of the feed-forward network.
            cross: Add cross-attention to a memory after self-attention.
            norm: "pre" or "post".
            activation: The nonlinearity of the feed-forward network.
            dropout: The dropout probability at the end of each residual branch and inside the feed-forward network.
            qk_norm: Normalize queries and keys.
            drop_path: The probability that training drops a residual branch for an example.
            projections: Project queries, keys and values.
            experts: The number of feed-forward networks. With 2 or more, a router chooses for each token (see
                `MixtureOfExperts`).
            experts_per_token: The number of feed-forward networks that each token uses.
            balance_weight: The factor of the load-balancing loss.
        """
        super().__init__()
        self.norm = check_choice("norm", norm, get_args(Norm))
        options = {"qk_norm": qk_norm, "projections": projections}
        self.attention = Attention(dim, heads, **options)
        self.attention_norm = LayerNorm(dim)
        self.cross = Attention(dim, heads, **options) if cross else None
        self.cross_norm = LayerNorm(dim) if cross else None
        check_experts(experts, experts_per_token)
        self.feed_forward = (
            FeedForward(dim, ffn_dim, activation, dropout)
            if experts == 1
            else MixtureOfExperts(
                dim, ffn_dim, activation, dropout, experts, experts_per_token, balance_weight=balance_weight
            )
        )
        self.feed_forward_norm = LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.drop_path = DropPath(drop_path)
        init_weights(self)
        if isinstance(self.feed_forward, MixtureOfExperts):
            self.feed_forward.reset_router()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | LocalMask | None,
        *,
        angles: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        caches: tuple[KVCache, KVCache | None] | None = None,
        weights: list[Tensor] | None = None,
        num_tokens: int | None = None,
        token_mask: Tensor | None = None,
    ) -> Tensor:
        """Run the layer.

        Args:
            x: The tokens (B, N, D).
            mask: The self-attention mask, which broadcasts to (B, H, N, N), or a local mask, or None.
            angles: The rotary angles (B, N, D/H/2) of x.
            memory: The memory (B / k, M, D) of cross-attention. Each group of k adjacent examples shares one memory (M,
                D).
            memory_mask: The cross-attention mask, or None.
            caches: The KV caches of self-attention and of cross-attention.
            weights: A list to which the weights of cross-attention are appended. If the block has no cross-attention,
                the weights of self-attention are appended.
            num_tokens: Compute only the first `num_tokens` output tokens; by default, compute all tokens.
            token_mask: (B, N), True for the real tokens of x, which alone are routed to experts. None means that all
                tokens are real.

        Returns:
            The output (B, N, D), or (B, num_tokens, D).
        """
        self_cache, cross_cache = caches or (None, None)
        self_weights = None if self.cross else weights

        def self_attention(y: Tensor) -> Tensor:
            if num_tokens is None:
                return self.attention(y, mask=mask, angles=angles, cache=self_cache, weights=self_weights)
            if isinstance(mask, LocalMask):
                rows = mask.dense(num_tokens)
            else:
                rows = None if mask is None else mask[:, :, :num_tokens]
            return self.attention(
                y[:, :num_tokens], y, mask=rows, angles=angles, cache=self_cache, weights=self_weights
            )

        x = self._add_residual(x, self.attention_norm, self_attention, num_tokens)
        cross, cross_norm = self.cross, self.cross_norm
        if cross is not None and cross_norm is not None:
            assert memory is not None
            grouped = x.reshape(memory.shape[0], -1, x.shape[2])
            x = self._add_residual(
                grouped, cross_norm, lambda y: cross(y, memory, mask=memory_mask, cache=cross_cache, weights=weights)
            ).view_as(x)
        feed_forward = self.feed_forward
        if isinstance(feed_forward, FeedForward):
            return self._add_residual(x, self.feed_forward_norm, feed_forward)
        real = None if token_mask is None else token_mask[:, : x.shape[1]]
        return self._add_residual(x, self.feed_forward_norm, lambda y: feed_forward(y, real))

    def residual_projections(self) -> list[list[nn.Linear]]:
        """Return the last linear layer of each residual branch. With experts, a branch has one layer per expert."""
        attentions = [part for part in (self.attention, self.cross) if part is not None and part.projections]
        projections: list[list[nn.Linear]] = [[part.out] for part in attentions]
        networks = [part for part in self.feed_forward.modules() if isinstance(part, FeedForward)]
        return [*projections, [last for network in networks if isinstance(last := network[-1], nn.Linear)]]

    def _add_residual(
        self, x: Tensor, norm: LayerNorm, part: Callable[[Tensor], Tensor], num_tokens: int | None = None
    ) -> Tensor:
        residual = x if num_tokens is None else x[:, :num_tokens]
        if self.norm == "pre":
            return residual + self.drop_path(self.dropout(part(norm(x))))
        return norm(residual + self.drop_path(self.dropout(part(x))))


@final
class SharedBlock(nn.Module):
    """Layer that runs the block of an earlier layer again, with the same weights (Lan et al. 2020, section 3.1)."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        # nn.Module ignores lists, so the weights are registered only in the earlier layer.
        self._shared = [block]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the block. The arguments are those of `Block`."""
        return self._shared[0](*args, **kwargs)

    def residual_projections(self) -> list[list[nn.Linear]]:
        """Return the last linear layers of each residual branch of the block."""
        return self._shared[0].residual_projections()


def init_weights(module: nn.Module) -> None:
    """Set Xavier-uniform weights (Glorot and Bengio 2010) and zero biases in all linear layers and 1D convolutions."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv1d)):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
                nn.init.zeros_(part.bias)


def scale_residual_init(blocks: nn.ModuleList) -> None:
    """Initialize the n output layers of the residual branches again, with Xavier gain 1 / sqrt(n).

    GPT-2 scales the weights of residual layers by 1 / sqrt(n) (Radford et al. 2019, section 2.3).
    """
    layers = [block for block in blocks if isinstance(block, Block | SharedBlock)]
    branches = [branch for layer in layers for branch in layer.residual_projections()]
    for projection in (projection for branch in branches for projection in branch):
        nn.init.xavier_uniform_(projection.weight, gain=len(branches) ** -0.5)
