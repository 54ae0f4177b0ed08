"""Log power normalized to mean 0 and standard deviation 1."""

from collections.abc import Iterable
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import InputError, check_choice
from unifier_tokenizers.tokens import NO_POSITION

Normalization = Literal["whole", "band", "example"]
"""Over all bands of all sounds, over each band of all sounds, or by the mean of each band of the example itself."""


@final
class SpectrogramNorm(nn.Module):
    """Log power less its mean, over its standard deviation, both measured once by `fit`.

    With "example", the mean is that of the band in the example, over its columns and the silence that fills the last of
    them (cepstral mean subtraction: Atal 1974), and only the spread is measured by `fit`.
    """

    index: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, kind: Normalization, bands: int, height: int, step: int) -> None:
        """Tiles span `height` of the bands, `step` apart; what is above the last band counts as the last."""
        super().__init__()
        self.kind = check_choice("normalize", kind, get_args(Normalization))
        rows = torch.arange(-(-max(bands - height, 0) // step) + 1)
        within = (rows[:, None] * step + torch.arange(height)).clamp(max=bands - 1)
        self.register_buffer("index", within, persistent=False)
        # Of speech and music at full scale until `fit` is called.
        self.register_buffer("mean", torch.full((bands,), -4.0))
        self.register_buffer("std", torch.full((bands,), 4.0))

    def fit(self, spectrograms: Iterable[Tensor]) -> None:
        """Measure mean and standard deviation on log power, spectrograms (F, frames), held one at a time.

        Raises InputError where there is none.
        """
        count = 0
        total, squares, within = torch.zeros(3, len(self.mean), dtype=torch.float64)
        for one in spectrograms:
            power = one.double().cpu()
            count += power.shape[1]
            total += power.sum(1)
            squares += power.square().sum(1)
            within += (power - power.mean(1, keepdim=True)).square().sum(1)
        if not count:
            raise InputError("a mean cannot be taken from no sound: give it at least one")
        self.mean.copy_(total.mean() / count if self.kind == "whole" else total / count)
        spread = _spread(total.sum(), squares.sum(), count * len(total)).clamp(min=1e-3)
        if self.kind != "whole":
            own = _spread(total, squares, count) if self.kind == "band" else _spread(0 * total, within, count)
            spread = own.clamp(min=float(spread) / 10)  # a band that is silent here may not be so everywhere
        self.std.copy_(spread)

    def forward(self, power: Tensor, positions: Tensor) -> Tensor:
        """Log power (B, N, frames, bands of a tile) of columns at positions (B, A, N), the second axis the band's."""
        mean, std = self.mean[self.index], self.std[self.index]  # rows, height
        row = positions[:, 1].clamp(min=0) if len(mean) > 1 else torch.zeros_like(positions[:, 0])  # B, N
        if self.kind == "example":
            here = functional.one_hot(row, len(mean)).masked_fill(positions[:, 0, :, None] == NO_POSITION, 0)
            total = torch.einsum("bnr,bnh->brh", here.to(power.dtype), power.mean(2))
            mean = total / here.sum(1).clamp(min=1)[:, :, None]  # B, rows, height
            power = power - mean[torch.arange(len(row), device=row.device)[:, None], row][:, :, None]
        elif len(mean) > 1:
            power = power - mean[row][:, :, None]
        else:
            power = power - mean
        return power / (std[row][:, :, None] if len(std) > 1 else std)


def _spread(total: Tensor, squares: Tensor, count: int) -> Tensor:
    """The standard deviation of `count` numbers, from their sum and that of their squares."""
    return ((squares - total**2 / count).clamp(min=0) / max(count - 1, 1)).sqrt()
