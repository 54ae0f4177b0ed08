"""Intervals of scores over test examples: right values, and the share of intervals that contain the true score."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from torch.nn import functional

from unifier import ClassificationHead, ForecastingHead, Head, RecurrentHead, TaggingHead, Tokens, Vocabulary
from unifier.heads import score_intervals as score_intervals_module
from unifier.heads.average_precision import BoxEvaluation
from unifier.heads.detection import Boxes, FoundBoxes
from unifier.heads.forecasting import Future
from unifier.heads.score_intervals import MIN_TIME_BLOCKS, score_intervals, wilson_interval
from unifier.heads.token_detection import TokenDetectionHead


@pytest.mark.slow
def test_accuracy_has_wilsons_interval() -> None:
    # Wilson 1927 with z = 1.96: (p + z²/2n ± z sqrt(p q / n + z²/4n²)) / (1 + z²/n).
    assert wilson_interval(90, 100)[:2] == pytest.approx((82.56, 94.48), abs=0.01)
    assert wilson_interval(10, 10)[:2] == pytest.approx((72.25, 100), abs=0.01)


@pytest.mark.slow
def test_macro_f1_of_a_resample_is_the_heads_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    true, guess = rng.integers(3, size=(2, 80))  # Label 3 never occurs.
    head, answers = ClassificationHead("abcd", 4), list(functional.one_hot(torch.tensor(guess), 4).float())
    low, high, _ = score_intervals(head, answers, true.tolist())["macro_f1"]
    expected = head.metrics(answers, true.tolist())["macro_f1"]
    assert low < expected < high
    monkeypatch.setattr(score_intervals_module, "_draw", lambda counts: [np.tile(counts, (50, 1))] * 2)
    assert score_intervals(head, answers, true.tolist())["macro_f1"][:2] == pytest.approx((expected, expected))


@pytest.mark.slow
def test_bleu_interval_equals_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    targets = [" ".join(rng.choice(list("abcdef"), 8)) for _ in range(60)]
    answers = [text[:8] + " ".join(rng.choice(list("abcdef"), 4)) for text in targets]
    head = RecurrentHead(Vocabulary.fit(targets, size=300), 4, depth=1)
    intervals = score_intervals(head, answers, targets)
    monkeypatch.setattr(score_intervals_module, "MAX_BLOCK", 60 * 7)  # Many blocks give the same resamples.
    assert score_intervals(head, answers, targets) == intervals
    expected: Any = BLEU().corpus_score(answers, [targets], n_bootstrap=1000)
    assert intervals["bleu"].high - intervals["bleu"].low == pytest.approx(2 * expected._ci, rel=0.1)
    assert intervals.keys() == {"bleu", "chrf", "bleu_moses_lower"}


@final
class Mean(Head):
    """A head whose metric fails for some resamples, or is not a number."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault

    def encode(self, target: Any) -> Tensor:
        return torch.tensor(target)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return target

    def predict(self, tokens: Tokens) -> list[float]:
        return []

    def metrics(self, predictions: Sequence[float], targets: Sequence[float]) -> Mapping[str, float]:
        if self.fault == "raises":
            raise ZeroDivisionError
        return {"error": float("nan") if self.fault else -float(np.mean(targets))}


@pytest.mark.slow
def test_other_metrics_are_resampled_or_left_out() -> None:
    targets = np.random.default_rng(0).normal(5, 1, 100).tolist()
    low, high, _ = score_intervals(Mean(), targets, targets)["error"]
    assert (low, high) == pytest.approx((-5 - 0.2, -5 + 0.2), abs=0.15)
    for fault in ("raises", "nan"):
        assert score_intervals(Mean(fault), targets, targets) == {}
    assert score_intervals(TaggingHead("ab", 4), [torch.ones(2)] * 3, [["a"]] * 3) == {}
    assert score_intervals(Mean(), [1.0], [1.0]) == {}


