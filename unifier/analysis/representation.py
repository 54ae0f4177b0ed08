"""Measures of the similarity of two representations (CKA and shared nearest neighbors), compared with chance.

A representation is a matrix (E, D) of E examples. A similarity matrix (E, E) contains the similarities of all pairs of
examples in one representation, scaled to norm 1. A similarity measure is the inner product of two similarity matrices,
so the measure does not depend on D or on the basis.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unifier_tokenizers import InputError

SimilarityFn = Callable[[Tensor], Tensor]
"""A function from a representation (E, D) to a similarity matrix (E, E) of norm 1."""

EPSILON = 1e-6
"""Relative differences below this value are treated as rounding errors of float32."""


def similarity_matrix(x: Tensor) -> Tensor:
    """Return the inner products (E, E) of the centered examples, scaled to norm 1.

    All inner products are 0 if all examples are equal. The inner product of two matrices from this function is linear
    centered kernel alignment (CKA), from 0 to 1 (Kornblith et al. 2019, section 3). With few examples and a large D,
    CKA is high even for noise. CKA must therefore be compared with chance.
    """
    x = x.double()
    centered = x - x.mean(0)
    if centered.norm() <= EPSILON * x.norm():  # All differences are rounding errors.
        return x.new_zeros(len(x), len(x))
    products = centered @ centered.T
    return products / products.norm()


def nearest_neighbors(x: Tensor, k: int) -> Tensor:
    """Return a matrix (E, E) of norm 1 that marks the k nearest examples of each example, by cosine similarity.

    The inner product of two matrices from this function is the mean fraction of an example's k neighbors that both
    representations share (Huh et al. 2024, section 2). Equally near examples have equal weights.
    """
    if not 0 < k < len(x):
        raise InputError(f"k={k}: {len(x)} examples allow k from 1 to {len(x) - 1}; use more examples or another k")
    directions = torch.nn.functional.normalize(x.double())
    cosines = (directions @ directions.T / EPSILON).round_().fill_diagonal_(-torch.inf)
    threshold = cosines.topk(k, dim=1).values[:, -1:]
    is_nearer, is_tied = cosines > threshold, cosines == threshold
    shares = is_nearer + is_tied * (k - is_nearer.sum(1, keepdim=True)) / is_tied.sum(1, keepdim=True)
    return shares / shares.norm()


class Calibrated(NamedTuple):
    """Similarity of two representations, compared with chance."""

    value: float
    chance: float
    """The mean similarity over random permutations of one representation's examples."""
    calibrated: float
    """(value - chance) / (1 - chance), which is 0 at chance and 1 for equal similarity matrices."""
    p: float
    """The p-value: the fraction of permutations with a similarity of at least `value`.

    The identity is included as a permutation (Phipson and Smyth 2010).
    """


def calibrate(
    similarity: SimilarityFn, x: Tensor, others: Sequence[Tensor], *, permutations: int = 200, seed: int = 0
) -> list[Calibrated]:
    """Compare one representation with several other representations of the same E examples.

    Chance is estimated by random permutations of the examples of `x`. All comparisons use the same permutations.

    Args:
        similarity: `similarity_matrix`, or `nearest_neighbors` with a given k.
        x: A representation (E, D).
        others: The other representations (E, D'), with any D'.
        permutations: The number of permutations.
        seed: The seed of the permutations.
    """
    sizes = {len(representation) for representation in (x, *others)}
    if len(sizes) > 1:
        raise InputError(
            f"representations have {min(sizes)} and {max(sizes)} examples: all must have the same examples"
        )
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
