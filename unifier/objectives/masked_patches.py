"""The objective of a masked autoencoder: most patches of a picture, a spectrogram or a series are hidden."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.dataloader import Batch, Lengths, Objective
from unifier.heads.masked_reconstruction import join_target
from unifier_tokenizers import (
    NO_POSITION,
    FrameTokenizer,
    InputError,
    PatchTokenizer,
    SeriesTokenizer,
    Tokenizer,
    Units,
)
from unifier_tokenizers.errors import check_share
from unifier_tokenizers.stems import LinearProjection


@final
@dataclass(frozen=True)
class MaskedPatches(Objective):
    """Random choice of hidden tokens, which are dropped before `embed` (He et al. 2022, section 3).

    The tokenizer and the trunk receive only the visible tokens, so hidden values can influence no visible token. A stem
    reads a picture in which hidden patches have the mean color. The target is a tensor (B, P + A, M) with the values
    and the positions of the M hidden tokens (see `join_target`).
    """

    tokenizer: Tokenizer
    """A `PatchTokenizer`, a `SeriesTokenizer`, or a `FrameTokenizer` without a stem. The patches must not overlap."""
    share: float = 0.75
    """The share of the tokens of an example that are hidden. Class tokens are always visible, and are not counted."""

    def __post_init__(self) -> None:
        check_share("share", self.share)
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, PatchTokenizer | FrameTokenizer | SeriesTokenizer):
            raise InputError(
                f"{type(tokenizer).__name__}: only patches of pictures and series, and frames of spectrograms, can be "
                "hidden; use a PatchTokenizer, a SeriesTokenizer or a FrameTokenizer"
            )
        overlaps = (
            tokenizer.tiles.stride != tokenizer.tiles.patch
            if isinstance(tokenizer, FrameTokenizer)
            else tokenizer.stride < tokenizer.patch
        )
        if overlaps:
            raise InputError("overlapping patches would show parts of hidden patches: set a stride equal to the patch")
        if isinstance(tokenizer, FrameTokenizer) and not isinstance(tokenizer.project, LinearProjection):
            raise InputError("a stem would join frames that are not neighbors in the sound: set stem=none")

    @property
    def num_values(self) -> int:
        """P, the number of values of a patch."""
        if isinstance(self.tokenizer, PatchTokenizer):
            return self.tokenizer.channels * self.tokenizer.patch**2
        if isinstance(self.tokenizer, SeriesTokenizer):
            return self.tokenizer.patch
        assert isinstance(self.tokenizer, FrameTokenizer)
        return math.prod(self.tokenizer.tiles.patch)

    def check(self, units: Units) -> None:
        self._num_hidden((units.positions[:1] != NO_POSITION).sum(1).numpy())

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        values, positions, mask, _, example_indices = batch
        may_hide = mask & (positions[:, 0] != NO_POSITION)
        counts = may_hide.sum(1)
        draws = [torch.rand(n, generator=each) for n, each in zip(counts.tolist(), generators, strict=True)]
        noise = torch.full(mask.shape, math.inf).masked_scatter_(may_hide, torch.cat(draws))
        num_hidden = torch.from_numpy(self._num_hidden(counts.numpy()))
        is_hidden = noise.argsort(1).argsort(1) < num_hidden[:, None]
        hidden_values, hidden_positions, _ = _select(values, positions, is_hidden)
        # The tokens of a series also contain the moments of their channel, below the values of the patch.
        target = join_target(hidden_values[:, : self.num_values], hidden_positions)
        return Batch(*_select(values, positions, mask & ~is_hidden), target, example_indices)

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        num_fixed = int(isinstance(self.tokenizer, PatchTokenizer) and self.tokenizer.class_token is not None)
        visible = lengths[:, 0] - self._num_hidden(lengths[:, 0] - num_fixed)
        return np.stack([visible, np.ones_like(visible)], 1).astype(lengths.dtype)

    def _num_hidden(self, counts: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of hidden tokens of examples with `counts` tokens (B,)."""
        hidden = np.rint(self.share * counts).astype(np.int64)
        wrong = (hidden == 0) | (hidden == counts)
        if wrong.any():
            k = int(wrong.argmax())
            raise InputError(
                f"share={self.share} hides {hidden[k]} of the {counts[k]} patches of an example: the objective must "
                "hide some patches and show some; use smaller patches, or another share"
            )
        return hidden


def _select(values: Tensor, positions: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values, positions and mask of the chosen tokens of each example, in their order, padded on the right.

    Args:
        values: The values (B, P, N).
        positions: The positions (B, A, N).
        chosen: (B, N), True for the chosen tokens.
    """
    counts = chosen.sum(1, keepdim=True)
    order = (~chosen).byte().argsort(dim=1, stable=True)[:, : int(counts.max())]
    mask = torch.arange(order.shape[1]) < counts
    values, positions = (
        part.gather(2, order[:, None].expand(-1, part.shape[1], -1)).masked_fill_(~mask[:, None], fill)
        for part, fill in ((values, 0), (positions, NO_POSITION))
    )
    return values, positions, mask
