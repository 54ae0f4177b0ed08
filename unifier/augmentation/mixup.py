"""Mixup of examples, and two classes that combine several augmentations."""

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
        """Return the smallest `max_length` of the augmentations, or None if no augmentation has a limit."""
        limits = [augmentation.max_length() for augmentation in self.augmentations]
        return min((limit for limit in limits if limit is not None), default=None)

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        """Multiply the augmentations' growth factors: the factors of N, and the factors of the target length."""
        factors = [augmentation.expected_growth(split) for augmentation in self.augmentations]
        tokens, targets = zip(*factors, strict=True)
        return math.prod(tokens), math.prod(targets)

    def crop(self, lengths: Tensor, generator: torch.Generator) -> Crop | None:
        """Draw the windows of the first augmentation, because later augmentations receive only cropped examples."""
        return self.augmentations[0].crop(lengths, generator)


@final
class RandomChoice(Augmentation):
    """Several augmentations. One augmentation is chosen for each batch, with equal probabilities."""

    def __init__(self, *augmentations: Augmentation) -> None:
        self.augmentations = augmentations

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        chosen = int(torch.randint(len(self.augmentations), (), generator=generator))
        return self.augmentations[chosen](batch, generator)

    def max_length(self) -> int | None:
        """Return the largest `max_length` of the augmentations, or None if any augmentation has no limit."""
        limits = [augmentation.max_length() for augmentation in self.augmentations]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        """Average the augmentations' growth factors: the factor of N, and the factor of the target length."""
        factors = [augmentation.expected_growth(split) for augmentation in self.augmentations]
        tokens, targets = zip(*factors, strict=True)
        return fmean(tokens), fmean(targets)


@final
@dataclass(frozen=True)
class Mixup(Augmentation):
    """Weighted means of two examples and of their targets (Zhang et al. 2018, section 2).

    Each example is mixed with a partner, which is a random example of the batch. The weight w of the example is drawn
    from Beta(alpha, alpha). The partner has the weight 1 - w. Values must be numbers that can be averaged, such as
    pixels or spectrogram frames. Targets must be labels or tags. Mixup does not change the number of tokens or their
    positions.
    """

    classes: int
    """Number of classes C of the targets."""
    alpha: float
    repeat: bool = False
    """If True, also mix examples of different lengths: the partner is shortened or repeated to the example's length."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InputError(f"mixup={self.alpha}: give a number above 0")

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Mix each example with a random partner from the batch.

        Raises:
            InputError: The values cannot be averaged, for example token ids or the values of a `Mixture`.
        """
        if batch.values.ndim != 3 or not (batch.values.dtype == torch.uint8 or batch.values.is_floating_point()):
            raise InputError(
                f"mixup={self.alpha}: only pixels and frames can be averaged, but this tokenizer's values are "
                f"{batch.values.dtype} {tuple(batch.values.shape[1:])}: turn off mixup for this task"
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
    """Draw a partner from the batch for each example. Every example is the partner of exactly one example.

    Args:
        batch: B examples.
        generator: Source of the random numbers.
        same_positions: If True, an example and its partner have equal token positions. An example is its own partner if
            no other example has equal positions.

    Returns:
        The index of each example's partner (B,).
    """
    permutation = torch.randperm(len(batch.mask), generator=generator)
    if not same_positions:
        return permutation
    _, group = torch.unique(batch.positions.flatten(1), dim=0, return_inverse=True)
    partners = torch.empty_like(permutation)
    partners[group.argsort(stable=True)] = permutation[group[permutation].argsort(stable=True)]
    return partners


def draw_weights(batch: Batch, alpha: float, generator: torch.Generator) -> Tensor:
    """Draw a weight (B,) float for each example from Beta(alpha, alpha)."""
    seed = int(torch.randint(2**32, (), generator=generator))  # torch's Beta distribution takes no generator.
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, len(batch.mask))).float()


def mix_targets(target: Tensor, partners: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Return the weighted mean of each example's target and its partner's target.

    Args:
        target: Labels (B,), tags (B, C) or mixed labels (B, C, 1). Labels are converted to distributions (B, C, 1).
        partners: The index of each example's partner (B,).
        weights: The weight w of each example (B,). The partner of an example has the weight 1 - w.
        classes: Number of classes C.

    Raises:
        InputError: The targets are neither labels nor tags.
    """
    if target.ndim == 1 and not target.is_floating_point():
        target = functional.one_hot(target, classes).float()[..., None]
    if target.ndim == 1 or not target.is_floating_point():
        raise InputError(
            f"only labels and tags can be mixed, but a target has the shape {tuple(target.shape[1:])}: turn off mixup "
            "and cutmix for this task"
        )
    weights = weights.view(-1, *[1] * (target.ndim - 1))
    return torch.lerp(target[partners], target, weights)
