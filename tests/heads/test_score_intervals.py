"""Intervals of scores over test examples: right values, and the share of intervals that contain the true score."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from torch.nn import functional

from unifier import ClassificationHead, Head, RecurrentHead, TaggingHead, Tokens, Vocabulary
from unifier.heads import score_intervals as score_intervals_module
from unifier.heads.score_intervals import score_intervals, wilson_interval


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
