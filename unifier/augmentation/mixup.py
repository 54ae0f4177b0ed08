"""Augmentation of batches: several augmentations as one, and mixup."""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unifier.data.dataloader import Augmentation, Batch
from unifier.data.encoding import EncodedSplit
from unifier.data.storage import Crop
from unifier_tokenizers import InputError


@final
class Compose(Augmentation):
    """Several augmentations, applied one after the other."""

    def __init__(self, *augmentations: Augmentation) -> None:
        self.augmentations = augmentations

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        for augmentation in self.augmentations:
            batch = augmentation(batch, generator)
        return batch

    def max_length(self) -> int | None:
        """Return the smallest limit of the augmentations, or None if none has a limit."""
        limits = [augmentation.max_length() for augmentation in self.augmentations]
        return min((limit for limit in limits if limit is not None), default=None)

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        """Return the product of the augmentations' growth factors."""
        factors = [augmentation.expected_growth(split) for augmentation in self.augmentations]
        tokens, targets = zip(*factors, strict=True)
        return math.prod(tokens), math.prod(targets)

    def crop(self, lengths: Tensor, generator: torch.Generator) -> Crop | None:
        """Draw the window that the first augmentation needs: a later crop may depend on whole examples."""
        return self.augmentations[0].crop(lengths, generator)


@final
class RandomChoice(Augmentation):
    """Several augmentations, one of which is applied to a batch, each with the same probability."""

    def __init__(self, *augmentations: Augmentation) -> None:
        self.augmentations = augmentations

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        chosen = int(torch.randint(len(self.augmentations), (), generator=generator))
        return self.augmentations[chosen](batch, generator)

    def max_length(self) -> int | None:
        """Return the largest limit of the augmentations, or None if one has no limit."""
        limits = [augmentation.max_length() for augmentation in self.augmentations]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        """Return the mean of the augmentations' growth factors."""
        factors = [augmentation.expected_growth(split) for augmentation in self.augmentations]
        tokens, targets = zip(*factors, strict=True)
        return fmean(tokens), fmean(targets)


@final
@dataclass(frozen=True)
class Mixup(Augmentation):
    """Each example becomes a mean of itself and another, its target too (Zhang et al. 2018, section 2).

    The example's own share is drawn from Beta(alpha, alpha). Values may be pixels, spectrogram frames or anything else
    that has a mean; targets are labels, or tags. An example keeps its columns and their positions.
    """

    classes: int
    alpha: float
    repeat: bool = False
    """Whether examples of unlike length are mixed: of a longer one the beginning, a shorter one over and over again."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InputError(f"mixup={self.alpha}: a number above 0 is needed")

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Raises InputError for values that have no mean: ids, and a `Mixture`'s."""
        if batch.values.ndim != 3 or not (batch.values.dtype == torch.uint8 or batch.values.is_floating_point()):
            raise InputError("mixup: only pixels and frames have a mean, and these columns hold something else")
        partner = draw_partners(batch, generator, alike=not self.repeat)
        share = draw_shares(batch, self.alpha, generator)
        other = batch.values[partner]
        if self.repeat:
            places = torch.arange(other.shape[-1]) % batch.mask[partner].sum(1, keepdim=True)
            other = other.gather(2, places[:, None].expand_as(other)).masked_fill_(~batch.mask[:, None], 0)
        values = torch.lerp(other.float(), batch.values.float(), share[:, None, None])
        if not batch.values.is_floating_point():
            values = values.round_()
        target = mixed_target(batch.target, partner, share, self.classes)
        return batch._replace(values=values.to(batch.values.dtype), target=target)


def draw_partners(batch: Batch, generator: torch.Generator, *, alike: bool = True) -> Tensor:
    """For each example the one that it is mixed with (B,), each of them once.

    Where they are to be `alike` its columns are at the same positions; so an example may be alone with itself.
    """
    drawn = torch.randperm(len(batch.mask), generator=generator)
    if not alike:
        return drawn
    _, group = torch.unique(batch.positions.flatten(1), dim=0, return_inverse=True)
    others = torch.empty_like(drawn)
    others[group.argsort(stable=True)] = drawn[group[drawn].argsort(stable=True)]
    return others


def draw_shares(batch: Batch, alpha: float, generator: torch.Generator) -> Tensor:
    """Numbers from Beta(alpha, alpha), one for each example (B,) float."""
    seed = int(torch.randint(2**32, (), generator=generator))  # torch's own Beta takes no generator
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, len(batch.mask))).float()


def mixed_target(target: Tensor, partner: Tensor, share: Tensor, classes: int) -> Tensor:
    """Labels (B,), tags (B, C) or mixed labels (B, C, 1), with `share` (B,) of each and the rest of its partner's.

    Labels become distributions over the C classes. Raises InputError for a target that is neither label nor tags.
    """
    if target.ndim == 1 and not target.is_floating_point():
        target = functional.one_hot(target, classes).float()[..., None]
    if target.ndim == 1 or not target.is_floating_point():
        raise InputError(f"only labels and tags can be mixed, and a target has the shape {tuple(target.shape[1:])}")
    share = share.view(-1, *[1] * (target.ndim - 1))
    return torch.lerp(target[partner], target, share)
