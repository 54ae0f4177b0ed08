import math

import pytest
import torch

from unifier_tokenizers import Dropout, InputError


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_p_and_keeps_mean(p: float, dtype: torch.dtype) -> None:
    y = Dropout(p)(torch.ones(1000, 999, dtype=dtype))
    kept = y != 0
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=0.002)
    assert y.float().mean().item() == pytest.approx(1, abs=0.01)
    for axis in (0, 1):  # The spread over rows and columns is binomial.
        assert kept.float().mean(axis).std().item() == pytest.approx((p * (1 - p) / 1000) ** 0.5, rel=0.15)


@pytest.mark.slow
def test_dropout_compiles_without_graph_break() -> None:
    compiled = torch.compile(Dropout(0.4), backend="eager", fullgraph=True)
    assert (compiled(torch.ones(1000, 100)) == 0).float().mean().item() == pytest.approx(0.4, abs=0.01)


def test_dropout_neighbors_independent() -> None:
    kept = (Dropout(0.5)(torch.ones(400_000)) != 0).float() - 0.5
    for lag in range(1, 9):
        assert abs((kept[:-lag] * kept[lag:]).mean().item()) < 0.002


def test_dropout_gradient_is_mask() -> None:
    x = torch.randn(7, 5, 3, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(y != 0, 1 / 0.6, 0.0))


def test_dropout_keeps_shape_and_is_identity_in_eval_or_at_0() -> None:
    x = torch.ones(3, 7, 5).transpose(1, 2)
    assert (Dropout(0.5)(x).shape, Dropout(0.5)(torch.ones(0, 4)).shape) == (x.shape, (0, 4))
    assert Dropout(0.5).eval()(x) is Dropout(0.0)(x) is x


def test_dropout_seed_decides_each_call() -> None:
    dropout, x = Dropout(0.5), torch.ones(64)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("p", [-0.1, 1.0, 2, math.nan])
def test_dropout_p_outside_0_to_1_refused(p: float) -> None:
    with pytest.raises(InputError, match=f"dropout={p}"):
        Dropout(p)
