"""The tokenizer for numeric time series, which turns patches of each channel into tokens."""

from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.patches import num_tiles
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units


class Moments(NamedTuple):
    """The mean and the standard deviation of each channel of a window, both of the shape (C, 1)."""

    mean: Tensor
    std: Tensor


def window_moments(series: Tensor) -> Moments:
    """Return the moments of each channel of a window (C, T), as in reversible instance normalization.

    A constant channel has the standard deviation 0 without rounding errors. Source: Kim et al. 2022, section 2.
    """
    std, mean = torch.std_mean(series.double(), 1, correction=0, keepdim=True)
    is_constant = (series == series[:, :1]).all(1, keepdim=True)
    if is_constant.any():
        mean, std = torch.where(is_constant, series[:, :1].double(), mean), std.masked_fill(is_constant, 0.0)
    return Moments(mean, std)


@final
class SeriesTokenizer(Tokenizer):
    """Tokenizer that turns patches of a window of a time series into tokens (PatchTST, Nie et al. 2023).

    Each channel is normalized to mean 0 and standard deviation 1 over the window. The values are float32 (P + 2, N): a
    normalized patch, and below it the mean and the standard deviation of its channel. The positions (2, N) are the
    number of the channel and the number of the patch. The tokens of a channel follow one another.

    With a patch of the length of the window, each channel is one token (iTransformer, Liu et al. 2024).
    """

    unit = "steps"

    def __init__(
        self,
        dim: int,
        *,
        context: int,
        patch: int = 16,
        stride: int = 8,
        positions: PositionKind = "learned",
        length: int = 512,
        dropout: float = 0.0,
    ) -> None:
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            context: The number of time steps of a window.
            patch: P, the number of time steps of a patch. If the last patch extends beyond the window, the last value
                of the window is repeated.
            stride: The step from one patch to the next, in time steps.
            positions: The kind of positional encoding of the number of the patch. Channels have no order, so the number
                of the channel is not encoded.
            length: The maximum number of patches of a window, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        if not 2 <= patch <= context:
            raise InputError(f"patch={patch}: a patch of 2 to {context} steps is needed, the length of the window")
        if not 0 < stride <= patch:
            raise InputError(f"stride={stride} skips steps of the window: use a stride from 1 to {patch}, the patch")
        self.context, self.patch, self.stride = context, patch, stride
        self.num_patches = num_tiles(context, patch, stride)
        """The number of patches of a channel."""
        steps = np.arange(patch)[:, None] + stride * np.arange(self.num_patches)
        self._steps = steps.clip(max=context - 1)
        """The time steps of each patch (P, patches). The last time step is repeated beyond the window."""
        self.project = nn.Linear(patch, dim)
        self.encoding = PositionalEncoding(positions, dim, (length,))
        self.dropout = Dropout(dropout)

    def encode(self, raw: ArrayLike | Tensor) -> Units:
        """Cut a window (C, T) into patches (P + 2, C x patches) at positions (2, C x patches)."""
        series = np.asarray(raw.detach().cpu() if isinstance(raw, Tensor) else raw, np.float64)
        if series.ndim != 2 or series.shape[1] != self.context or not series.shape[0]:
            raise InputError(
                f"a window of {self.context} time steps is expected, as an array (channels, {self.context}), not "
                f"{series.shape}"
            )
        if not np.isfinite(series).all():
            raise InputError("the window has a gap, a value that is no finite number: fill gaps before training")
        mean, std = (part.numpy() for part in window_moments(torch.from_numpy(series)))
        normalized = (series - mean) / np.where(std == 0, 1.0, std)
        values = np.empty((self.patch + 2, len(series), self.num_patches), np.float32)
        values[: self.patch] = normalized[:, self._steps].transpose(1, 0, 2)
        values[self.patch], values[self.patch + 1] = mean, std
        grid = torch.from_numpy(np.indices(values.shape[1:]).reshape(2, -1))
        self.encoding.check(grid[1:])
        return Units(torch.from_numpy(values.reshape(self.patch + 2, -1)), grid)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn values (B, P + 2, N) at positions (B, 2, N) into tokens (B, D, N)."""
        return self.dropout(self.encoding(self.project(values[:, : self.patch].mT).mT, positions[:, 1:]))

    def position_values(self, units: Units) -> Tensor:
        """Return the center of each patch (1, N), in time steps from the start of the window."""
        return units.positions[1:] * self.stride + self.patch / 2
