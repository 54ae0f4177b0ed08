"""Numbers: overfitting in the units of the targets, metrics against scikit-learn, and numbers that are refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score

from unifier.heads.regression import RegressionHead, target_moments
from unifier.heads.score_intervals import score_intervals
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Tokens

D = 12
TARGETS: list[Any] = [(1e6, -2.0), [1e6 + 3, 0.5], np.array([1e6 + 1, 7.0])]


def make_head() -> RegressionHead:
    mean, std = target_moments(TARGETS)
    return RegressionHead(("size", "age"), D, mean=mean, std=std)


@pytest.mark.slow
def test_head_overfits_a_batch(tokens: Tokens) -> None:
    head, trunk = make_head(), Transformer(D, 1, 2, 20)
    target = torch.stack([head.encode(value) for value in TARGETS])
    torch.testing.assert_close(target.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(target.square().mean(0), torch.ones(2))
    optimizer = torch.optim.Adam([*head.parameters(), *trunk.parameters()], lr=0.02)
    for _ in range(120):
        optimizer.zero_grad()
        head.loss(trunk(tokens), target).backward()
        optimizer.step()
    predictions = head.predict(trunk(tokens))
    assert head.checked_metrics(predictions, TARGETS)["r2"] > 99
    torch.testing.assert_close(predictions[1], torch.tensor([1e6 + 3, 0.5], dtype=torch.float64), atol=0.3, rtol=0)


def test_predictions_ignore_the_batch(tokens: Tokens, single: Callable[[Tokens, int], Tokens]) -> None:
    head = make_head()
    for b, prediction in enumerate(head.predict(tokens)):
        torch.testing.assert_close(head.predict(single(tokens, b))[0], prediction, rtol=1e-9, atol=1e-5)


def test_metrics_equal_scikit_learn() -> None:
    head, rng = make_head(), np.random.default_rng(0)
    true = rng.normal(size=(50, 2)) * (1, 100) + (1e6, 3)
    guesses = true + rng.normal(size=(50, 2)) * (0.5, 30)
    metrics = head.checked_metrics([*torch.from_numpy(guesses)], [*true])
    assert metrics == {
        "r2": pytest.approx(100 * r2_score(true, guesses)),
        "mae": pytest.approx(mean_absolute_error(true, guesses)),
    }
    interval = score_intervals(head, [*torch.from_numpy(guesses)], [*true])["r2"]
    assert interval.low < metrics["r2"] < interval.high <= 100


@pytest.mark.parametrize(
    ("target", "message"),
    [((1.0, float("nan")), "age is nan"), ((float("inf"), 1), "size is inf"), (3, "1 numbers, but 2"), ("a", "'a'")],
)
def test_wrong_numbers_are_named(target: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_head().encode(target)


def test_constant_numbers_are_refused() -> None:
    mean, std = target_moments([(1, 2), (1, 3)])
    with pytest.raises(InputError, match="size is the same"):
        RegressionHead(("size", "age"), D, mean=mean, std=std)
    with pytest.raises(InputError, match="age is the same"):
        make_head().check_targets([(1, 2), (2, 2)])
    assert np.isnan(make_head().checked_metrics([torch.ones(2)] * 2, [(1, 2), (2, 2)])["r2"])
