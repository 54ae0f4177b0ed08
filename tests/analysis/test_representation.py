"""Similarity of representations against their papers' formulas, and calibrated by chance."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from unifier.analysis.representation import Calibrated, SimilarityFn, calibrate, nearest_neighbors, similarity_matrix
from unifier_tokenizers import InputError

E = 40
NEIGHBORS = partial(nearest_neighbors, k=5)
BOTH_MEASURES = pytest.mark.parametrize("measure", [similarity_matrix, NEIGHBORS], ids=["cka", "neighbors"])


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    """Return representations (E, 6) and (E, 9) with a common part."""
    common = torch.randn(E, 4)
    x, y = (common @ torch.randn(4, dim) + torch.randn(E, dim) for dim in (6, 9))
    return x, y


def compare(measure: SimilarityFn, x: Tensor, y: Tensor, *, permutations: int = 200, seed: int = 0) -> Calibrated:
    return calibrate(measure, x, [y], permutations=permutations, seed=seed)[0]


def test_cka_is_a_ratio_of_hsic(pair: tuple[Tensor, Tensor]) -> None:
    x, y = (part.double() for part in pair)
    centering = torch.eye(E).double() - 1 / E

    def hsic(k: Tensor, other: Tensor) -> Tensor:
        """Compute the criterion of Gretton et al. 2005."""
        return torch.trace(k @ centering @ other @ centering) / (E - 1) ** 2

    k, other = x @ x.T, y @ y.T
    expected = hsic(k, other) / (hsic(k, k) * hsic(other, other)).sqrt()
    assert compare(similarity_matrix, x, y).value == pytest.approx(float(expected), rel=1e-5)
    assert 0.1 < expected < 0.95


def test_mutual_neighbors_equal_sklearn(pair: tuple[Tensor, Tensor]) -> None:
    search = NearestNeighbors(n_neighbors=5, metric="cosine")
    first, second = (search.fit(part.numpy()).kneighbors(return_distance=False) for part in pair)
    shares = [len(set(one) & set(other)) / 5 for one, other in zip(first, second, strict=True)]
    assert compare(NEIGHBORS, *pair).value == pytest.approx(np.mean(shares), rel=1e-5)


@BOTH_MEASURES
def test_measure_ignores_rotation_and_scale(measure: SimilarityFn, pair: tuple[Tensor, Tensor]) -> None:
    x, y = pair
    value = compare(measure, x, y).value
    assert compare(measure, x, 3 * y @ torch.linalg.qr(torch.randn(9, 9)).Q).value == pytest.approx(value, abs=1e-6)
    assert compare(measure, x, x).value == pytest.approx(1, abs=1e-6)
    assert compare(measure, y, x).value == pytest.approx(value, abs=1e-6)
    assert 0 < value < 1
    if measure is similarity_matrix:
        assert compare(measure, x + 5, y).value == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("measure", [similarity_matrix, partial(nearest_neighbors, k=8)], ids=["cka", "neighbors"])
def test_noise_is_calibrated_to_0(measure: SimilarityFn) -> None:
    results = [compare(measure, torch.randn(20, 500), torch.randn(20, 500), seed=i) for i in range(10)]
    assert min(result.value for result in results) > 0.3
    assert abs(np.mean([result.calibrated for result in results])) < 0.05
    assert np.mean([result.p for result in results]) > 0.2


@BOTH_MEASURES
def test_common_part_is_beyond_chance(measure: SimilarityFn, pair: tuple[Tensor, Tensor]) -> None:
    result = compare(measure, *pair, permutations=99)
    assert result.p == pytest.approx(1 / 100)
    assert result.chance < result.value
    assert result.calibrated == pytest.approx((result.value - result.chance) / (1 - result.chance))
    assert compare(measure, pair[0], pair[0]).calibrated == pytest.approx(1, abs=1e-6)
    assert compare(measure, *pair, permutations=99) == result


def test_chance_of_cka_is_the_product_of_traces(pair: tuple[Tensor, Tensor]) -> None:
    # This is the mean over all permutations of the inner product of two centered matrices.
    first, second = map(similarity_matrix, pair)
    expected = float(first.trace() * second.trace() / (E - 1))
    assert compare(similarity_matrix, *pair, permutations=3000).chance == pytest.approx(expected, rel=0.03)


def test_chance_of_neighbors_is_their_share() -> None:
    result = compare(NEIGHBORS, torch.randn(E, 30), torch.randn(E, 30), permutations=2000)
    assert result.chance == pytest.approx(5 / (E - 1), rel=0.03)


@BOTH_MEASURES
def test_equal_examples_have_no_similarity(measure: SimilarityFn) -> None:
    x, y = (torch.randn(1, 6).expand(E, 6) * (1 + 1e-7 * torch.randn(E, 1)) for _ in range(2))
    result = compare(measure, x, y)
    assert result.calibrated == pytest.approx(0, abs=1e-6)
    assert result.p == 1


def test_a_constant_has_cka_0() -> None:
    result = compare(similarity_matrix, torch.ones(E, 3), torch.randn(E, 3))
    assert (result.value, result.calibrated) == (0, 0)


@pytest.mark.slow
def test_tied_neighbors_do_not_follow_the_order() -> None:
    """Each representation has about 25 copies of four points, so each neighbor is one of many ties."""
    num_significant = 0
    for _ in range(20):
        x, y = (torch.eye(4)[torch.randint(4, (100,))] for _ in range(2))
        num_significant += compare(partial(nearest_neighbors, k=10), x, y).p <= 0.05
    assert num_significant <= 4


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="39 and 40"):
        compare(similarity_matrix, torch.randn(40, 3), torch.randn(39, 3))
    with pytest.raises(InputError, match="k=5: 5 examples"):
        nearest_neighbors(torch.randn(5, 3), 5)
