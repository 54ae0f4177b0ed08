"""Two measures of how alike representations are: as their papers write them, and calibrated against chance."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from unifier.analysis.representation import Calibrated, Relation, calibrate, nearest_neighbors, similarity_matrix
from unifier_tokenizers import InputError

E = 40


def related(noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """(E, 6) and (E, 9) that hold something in common."""
    common = torch.randn(E, 4)
    return tuple(common @ torch.randn(4, d) + noise * torch.randn(E, d) for d in (6, 9))  # pyright: ignore[reportReturnType]


def compare(relation: Relation, x: Tensor, y: Tensor, *, permutations: int = 200, seed: int = 0) -> Calibrated:
    """One representation against one other."""
    return calibrate(relation, x, [y], permutations=permutations, seed=seed)[0]


def test_linear_cka_is_the_ratio_of_hsics() -> None:
    x, y = (each.double() for each in related())
    centring = torch.eye(E).double() - 1 / E

    def hsic(k: Tensor, other: Tensor) -> Tensor:  # Gretton et al. 2005
        return torch.trace(k @ centring @ other @ centring) / (E - 1) ** 2

    k, other = x @ x.T, y @ y.T
    wanted = hsic(k, other) / (hsic(k, k) * hsic(other, other)).sqrt()
    assert compare(similarity_matrix, x, y).value == pytest.approx(float(wanted), rel=1e-5)
    assert 0.1 < wanted < 0.95


def test_mutual_neighbors_are_those_that_sklearn_finds_in_both() -> None:
    x, y, k = *related(), 5
    found = [
        NearestNeighbors(n_neighbors=k, metric="cosine").fit(each.numpy()).kneighbors(return_distance=False)
        for each in (x, y)
    ]
    shared = [len(set(one) & set(other)) / k for one, other in zip(*found, strict=True)]
    assert compare(partial(nearest_neighbors, k=k), x, y).value == pytest.approx(np.mean(shared), rel=1e-5)


@pytest.mark.parametrize("relation", [similarity_matrix, partial(nearest_neighbors, k=5)], ids=["cka", "neighbors"])
def test_a_rotation_and_a_scale_change_nothing(relation: partial[Tensor]) -> None:
    def measure(x: Tensor, y: Tensor) -> float:
        return compare(relation, x, y).value

    x, y = related()
    rotation = torch.linalg.qr(torch.randn(9, 9)).Q
    assert measure(x, 3 * y @ rotation) == pytest.approx(measure(x, y), abs=1e-6)
    assert measure(x, x) == pytest.approx(1, abs=1e-6)
    assert measure(x, y) == pytest.approx(measure(y, x), abs=1e-6)
    assert 0 < measure(x, y) < 1


def test_a_shift_changes_no_cka() -> None:
    x, y = related()
    assert compare(similarity_matrix, x + 5, y).value == pytest.approx(compare(similarity_matrix, x, y).value, abs=1e-6)


@pytest.mark.parametrize("relation", [similarity_matrix, partial(nearest_neighbors, k=8)], ids=["cka", "neighbors"])
def test_noise_is_calibrated_to_none_however_high_it_looks(relation: partial[Tensor]) -> None:
    found = [compare(relation, torch.randn(20, 500), torch.randn(20, 500), seed=i) for i in range(10)]
    assert min(each.value for each in found) > 0.3
    assert abs(np.mean([each.calibrated for each in found])) < 0.05
    assert np.mean([each.p for each in found]) > 0.2


@pytest.mark.parametrize("relation", [similarity_matrix, partial(nearest_neighbors, k=5)], ids=["cka", "neighbors"])
def test_what_is_related_is_so_beyond_chance_and_what_is_equal_is_one(relation: partial[Tensor]) -> None:
    x, y = related()
    found = compare(relation, x, y, permutations=99)
    assert found.p == pytest.approx(1 / 100)
    assert found.chance < found.value
    assert found.calibrated == pytest.approx((found.value - found.chance) / (1 - found.chance))
    assert compare(relation, x, x).calibrated == pytest.approx(1, abs=1e-6)
    assert compare(relation, x, y, permutations=99) == found


def test_chance_is_the_mean_over_permutations_that_is_known_for_centred_products() -> None:
    """The mean over all permutations of the inner product of two centerd matrices: traces over E - 1."""
    x, y = related()
    wanted = float(similarity_matrix(x).trace() * similarity_matrix(y).trace() / (E - 1))
    assert compare(similarity_matrix, x, y, permutations=3000).chance == pytest.approx(wanted, rel=0.03)


def test_the_chance_of_a_neighbor_is_that_of_drawing_one() -> None:
    x, y = torch.randn(E, 30), torch.randn(E, 30)
    assert compare(partial(nearest_neighbors, k=5), x, y, permutations=2000).chance == pytest.approx(
        5 / (E - 1), rel=0.03
    )


def test_a_representation_that_is_one_point_is_like_none() -> None:
    found = compare(similarity_matrix, torch.ones(E, 3), torch.randn(E, 3))
    assert (found.value, found.calibrated) == (0, 0)


def test_what_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="39 and 40 examples cannot be compared"):
        compare(similarity_matrix, torch.randn(40, 3), torch.randn(39, 3))
    with pytest.raises(InputError, match="none of 5 examples has 5 neighbors"):
        nearest_neighbors(torch.randn(5, 3), 5)


@pytest.mark.parametrize("relation", [similarity_matrix, partial(nearest_neighbors, k=5)], ids=["cka", "neighbors"])
def test_examples_that_are_all_the_same_are_like_nothing(relation: partial[Tensor]) -> None:
    one, other = (torch.randn(1, 6).expand(E, 6) * (1 + 1e-7 * torch.randn(E, 1)) for _ in range(2))
    found = compare(relation, one, other)
    assert found.calibrated == pytest.approx(0, abs=1e-6)
    assert found.p == 1


def test_equally_near_neighbors_are_found_by_no_order_of_the_examples() -> None:
    unlikely = 0
    for _ in range(20):
        one, other = (torch.eye(4)[torch.randint(4, (100,))] for _ in range(2))  # some 25 copies of each of four
        unlikely += compare(partial(nearest_neighbors, k=10), one, other).p <= 0.05
    assert unlikely <= 4
