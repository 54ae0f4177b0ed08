"""Augmentations that combine others, and mixup of examples."""

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
        """Draw the window that the first augmentation needs; later ones run on what it returns."""
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
    """Weighted means of two examples and of their targets (Zhang et al. 2018, section 2).

    The weight of an example itself is drawn from Beta(alpha, alpha). Values may be pixels, spectrogram frames or
    anything else that has a mean; targets are labels or tags. An example keeps its tokens and their positions.
    """

    classes: int
    """Number of classes C of the targets."""
    alpha: float
    repeat: bool = False
    """Mix examples of different lengths too: the partner is cut, or repeated, to the length of the example."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InputError(f"mixup={self.alpha}: a number above 0 is needed")

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Mix each example with a random other one.

        Raises:
            InputError: If the values have no mean, such as token ids and the values of a `Mixture`.
        """
        if batch.values.ndim != 3 or not (batch.values.dtype == torch.uint8 or batch.values.is_floating_point()):
            raise InputError(
                f"mixup={self.alpha}: only pixels and frames can be averaged; this tokenizer's values are "
                f"{batch.values.dtype} {tuple(batch.values.shape[1:])}"
            )
        partners = draw_partners(batch, generator, same_positions=not self.repeat)
        weights = draw_weights(batch, self.alpha, generator)
        partner_values = batch.values[partners]
        if self.repeat:
            sources = torch.arange(partner_values.shape[-1]) % batch.mask[partners].sum(1, keepdim=True)
            partner_values = partner_values.gather(2, sources[:, None].expand_as(partner_values))
            partner_values.masked_fill_(~batch.mask[:, None], 0)
        values = torch.lerp(partner_values.float(), batch.values.float(), weights[:, None, None])
        if not batch.values.is_floating_point():
            values = values.round_()
        target = mix_targets(batch.target, partners, weights, self.classes)
        return batch._replace(values=values.to(batch.values.dtype), target=target)


def draw_partners(batch: Batch, generator: torch.Generator, *, same_positions: bool = True) -> Tensor:
    """Draw the partner of each example; every example is a partner once.

    Args:
        batch: B examples.
        generator: Source of the random numbers.
        same_positions: Pair only examples whose tokens have equal positions. An example without such a partner is
            paired with itself.

    Returns:
        Indices (B,) of the partners.
    """
    permutation = torch.randperm(len(batch.mask), generator=generator)
    if not same_positions:
        return permutation
    _, group = torch.unique(batch.positions.flatten(1), dim=0, return_inverse=True)
    partners = torch.empty_like(permutation)
    partners[group.argsort(stable=True)] = permutation[group[permutation].argsort(stable=True)]
    return partners


def draw_weights(batch: Batch, alpha: float, generator: torch.Generator) -> Tensor:
    """Draw the weight of each example itself (B,) float from Beta(alpha, alpha)."""
    seed = int(torch.randint(2**32, (), generator=generator))  # torch's Beta distribution takes no generator.
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, len(batch.mask))).float()


def mix_targets(target: Tensor, partners: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Return the weighted means of the targets of examples and their partners.

    Args:
        target: Labels (B,), tags (B, C) or mixed labels (B, C, 1). Labels become distributions (B, C, 1).
        partners: Indices (B,) of the partners.
        weights: Weights (B,) of the examples themselves.
        classes: Number of classes C.

    Raises:
        InputError: If the target is neither labels nor tags.
    """
    if target.ndim == 1 and not target.is_floating_point():
        target = functional.one_hot(target, classes).float()[..., None]
    if target.ndim == 1 or not target.is_floating_point():
        raise InputError(f"only labels and tags can be mixed, but a target has the shape {tuple(target.shape[1:])}")
    weights = weights.view(-1, *[1] * (target.ndim - 1))
    return torch.lerp(target[partners], target, weights)
