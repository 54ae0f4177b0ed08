"""Similarity of two representations of the same examples, and at chance: CKA, shared neighbors.

A representation is a matrix (E, D) of E examples. Both measures here compare which examples are near each other, so
that neither D nor its basis needs to be the same: a relation (E, E) is found within each, and the measure is the sum
of their products, entry by entry."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unifier_tokenizers import InputError

Relation = Callable[[Tensor], Tensor]
"""From a representation (E, D) to who is how near to whom (E, E), of norm 1."""


EPSILON = 1e-6
"""Numbers that lie less apart than this, as a share of their size, are the same: they were float32's."""


def similarity_matrix(x: Tensor) -> Tensor:
    """The inner products (E, E) of centerd examples, at norm 1; 0 where all examples are the same.

    Their measure is linear centerd kernel alignment, 0 to 1 (Kornblith et al. 2019, section 3). With few examples of
    many rows it is high for noise too: read it beside its chance.
    """
    x = x.double()
    centerd = x - x.mean(0)
    if centerd.norm() <= EPSILON * x.norm():  # what is left is rounding
        return x.new_zeros(len(x), len(x))
    products = centerd @ centerd.T
    return products / products.norm()


def nearest_neighbors(x: Tensor, k: int) -> Tensor:
    """Whether an example is one of another's k nearest by cosine (E, E), at norm 1.

    Their measure is the mean share of an example's k nearest that are so in the other representation too (Huh et al.
    2024, section 2). Examples that are equally near share the places that are left for them.
    """
    if not 0 < k < len(x):
        raise InputError(f"none of {len(x)} examples has {k} neighbors: take more examples, or fewer neighbors")
    directions = torch.nn.functional.normalize(x.double())
    cosines = (directions @ directions.T / EPSILON).round_().fill_diagonal_(-torch.inf)
    farthest = cosines.topk(k, dim=1).values[:, -1:]
    nearer, as_near = cosines > farthest, cosines == farthest
    places = nearer + as_near * (k - nearer.sum(1, keepdim=True)) / as_near.sum(1, keepdim=True)
    return places / places.norm()


class Calibrated(NamedTuple):
    """A measure beside what it gives where the examples of one representation are shuffled."""

    value: float
    chance: float
    """The mean over the permutations."""
    calibrated: float
    """0 at chance and 1 at equality: (value - chance) / (1 - chance)."""
    p: float
    """How often chance gives as much (Phipson and Smyth 2010: the order found counts as one of them)."""


def calibrate(
    relation: Relation, one: Tensor, others: Sequence[Tensor], *, permutations: int = 200, seed: int = 0
) -> list[Calibrated]:
    """Compare the relations within (E, D1) and within each of several (E, D2), the same E examples.

    Chance is what the first gives with its examples shuffled, in the same ways for all others.
    """
    sizes = {len(x) for x in (one, *others)}
    if len(sizes) > 1:
        raise InputError(f"{min(sizes)} and {max(sizes)} examples cannot be compared: represent the same ones")
    own, theirs = relation(one), torch.stack([relation(other) for other in others]).flatten(1)
    generator = torch.Generator().manual_seed(seed)
    values = theirs @ own.flatten()
    shuffled = own.new_empty(permutations, len(others))
    for i in range(permutations):
        order = torch.randperm(len(own), generator=generator)
        shuffled[i] = theirs @ own[order][:, order].flatten()
    chance = shuffled.mean(0)
    share = torch.where(chance < 1 - EPSILON, (values - chance) / (1 - chance), 0.0)
    p = ((shuffled >= values - EPSILON).sum(0) + 1) / (permutations + 1)
    return [Calibrated(*found) for found in torch.stack([values, chance, share, p], dim=-1).tolist()]
