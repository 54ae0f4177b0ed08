"""One layer of a transformer: attention and a feed-forward network, each with its residual path and norm."""

from collections.abc import Callable
from typing import Literal, final, get_args

from torch import Tensor, nn

from unifier.nn.attention import Attention, KVCache
from unifier.nn.linear import Linear
from unifier.nn.precision import LayerNorm
from unifier_tokenizers import Dropout, InputError
from unifier_tokenizers.errors import check_choice

Norm = Literal["pre", "post"]


Activation = Literal["gelu", "relu"]


@final
class FeedForward(nn.Sequential):
    """D -> hidden -> D, each column by itself."""

    def __init__(self, dim: int, hidden: int, activation: Activation, dropout: float) -> None:
        check_choice("activation", activation, get_args(Activation))
        if hidden < 1:
            raise InputError(f"ffn_dim={hidden}: at least 1 is needed")
        nonlinearity = nn.GELU() if activation == "gelu" else nn.ReLU()
        super().__init__(Linear(dim, hidden), nonlinearity, Dropout(dropout), Linear(hidden, dim))


@final
class DropPath(nn.Module):
    """Leaves a part of a layer out for a share of the examples in training, and scales it for the rest to keep the mean
    (Huang et al. 2016, section 3)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.dropout = Dropout(share)

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> the same shape; all of an example is 0, or nothing of it."""
        if not self.training or self.dropout.p == 0:
            return x
        return x * self.dropout(x.new_ones(len(x), *[1] * (x.ndim - 1)))


@final
class Block(nn.Module):
    """Self-attention, attention to a memory where `cross`, feed-forward.

    Norms stand before each part (Xiong et al. 2020) or after its sum (Vaswani et al. 2017).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden: int,
        *,
        cross: bool = False,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        qk_norm: bool = False,
        drop_path: float = 0.0,
        projections: bool = True,
    ) -> None:
        """`drop_path` is the share of examples for which each part is left out in training."""
        super().__init__()
        self.norm = check_choice("norm", norm, get_args(Norm))
        options = {"qk_norm": qk_norm, "projections": projections}
        self.attention = Attention(dim, heads, **options)
        self.attention_norm = LayerNorm(dim)
        self.cross = Attention(dim, heads, **options) if cross else None
        self.cross_norm = LayerNorm(dim) if cross else None
        self.feed_forward = FeedForward(dim, hidden, activation, dropout)
        self.feed_forward_norm = LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.drop_path = DropPath(drop_path)
        init_weights(self)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        *,
        angles: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        caches: tuple[KVCache, KVCache | None] | None = None,
        weights: list[Tensor] | None = None,
        columns: int | None = None,
    ) -> Tensor:
        """x (B, N, D) -> (B, N, D), or the first `columns` of it alone; masks as `Attention` takes them.

        A memory may be shared: its B / k rows serve k examples each, side by side. `weights` receives the attention to
        the memory where there is one, else the self-attention.
        """
        own, far = caches or (None, None)
        kept = None if self.cross else weights

        def to_itself(y: Tensor) -> Tensor:
            if columns is None:
                return self.attention(y, mask=mask, angles=angles, cache=own, weights=kept)
            seen = None if mask is None else mask[:, :, :columns]
            return self.attention(y[:, :columns], y, mask=seen, angles=angles, cache=own, weights=kept)

        x = self._add(x, self.attention_norm, to_itself, columns)
        cross, cross_norm = self.cross, self.cross_norm
        if cross is not None and cross_norm is not None:
            assert memory is not None
            shared = x.reshape(len(memory), -1, x.shape[2])
            x = self._add(
                shared, cross_norm, lambda y: cross(y, memory, mask=memory_mask, cache=far, weights=weights)
            ).view_as(x)
        return self._add(x, self.feed_forward_norm, self.feed_forward)

    def residual_projections(self) -> list[nn.Linear]:
        """The linear maps that end its residual paths."""
        parts = [part.out for part in (self.attention, self.cross) if part is not None and part.projections]
        last = self.feed_forward[-1]
        assert isinstance(last, nn.Linear)
        return [*parts, last]

    def _add(self, x: Tensor, norm: LayerNorm, part: Callable[[Tensor], Tensor], columns: int | None = None) -> Tensor:
        rest = x if columns is None else x[:, :columns]
        if self.norm == "pre":
            return rest + self.drop_path(self.dropout(part(norm(x))))
        return norm(rest + self.drop_path(self.dropout(part(x))))


def init_weights(module: nn.Module) -> None:
    """Xavier-uniform weights (Glorot and Bengio 2010) and zero biases for every linear map and convolution inside."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv1d)):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
                nn.init.zeros_(part.bias)


def scale_residual_init(blocks: nn.ModuleList) -> None:
    """Redraw the weights that end each residual path with Xavier gain 1 / sqrt(number of such weights), as GPT-2 scales
    its residual layers (Radford et al. 2019, section 2.3)."""
    ends = [end for block in blocks if isinstance(block, Block) for end in block.residual_projections()]
    for end in ends:
        nn.init.xavier_uniform_(end.weight, gain=len(ends) ** -0.5)
