"""A masked autoencoder's decoder, which predicts the values of hidden patches and frames from the visible tokens."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from unifier.heads.head import Head
from unifier.nn.attention import build_attention_mask
from unifier.nn.block import Block, init_weights
from unifier.nn.linear import Linear
from unifier.nn.precision import LayerNorm, in_float32, to_compute_dtype
from unifier.trunks.transformer import default_heads
from unifier.trunks.trunk import check_depth
from unifier_tokenizers import NO_POSITION, InputError, PositionalEncoding, Tokens

MIN_VARIANCE = 1e-6
"""The number that is added to the variance of a patch, so a patch of one color becomes 0."""


def join_target(values: Tensor, positions: Tensor) -> Tensor:
    """Join the values (B, P, M) and the positions (B, A, M) of M hidden tokens to a target (B, P + A, M) in float32.

    The first P rows are the values that `Tokenizer.encode` returns. The last A rows are the positions, which are
    `NO_POSITION` for padding.
    """
    return torch.cat([values.float(), positions.float()], 1)


def split_target(target: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Return the values (B, P, M) and the positions (B, A, M) in int64 of a target (B, P + A, M) with A = `axes`."""
    return target[:, :-axes], target[:, -axes:].long()


def normalize_patches(values: Tensor) -> Tensor:
    """Normalize each patch of values (B, P, M) to mean 0 and variance 1 (He et al. 2022, section 3)."""
    variance, mean = torch.var_mean(values, 1, correction=0, keepdim=True)
    return (values - mean) * (variance + MIN_VARIANCE).rsqrt()


@final
class MaskedReconstructionHead(Head):
    """The light decoder of a masked autoencoder (He et al. 2022).

    A small transformer reads all places of the input: the trunk's tokens at the visible places, and one learned vector
    at all hidden places. The decoder predicts the values of each hidden patch, normalized to mean 0 and variance 1. The
    loss is the mean squared error of the hidden values. The targets come from the objective `MaskedPatches`.
    """

    lower_is_better = frozenset({"mse"})
    task_tag = "reconstruction"
    missing_prediction = (
        "a masked autoencoder predicts only hidden patches of its training objective: use `unifier embed` for "
        "vectors of inputs, or train a head for your task with start=RUN"
    )

    def __init__(
        self,
        num_values: int,
        dim: int,
        *,
        width: int | None = None,
        depth: int = 2,
        heads: int | None = None,
        ffn_dim: int | None = None,
    ) -> None:
        """Build the head.

        Args:
            num_values: P, the number of values of a patch (see `MaskedPatches.num_values`).
            dim: D, the number of features of the trunk's tokens.
            width: The number of features of the decoder's tokens, a multiple of twice the number of axes. The default
                is about half of `dim`, because the decoder reads several times as many tokens as the trunk.
            depth: The number of blocks, at least 1.
            heads: The number of attention heads. The default is `default_heads(width)`.
            ffn_dim: The width of the feed-forward networks. The default is 4 * `width`.
        """
        super().__init__()
        check_depth(depth, 1)
        self.dim, width = dim, 4 * math.ceil(dim / 8) if width is None else width
        heads = default_heads(width) if heads is None else heads
        self.project = Linear(dim, width)
        self.mask_token = nn.Parameter(torch.randn(width) * 0.02)
        self.encoding = PositionalEncoding("sinusoid", width, ())
        self.blocks = nn.ModuleList(
            Block(width, heads, 4 * width if ffn_dim is None else ffn_dim) for _ in range(depth)
        )
        self.norm = LayerNorm(width)
        self.out = nn.Linear(width, num_values)
        init_weights(self)

    def encode(self, target: object) -> Tensor:
        """Return 0, because the objective defines the targets."""
        return torch.tensor(0)

    def decode(self, tokens: Tokens, positions: Tensor) -> Tensor:
        """Predict the normalized values (B, P, M) of the hidden tokens at positions (B, A, M), in float32.

        Args:
            tokens: The trunk's visible tokens (B, D, N).
            positions: The positions of the hidden tokens, which are `NO_POSITION` for padding.
        """
        num_hidden = positions.shape[2]
        visible = self.encoding(self.project(to_compute_dtype(tokens.matrix).mT).mT, tokens.positions)
        hidden = self.encoding(
            self.mask_token.to(visible.dtype)[None, :, None].expand(*visible.shape[:2], 1), positions
        )
        x = torch.cat([hidden.mT, visible.mT], 1)
        mask = build_attention_mask(torch.cat([positions[:, 0] != NO_POSITION, tokens.mask], 1), "bidirectional")
        for block in self.blocks:
            # The last block computes only the hidden tokens, which are the first tokens.
            x = block(x, mask, num_tokens=num_hidden if block is self.blocks[-1] else None)
        return in_float32(self.out, self.norm(x)).mT

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean squared error of the normalized values of all hidden tokens.

        Args:
            tokens: The trunk's visible tokens (B, D, N).
            target: The values and positions of the hidden tokens (B, P + A, M) (see `join_target`).
        """
        errors, _, is_hidden = self._errors(tokens, target)
        return errors.square().sum() / (is_hidden.sum() * errors.shape[1])

    def target_counts(self, target: Tensor) -> Tensor:
        return (target[:, -1] != NO_POSITION).sum(1)

    def reconstruct(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the predicted values (B, P, M) of the hidden tokens, on the scale of the tokenizer's values.

        The mean and the variance of each hidden patch are taken from the target, because the decoder predicts
        normalized values.
        """
        values, positions = split_target(target, tokens.positions.shape[1])
        variance, mean = torch.var_mean(values, 1, correction=0, keepdim=True)
        return self.decode(tokens, positions) * variance.sqrt() + mean

    def predict(self, tokens: Tokens) -> list[Any]:
        """Raise InputError, because an input without hidden tokens has nothing to predict."""
        raise InputError(self.missing_prediction)

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[Tensor]:
        """Return a tensor of three sums per example, in float64.

        The sums over the normalized values of the hidden tokens are the squared errors, the squares of the values, and
        the number of values.
        """
        errors, values, is_hidden = self._errors(tokens, target)
        counts = is_hidden.sum(1) * errors.shape[1]
        sums = [part.double().square().sum((1, 2)) for part in (errors, values)]
        return [*torch.stack([*sums, counts.double()], 1).cpu()]

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[Any]) -> Mapping[str, float]:
        """Return "r2" in percent and the mean squared error "mse", over the normalized values of all hidden tokens.

        R2 is 0 if each hidden patch is predicted as its mean color, and 100 if all hidden values are exact.
        """
        error, squares, count = torch.stack([*predictions]).sum(0).tolist()
        return {"r2": 100 * (1 - error / squares) if squares else math.nan, "mse": error / count}

    def example_score(self, prediction: Tensor, target: Any) -> tuple[float, float]:
        return self.metrics([prediction], [target])["r2"], float(prediction[1])

    def describe(self, prediction: Tensor) -> str:
        return f"R2 {self.metrics([prediction], [None])['r2']:.1f} %"

    def describe_task(self, noun: str) -> str:
        return f"was trained to predict hidden parts of {noun}, and gives vectors, or a start for other models."

    def _errors(self, tokens: Tokens, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return errors and normalized values (B, P, M), both 0 at padding, and the mask (B, M) of hidden tokens."""
        values, positions = split_target(target, tokens.positions.shape[1])
        is_hidden = positions[:, 0] != NO_POSITION
        values = normalize_patches(values).masked_fill(~is_hidden[:, None], 0)
        errors = (self.decode(tokens, positions) - values).masked_fill(~is_hidden[:, None], 0)
        return errors, values, is_hidden
