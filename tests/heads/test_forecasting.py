"""Forecasts: overfitting in the units of the input, padding, metrics against NumPy, and constant channels."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unifier import SeriesTokenizer, Transformer
from unifier.data.dataloader import Batch
from unifier.heads.forecasting import ForecastingHead, Future
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import InputError, Tokens, pad_columns
from unifier_tokenizers.series import window_moments

D, CONTEXT, HORIZON = 12, 16, 3
SHAPES = {"patches": (4, 4), "channels": (CONTEXT, CONTEXT)}


def make_parts(kind: str) -> tuple[SeriesTokenizer, Transformer, ForecastingHead]:
    torch.manual_seed(0)
    patch, stride = SHAPES[kind]
    tokenizer = SeriesTokenizer(D, context=CONTEXT, patch=patch, stride=stride)
    return tokenizer, Transformer(D, 1, 2, 20), ForecastingHead(HORIZON, D, num_patches=tokenizer.num_patches)


def examples(*channels: int) -> list[tuple[NDArray[Any], Future]]:
    rng = np.random.default_rng(0)
    series = [torch.from_numpy(rng.normal(1000, 50, (count, CONTEXT + HORIZON))) for count in channels]
    return [(s[:, :CONTEXT].numpy(), Future(s[:, CONTEXT:], *window_moments(s[:, :CONTEXT]))) for s in series]


def make_batch(parts: Any, pairs: list[tuple[NDArray[Any], Future]]) -> tuple[Batch, Tokens]:
    tokenizer, trunk, head = parts
    targets = [head.encode(future) for _, future in pairs]
    target = torch.full((len(pairs), 2 + HORIZON, max(part.shape[1] for part in targets)), float(IGNORE_INDEX))
    for row, part in zip(target, targets, strict=True):
        row[:, : part.shape[1]] = part
    batch = Batch(*pad_columns([tokenizer.encode(past) for past, _ in pairs]), target)
    return batch, head.run_trunk(trunk, batch.embed(tokenizer))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
def test_head_overfits_a_batch(kind: str) -> None:
    parts, pairs = make_parts(kind), examples(1, 3, 2)
    parameters = [parameter for part in parts for parameter in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(300):
        batch, tokens = make_batch(parts, pairs)
        optimizer.zero_grad()
        (parts[2].loss(tokens, batch.target) / 2500).backward()
        optimizer.step()
    batch, tokens = make_batch(parts, pairs)
    futures = [future for _, future in pairs]
    assert parts[2].checked_metrics(parts[2].evaluate(tokens, batch.target), futures)["rmse"] < 5


@pytest.mark.parametrize("kind", SHAPES)
def test_answers_ignore_the_batch_and_have_the_units_of_the_input(kind: str) -> None:
    parts, pairs = make_parts(kind), examples(1, 3, 2)
    batch, tokens = make_batch(parts, pairs)
    together, losses = parts[2].predict_inputs(tokens, batch.values), list[float]()
    for prediction, pair in zip(together, pairs, strict=True):
        alone, own = make_batch(parts, [pair])
        (expected,) = parts[2].predict_inputs(own, alone.values)
        torch.testing.assert_close(prediction, expected, rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(parts[2].evaluate(own, alone.target)[0], expected, rtol=1e-5, atol=1e-3)
        losses += [parts[2].loss(own, alone.target).item()] * len(pair[0])
        scaled = (pair[0] * 7 - 100, pair[1])
        alone, own = make_batch(parts, [scaled])
        torch.testing.assert_close(
            parts[2].predict_inputs(own, alone.values)[0], expected * 7 - 100, rtol=1e-4, atol=1e-2
        )
    assert parts[2].loss(tokens, batch.target).item() == pytest.approx(np.mean(losses), rel=1e-4)


def test_metrics_equal_numpy() -> None:
    futures = [future for _, future in examples(1, 3)]
    guesses = [torch.randn(future.values.shape) for future in futures]
    errors = np.concatenate([(g.double() - f.values).numpy().ravel() for g, f in zip(guesses, futures, strict=True)])
    metrics = ForecastingHead(HORIZON, D).checked_metrics(guesses, futures)
    expected = {"mse": (errors**2).mean(), "mae": np.abs(errors).mean(), "rmse": (errors**2).mean() ** 0.5}
    assert metrics == {name: pytest.approx(value) for name, value in expected.items()}


def test_constant_channel_keeps_its_value() -> None:
    parts = make_parts("patches")
    past = np.full((1, CONTEXT), 0.1)
    batch, tokens = make_batch(parts, [(past, examples(1)[0][1])])
    assert parts[2].predict_inputs(tokens, batch.values)[0].tolist() == [[pytest.approx(0.1)] * HORIZON]


def test_wrong_horizon_is_refused() -> None:
    with pytest.raises(InputError, match="horizon=0"):
        ForecastingHead(0, D)
    with pytest.raises(InputError, match="horizon=4"):
        ForecastingHead(4, D).encode(examples(1)[0][1])
