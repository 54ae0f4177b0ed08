import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from unifier.nn import cross_entropy
from unifier.nn.cross_entropy import projected_cross_entropy

R, D, V = 37, 8, 50


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that are twice the same texts, read differently."""
    torch.manual_seed(0)
    hidden = (2 * torch.randn(2 * R, D)).to(dtype).requires_grad_()
    weight = torch.randn(V, D).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (R,)).repeat(2)


def plain(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, r_drop: float) -> Tensor:
    """The same by torch's own functions."""
    logits = hidden @ weight.T
    first, second = logits.log_softmax(-1).chunk(2)
    there, back = (
        functional.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((first, second), (second, first))
    )
    apart = (there + back) / 2 / len(first)
    return functional.cross_entropy(logits, target, label_smoothing=smoothing) + r_drop / 2 * apart


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("r_drop", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("at_once", [V, 5 * V, 10**6])
def test_loss_and_gradients_are_those_of_torch(
    smoothing: float, r_drop: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cross_entropy.CHUNK_TOKENS, "cpu", at_once)
    hidden, weight, target = problem(torch.float32)
    found = projected_cross_entropy(hidden, weight, target, smoothing, r_drop)
    (3 * found).backward()
    reference, table, _ = problem(torch.float64)
    with torch.no_grad():
        reference.copy_(hidden)
        table.copy_(weight)
    wanted = plain(reference, table, target, smoothing, r_drop)
    (3 * wanted).backward()
    torch.testing.assert_close(found, wanted.float())
    assert hidden.grad is not None
    assert weight.grad is not None
    assert reference.grad is not None
    assert table.grad is not None
    for gradient, exact in ((hidden.grad, reference.grad), (weight.grad, table.grad)):
        # torch's own, in float32, are up to 1e-6 of the largest away.
        assert (gradient - exact).abs().max() < 4e-6 * exact.abs().max()


@pytest.mark.parametrize("r_drop", [0.0, 4.0])
def test_bfloat16_products_stay_near_the_reference(r_drop: float) -> None:
    hidden, weight, target = problem(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = projected_cross_entropy(hidden.bfloat16(), weight, target, 0.1, r_drop)
    found.backward()
    got = weight.grad
    weight.grad = None
    wanted = plain(hidden, weight, target, 0.1, r_drop)
    wanted.backward()
    assert got is not None
    assert weight.grad is not None
    assert got.dtype == torch.float32
    assert found.item() == pytest.approx(wanted.item(), rel=0.01)
    assert (got - weight.grad).norm() < 0.02 * weight.grad.norm()


def test_far_logits_stay_exact() -> None:
    hidden, weight = torch.tensor([[300.0], [-300.0]], requires_grad=True), torch.tensor([[1.0], [0.0], [-1.0]])
    target = torch.tensor([2, 0])
    found = projected_cross_entropy(hidden, weight, target)
    assert found.item() == pytest.approx(600)
    found.backward()
    assert hidden.grad is not None
    torch.testing.assert_close(hidden.grad, torch.tensor([[1.0], [-1.0]]))


@pytest.mark.parametrize("r_drop", [0.0, 4.0])
def test_no_matrix_of_all_logits_exists(r_drop: float) -> None:
    rows, words = 4000, 2000
    hidden, weight = torch.randn(rows, 4, requires_grad=True), torch.randn(words, 4, requires_grad=True)
    with torch.profiler.profile(record_shapes=True, acc_events=True) as profile:
        projected_cross_entropy(hidden, weight, torch.randint(words, (rows,)), 0.1, r_drop).backward()
    largest = max(math.prod(shape) for event in profile.events() or [] for shape in event.input_shapes or [] if shape)
    assert largest <= cross_entropy.CHUNKS_PER_PRODUCT * cross_entropy.CHUNK_TOKENS["cpu"] < rows * words


def test_no_gradient_is_found_where_nothing_learns() -> None:
    hidden, weight, target = problem(torch.float32)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        found = projected_cross_entropy(hidden.detach(), weight, target)
    torch.testing.assert_close(found, functional.cross_entropy(hidden @ weight.T, target))
    assert counter.get_total_flops() == 2 * len(hidden) * weight.numel()
