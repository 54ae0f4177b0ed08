"""Similarity of two representations of the same examples, calibrated by chance: CKA and shared nearest neighbors.

A representation is a matrix (E, D) of E examples. Each measure first computes a similarity matrix (E, E) of norm 1
within each representation. The measure is the inner product of both matrices. It therefore does not depend on D or on
the basis.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unifier_tokenizers import InputError

SimilarityFn = Callable[[Tensor], Tensor]
"""A function from a representation (E, D) to a similarity matrix (E, E) of norm 1."""

EPSILON = 1e-6
"""Relative differences below this count as rounding, because the representations were float32."""


def similarity_matrix(x: Tensor) -> Tensor:
    """Return the inner products (E, E) of the centered examples, with norm 1; 0 if all examples are equal.

    The measure of these matrices is linear centered kernel alignment, from 0 to 1 (Kornblith et al. 2019, section 3).
    It is high even for noise if there are few examples and a large D, so it must be compared with chance.
    """
    x = x.double()
    centered = x - x.mean(0)
    if centered.norm() <= EPSILON * x.norm():  # The differences are rounding errors.
        return x.new_zeros(len(x), len(x))
    products = centered @ centered.T
    return products / products.norm()


def nearest_neighbors(x: Tensor, k: int) -> Tensor:
    """Return the matrix (E, E), with norm 1, that marks the k nearest examples of each example by cosine similarity.

    The measure of these matrices is the mean share of an example's k neighbors that are neighbors in the other
    representation too (Huh et al. 2024, section 2). Examples at equal distance share the remaining places.
    """
    if not 0 < k < len(x):
        raise InputError(f"k={k}: {len(x)} examples have 1 to {len(x) - 1} neighbors; use more examples or a smaller k")
    directions = torch.nn.functional.normalize(x.double())
    cosines = (directions @ directions.T / EPSILON).round_().fill_diagonal_(-torch.inf)
    threshold = cosines.topk(k, dim=1).values[:, -1:]
    is_nearer, is_tied = cosines > threshold, cosines == threshold
    shares = is_nearer + is_tied * (k - is_nearer.sum(1, keepdim=True)) / is_tied.sum(1, keepdim=True)
    return shares / shares.norm()


class Calibrated(NamedTuple):
    """A measure of similarity, and its value by chance."""

    value: float
    chance: float
    """The mean over random permutations of one representation's examples."""
    calibrated: float
    """0 at chance and 1 at equality: (value - chance) / (1 - chance)."""
    p: float
    """The p-value: the share of permutations with at least this value, the actual order included (Phipson and Smyth
    2010)."""


def calibrate(
    similarity: SimilarityFn, x: Tensor, others: Sequence[Tensor], *, permutations: int = 200, seed: int = 0
) -> list[Calibrated]:
    """Compare one representation with several others of the same E examples.

    Chance is estimated by permuting the examples of `x`; all others use the same permutations.

    Args:
        similarity: `similarity_matrix`, or `nearest_neighbors` with a given k.
        x: A representation (E, D).
        others: Representations (E, D'), where D' may differ.
        permutations: Number of permutations.
        seed: Seed of the permutations.
    """
    sizes = {len(representation) for representation in (x, *others)}
    if len(sizes) > 1:
        raise InputError(f"representations of {min(sizes)} and {max(sizes)} examples: both must have the same examples")
    matrix, matrices = similarity(x), torch.stack([similarity(other) for other in others]).flatten(1)
    generator = torch.Generator().manual_seed(seed)
    values = matrices @ matrix.flatten()
    permuted = matrix.new_empty(permutations, len(others))
    for i in range(permutations):
        order = torch.randperm(len(matrix), generator=generator)
        permuted[i] = matrices @ matrix[order][:, order].flatten()
    chance = permuted.mean(0)
    share = torch.where(chance < 1 - EPSILON, (values - chance) / (1 - chance), 0.0)
    p = ((permuted >= values - EPSILON).sum(0) + 1) / (permutations + 1)
    return [Calibrated(*row) for row in torch.stack([values, chance, share, p], dim=-1).tolist()]
