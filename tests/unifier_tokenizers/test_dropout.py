import math

import pytest
import torch

from unifier_tokenizers import Dropout, InputError


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drops_the_share_and_keeps_the_mean(share: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    found = Dropout(share)(torch.ones(1000, 999, dtype=dtype))
    kept = found != 0
    assert kept.float().mean().item() == pytest.approx(1 - share, abs=0.002)
    assert found.float().mean().item() == pytest.approx(1, abs=0.01)
    for axis in (0, 1):  # no row and no column has more than its share
        spread = kept.float().mean(axis).std().item()
        assert spread == pytest.approx((share * (1 - share) / 1000) ** 0.5, rel=0.15)


def test_a_compiler_sees_through_it() -> None:
    torch.manual_seed(0)
    compiled = torch.compile(Dropout(0.4), backend="eager", fullgraph=True)
    found = compiled(torch.ones(1000, 100))
    assert (found == 0).float().mean().item() == pytest.approx(0.4, abs=0.01)


def test_neighbors_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(400_000)) != 0).float() - 0.5
    for lag in range(1, 9):
        assert abs((kept[:-lag] * kept[lag:]).mean().item()) < 0.002


def test_the_gradient_passes_where_the_entry_did() -> None:
    x = torch.randn(7, 5, 3, requires_grad=True)
    found = Dropout(0.4)(x)
    found.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(found != 0, 1 / 0.6, 0.0))


def test_an_odd_number_of_entries_and_a_strided_view_are_served() -> None:
    x = torch.ones(3, 7, 5).transpose(1, 2)
    assert Dropout(0.5)(x).shape == x.shape
    assert Dropout(0.5)(torch.ones(0, 4)).shape == (0, 4)


def test_the_seed_decides_and_each_call_differs() -> None:
    dropout, x = Dropout(0.5), torch.ones(64)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def test_rests_in_evaluation_and_at_zero() -> None:
    x = torch.randn(4, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("share", [-0.1, 1.0, 2, math.nan])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=f"dropout={share}"):
        Dropout(share)
