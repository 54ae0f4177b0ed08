"""The checks of a head's answers, and the mean of several tasks' scores."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.small_models import SOUND, small_model
from unifier.heads.head import Head, check_metrics, check_predictions, mean_score_percent, score_percent
from unifier.network import Network
from unifier_tokenizers import InputError, Tokens, pad_columns


class FakeHead(Head):
    """A head with given predictions and metrics."""

    def __init__(self, predictions: Any = (), metrics: Any = None) -> None:
        super().__init__()
        self.predictions, self.given_metrics = predictions, metrics

    def encode(self, target: Any) -> Tensor:
        return torch.tensor(target)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return tokens.matrix.mean()

    def predict(self, tokens: Tokens) -> Any:
        return self.predictions

    def metrics(self, predictions: Any, targets: Any) -> Any:
        return self.given_metrics


@pytest.mark.parametrize("metrics", [91.5, None, [91.5], torch.tensor(91.5), "accuracy"])
def test_metrics_need_a_mapping(metrics: Any) -> None:
    with pytest.raises(InputError, match=rf"^FakeHead\.metrics .*{type(metrics).__name__}.*mapping"):
        FakeHead(metrics=metrics).checked_metrics([], [])


def test_metrics_are_named_numbers_and_become_floats() -> None:
    for wrong in ({}, {"accuracy": "good"}, {"accuracy": torch.zeros(2)}):
        with pytest.raises(InputError, match=r"^FakeHead\.metrics"):
            check_metrics(FakeHead(), wrong)
    metrics = check_metrics(FakeHead(), {"a": torch.tensor(0.5), "b": 1})
    assert metrics == {"a": 0.5, "b": 1.0}
    assert all(type(score) is float for score in metrics.values())


@pytest.mark.parametrize(
    ("predictions", "given"),
    [
        (torch.zeros(3, 5), r"\(3, 5\)"),
        (torch.zeros(()), r"\(\)"),
        (None, "NoneType"),
        ({"a": 1, "b": 2, "c": 3}, "dict"),
        ("abc", "str"),
        (iter("abc"), "str_"),
        (["a"], "1 predictions"),
        (torch.zeros(4), "4 predictions"),
    ],
)
def test_predictions_are_one_per_example(predictions: Any, given: str) -> None:
    with pytest.raises(InputError, match=rf"^FakeHead\.predict .*{given}.*3 examples"):
        check_predictions(FakeHead(), predictions, 3)
    for sequence in (["a", "b", "c"], ("a", "b", "c"), list(torch.zeros(3, 5)), torch.zeros(3)):
        check_predictions(FakeHead(), sequence, 3)


def test_directions_are_of_known_metrics_and_errors_have_no_maximum() -> None:
    head = FakeHead()
    head.lower_is_better = frozenset({"nats"})
    with pytest.raises(InputError, match="lower_is_better contains 'nats'"):
        check_metrics(head, {"nat": 1.0})
    with pytest.raises(InputError, match="max_score=100"):
        check_metrics(head, {"nats": 1.0})
    assert check_metrics(head, {"accuracy": 1.0, "nats": 1.0})
    head.max_score = None
    assert check_metrics(head, {"nats": 1.0})


@pytest.mark.parametrize(
    ("score", "max_score", "chance", "percentage"),
    [
        *[(50.0, 100.0, None, 50), (0.7, 1.0, None, 70), (-3.0, None, None, -3)],
        *[(1.5, None, 2.0, 25), (3.0, None, 2.0, -50), (1.5, None, None, -1.5), (1.5, None, -2.0, -1.5)],
    ],
)
def test_percentages_of_scores_and_errors(
    score: float, max_score: float | None, chance: float | None, percentage: float
) -> None:
    is_error = max_score is None and score > 0
    assert score_percent(score, max_score, lower_is_better=is_error, chance=chance) == pytest.approx(percentage)
    assert mean_score_percent([percentage, math.nan, 10.0]) == pytest.approx((percentage + 10) / 2)
    assert math.isnan(mean_score_percent([math.nan]))


PICTURE = np.random.default_rng(0).integers(0, 256, (12, 8, 3)).astype(np.uint8)


def without_blanks(rows: Tensor) -> Tensor:
    path = rows.argmax(-1).unique_consecutive()
    return path[path != 0]


@pytest.mark.parametrize(
    ("kind", "raw", "answer"),
    [
        *[("text", "one two", Tensor.clone), ("tags", PICTURE, Tensor.clone), ("numbers", "one two", Tensor.clone)],
        *[("words", "one two", lambda rows: rows.argmax(-1)), ("segmentation", PICTURE, lambda x: x.argmax(0))],
        *[("symbols", SOUND, without_blanks), ("music", [[21], [30, 40]], lambda rows: rows[-1])],
        ("shop", [3, 17], lambda scores: scores.topk(10).indices),
    ],
)
def test_answer_follows_from_the_output_of_the_graph(kind: str, raw: Any, answer: Callable[[Tensor], Tensor]) -> None:
    model = small_model(kind)
    task, network = model.tasks[kind], Network(model.trunk, model.tasks).eval()
    values, positions, mask = pad_columns([task.tokenizer.encode(raw)])
    with torch.no_grad():
        tokens = task.head.run_trunk(network.trunk, Tokens(task.tokenizer.embed(values, positions), mask, positions))
        (prediction,), (output,) = task.head.predict(tokens), task.head.graph_output(tokens)
    torch.testing.assert_close(answer(output), torch.as_tensor(prediction), check_dtype=False)
    assert any("`output`" in step for step in task.head.describe_graph())