def forecasts(noise: np.ndarray[Any, Any], horizon: int) -> tuple[list[Tensor], list[Future]]:
    """Return forecasts of 0 for all windows of a series whose values are the noise, in reverse order of time."""
    zero = torch.zeros(1, horizon)
    starts = range(len(noise) - horizon, -1, -1)
    futures = [Future(torch.tensor(noise[None, k : k + horizon]), zero[:, :1], zero[:, :1], k) for k in starts]
    return [zero] * len(futures), futures


@pytest.mark.slow
def test_blocks_of_forecasts_cover_the_true_error() -> None:
    """Errors of overlapping windows are correlated, so an interval of independent windows would be too short."""
    horizon, rng, covered, widths = 12, np.random.default_rng(0), 0, list[float]()
    for _ in range(30):
        low, high, method = score_intervals(ForecastingHead(horizon, 4), *forecasts(rng.normal(size=400), horizon))[
            "mse"
        ]
        assert str(horizon) in method
        covered += low <= 1 <= high
        widths.append(high - low)
    assert covered >= 24
    # The standard error of the mean of 400 squared normal values is sqrt(2 / 400).
    assert np.mean(widths) == pytest.approx(2 * 1.96 * (2 / 400) ** 0.5, rel=0.3)


def test_few_blocks_of_forecasts_have_no_interval() -> None:
    assert score_intervals(ForecastingHead(10, 4), *forecasts(np.ones(10 * (MIN_TIME_BLOCKS + 1) - 2), 10)) == {}
    assert score_intervals(ForecastingHead(10, 4), *forecasts(np.ones(10 * (MIN_TIME_BLOCKS + 1) - 1), 10)) != {}


def boxes_of_pictures(count: int, seed: int) -> tuple[list[FoundBoxes], list[Boxes]]:
    """Return pictures with true boxes of two classes, and found boxes that are shifted, missing or wrong."""
    rng = np.random.default_rng(seed)
    true, found = list[Boxes](), list[FoundBoxes]()
    for _ in range(count):
        corners = rng.uniform(0, 100, (int(rng.integers(1, 5)), 2))
        corners = np.hstack([corners, corners + rng.uniform(10, 40, corners.shape)])
        labels = rng.integers(0, 2, len(corners))
        true.append(Boxes(corners, labels))
        shifted = np.vstack([corners + rng.normal(0, 3, corners.shape), corners[:1] + 50])
        answers = np.append(labels, 0), np.sort(rng.random(len(shifted)))[::-1].copy()
        found.append(FoundBoxes(torch.tensor(shifted, dtype=torch.float32), *map(torch.tensor, answers)))
    return found, true


@pytest.mark.slow
def test_average_precision_of_all_pictures_is_the_heads_and_has_an_interval() -> None:
    head = TokenDetectionHead(["a", "b", "c"], 8, patch=16)
    found, true = boxes_of_pictures(8, 0)
    scores = head.metrics(found, true)
    for seed in range(6):
        found, true = boxes_of_pictures(8, seed)
        scores, precisions = head.metrics(found, true), 100 * BoxEvaluation(found, true, 3).precisions(np.arange(8))
        assert np.nanmean(precisions[0]) == pytest.approx(scores["ap50"], abs=0.01)
        assert np.nanmean(precisions) == pytest.approx(scores["ap"], abs=0.01)
        assert precisions[0, :2] == pytest.approx([scores["ap50_a"], scores["ap50_b"]], abs=0.01)
        assert np.isnan(precisions[:, 2]).all()
    intervals = score_intervals(head, found, true)
    assert intervals.keys() == {"ap50", "ap", "ap50_a", "ap50_b"}
    assert intervals["ap50"].low < scores["ap50"] < intervals["ap50"].high
    # A picture that is drawn twice counts like two equal pictures.
    twice = BoxEvaluation([*found, found[0]], [*true, true[0]], 3).precisions(np.arange(9))
    drawn = BoxEvaluation(found, true, 3).precisions(np.array([*range(8), 0]))
    np.testing.assert_allclose(drawn, twice)
