"""Softmax in place is the exact one, rounded, for rows of any length and by either way."""

import pytest
import torch

from unifier.nn.precision import SHORT_ROW, softmax_, softmax_backward_, softmax_by_parts_

LENGTHS = [1, 7, 15, 16, 31, 32, 50]
"""On either side of what the processor's vectors hold."""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("keys", LENGTHS)
def test_softmax_is_the_exact_one_of_the_sum(keys: int, dtype: torch.dtype) -> None:
    scores = (5 * torch.randn(4, 3, 6, keys)).to(dtype)
    hidden = torch.zeros(4, 1, 1, keys, dtype=dtype)
    hidden[1, ..., 1:] = -torch.inf
    exact = (scores.double() + hidden).softmax(-1)
    found = softmax_(scores, hidden)
    assert found.data_ptr() == scores.data_ptr()
    torch.testing.assert_close(found, exact.to(dtype))
    assert (found[1, ..., 0] == 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("keys", LENGTHS)
def test_its_gradient_is_the_exact_one(keys: int, dtype: torch.dtype) -> None:
    weights, errors = torch.randn(4, 6, keys).softmax(-1).to(dtype), torch.randn(4, 6, keys).to(dtype)
    known, wanted = weights.double(), errors.double()
    exact = known * (wanted - (known * wanted).sum(-1, keepdim=True))
    found = softmax_backward_(errors, weights)
    assert found.data_ptr() == errors.data_ptr()
    # Of large parts a small difference is left, which is as exact as they are.
    torch.testing.assert_close(found, exact.to(dtype), rtol=0.016, atol=1e-3 if dtype == torch.bfloat16 else 1e-6)


def test_short_rows_never_meet_the_slow_kernel() -> None:
    for keys in (SHORT_ROW[torch.bfloat16] - 1, SHORT_ROW[torch.bfloat16]):
        weights = torch.randn(6, keys).bfloat16()
        with torch.profiler.profile(acc_events=True) as profile:
            softmax_backward_(torch.randn_like(weights), softmax_(weights))
        kernels = {event.name for event in profile.events() or [] if "_softmax" in event.name}
        assert bool(kernels) == (keys >= SHORT_ROW[torch.bfloat16])


def test_large_scores_do_not_overflow() -> None:
    scores = torch.tensor([[30000.0, 29000.0, -30000.0]]).bfloat16()
    assert softmax_by_parts_(scores).tolist() == [[1, 0, 0]]
