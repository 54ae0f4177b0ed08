"""Normalization of log power to mean 0 and standard deviation 1."""

from collections.abc import Iterable
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import InputError, check_choice
from unifier_tokenizers.tokens import NO_POSITION

Normalization = Literal["whole", "band", "example"]
"""The kind of normalization, which determines the bands and sounds that share one mean.

- "whole" uses one mean for all bands of all sounds.
- "band" uses one mean for each band of all sounds.
- "example" uses one mean for each band of each sound.
"""


@final
class SpectrogramNorm(nn.Module):
    """Layer that subtracts the mean of log power and divides by the standard deviation.

    `fit` measures the mean and the standard deviation. With "example", a band's mean is computed from the tokens of
    each example (cepstral mean subtraction: Atal 1974). An example's mean includes the silence that pads the last
    token.
    """

    index: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, kind: Normalization, bands: int, height: int, step: int) -> None:
        """Create the layer. Before `fit`, the mean and the standard deviation are typical values for speech and music.

        Args:
            kind: The kind of normalization, which is "whole", "band" or "example".
            bands: F, the number of bands of the spectrogram. Bands of a tile beyond the last band use the mean and the
                standard deviation of the last band.
            height: The number of bands of a tile.
            step: The number of bands from the start of one tile to the start of the next tile.
        """
        super().__init__()
        self.kind = check_choice("normalize", kind, get_args(Normalization))
        rows = torch.arange(-(-max(bands - height, 0) // step) + 1)
        index = (rows[:, None] * step + torch.arange(height)).clamp(max=bands - 1)
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("mean", torch.full((bands,), -4.0))
        self.register_buffer("std", torch.full((bands,), 4.0))

    def fit(self, spectrograms: Iterable[Tensor]) -> None:
        """Measure the mean and the standard deviation of log power.

        Args:
            spectrograms: The log power (F, frames) of each sound. Only one sound is in memory at a time.

        Raises:
            InputError: If no spectrogram is given.
        """
        count = 0
        total, squares, residual_squares = torch.zeros(3, len(self.mean), dtype=torch.float64)
        for spectrogram in spectrograms:
            power = spectrogram.double().cpu()
            count += power.shape[1]
            total += power.sum(1)
            squares += power.square().sum(1)
            residual_squares += (power - power.mean(1, keepdim=True)).square().sum(1)
        if not count:
            raise InputError("no sound is given, so there is no mean: give at least one sound")
        self.mean.copy_(total.mean() / count if self.kind == "whole" else total / count)
        std = _std(total.sum(), squares.sum(), count * len(total)).clamp(min=1e-3)
        if self.kind != "whole":
            band = _std(total, squares, count) if self.kind == "band" else _std(0 * total, residual_squares, count)
            # A band that is silent in the given sounds may be loud in new sounds, so each std has a minimum.
            std = band.clamp(min=float(std) / 10)
        self.std.copy_(std)

    def forward(self, power: Tensor, positions: Tensor) -> Tensor:
        """Normalize log power (B, N, frames, bands of a tile).

        Args:
            power: The log power of each tile.
            positions: The positions (B, A, N). If A is 2, the second coordinate is the tile's row in the grid of tiles.
        """
        mean, std = self.mean[self.index], self.std[self.index]  # rows, height
        row = positions[:, 1].clamp(min=0) if len(mean) > 1 else torch.zeros_like(positions[:, 0])  # B, N
        if self.kind == "example":
            members = functional.one_hot(row, len(mean)).masked_fill(positions[:, 0, :, None] == NO_POSITION, 0)
            total = torch.einsum("bnr,bnh->brh", members.to(power.dtype), power.mean(2))
            mean = total / members.sum(1).clamp(min=1)[:, :, None]  # B, rows, height
            power = power - mean[torch.arange(row.shape[0], device=row.device)[:, None], row][:, :, None]
        elif len(mean) > 1:
            power = power - mean[row][:, :, None]
        else:
            power = power - mean
        return power / (std[row][:, :, None] if len(std) > 1 else std)


def _std(total: Tensor, squares: Tensor, count: int) -> Tensor:
    """Return the standard deviation of `count` numbers, given their sum and their sum of squares."""
    return ((squares - total**2 / count).clamp(min=0) / max(count - 1, 1)).sqrt()
