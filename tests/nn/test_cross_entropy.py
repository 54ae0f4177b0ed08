"""The loss and its gradients equal torch's, without a matrix of all logits."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from unifier.nn import cross_entropy
from unifier.nn.cross_entropy import projected_cross_entropy

R, D, V = 37, 8, 50


def make_problem() -> tuple[Tensor, Tensor, Tensor]:
    """Return two passes over the same targets, as hidden states, weight and target."""
    hidden_states, weight = (2 * torch.randn(2 * R, D)).requires_grad_(), torch.randn(V, D).requires_grad_()
    return hidden_states, weight, torch.randint(V, (R,)).repeat(2)


def torch_loss(hidden_states: Tensor, weight: Tensor, target: Tensor, smoothing: float, r_drop: float) -> Tensor:
    """Return the loss by torch's own functions."""
    logits = hidden_states @ weight.T
    p, q = logits.log_softmax(-1).chunk(2)
    divergences = [functional.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))]
    loss = functional.cross_entropy(logits, target, label_smoothing=smoothing)
    return loss + r_drop / 2 * sum(divergences) / 2 / len(p)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("r_drop", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("chunk", [V, 5 * V, 10**6])
def test_loss_and_gradients_are_torchs(
    smoothing: float, r_drop: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cross_entropy.CHUNK_TOKENS, "cpu", chunk)
    hidden_states, weight, target = make_problem()
    loss = projected_cross_entropy(hidden_states, weight, target, smoothing, r_drop)
    exact_states, exact_weight = (part.detach().double().requires_grad_() for part in (hidden_states, weight))
    exact_loss = torch_loss(exact_states, exact_weight, target, smoothing, r_drop)
    torch.testing.assert_close(loss, exact_loss.float())
    gradients = torch.autograd.grad(3 * loss, (hidden_states, weight))
    for grad, exact in zip(gradients, torch.autograd.grad(3 * exact_loss, (exact_states, exact_weight)), strict=True):
        # torch's own float32 gradients differ by up to 1e-6 of the largest.
        assert (grad - exact).abs().max() < 4e-6 * exact.abs().max()


@pytest.mark.parametrize("r_drop", [0.0, 4.0])
def test_bfloat16_products_near_float32(r_drop: float) -> None:
    hidden_states, weight, target = make_problem()
    with torch.autocast("cpu", torch.bfloat16):
        loss = projected_cross_entropy(hidden_states.bfloat16(), weight, target, 0.1, r_drop)
    (grad,) = torch.autograd.grad(loss, weight)
    exact_loss = torch_loss(hidden_states, weight, target, 0.1, r_drop)
    (exact,) = torch.autograd.grad(exact_loss, weight)
    assert grad.dtype == torch.float32
    assert loss.item() == pytest.approx(exact_loss.item(), rel=0.01)
    assert (grad - exact).norm() < 0.02 * exact.norm()


def test_extreme_logits_stay_exact() -> None:
    hidden_states = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    weight, target = torch.tensor([[1.0], [0.0], [-1.0]]), torch.tensor([2, 0])
    loss = projected_cross_entropy(hidden_states, weight, target)
    assert loss.item() == pytest.approx(600)
    (grad,) = torch.autograd.grad(loss, hidden_states)
    torch.testing.assert_close(grad, torch.tensor([[1.0], [-1.0]]))


@pytest.mark.slow
@pytest.mark.parametrize("r_drop", [0.0, 4.0])
def test_no_matrix_of_all_logits_exists(r_drop: float) -> None:
    rows, entries = 4000, 2000
    hidden_states, weight = torch.randn(rows, 4, requires_grad=True), torch.randn(entries, 4, requires_grad=True)
    with torch.profiler.profile(record_shapes=True, acc_events=True) as profile:
        projected_cross_entropy(hidden_states, weight, torch.randint(entries, (rows,)), 0.1, r_drop).backward()
    largest = max(math.prod(shape) for event in profile.events() or [] for shape in event.input_shapes or [] if shape)
    assert largest <= cross_entropy.CHUNKS_PER_PRODUCT * cross_entropy.CHUNK_TOKENS["cpu"] < rows * entries


def test_no_gradient_computed_without_need() -> None:
    hidden_states, weight, target = make_problem()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        loss = projected_cross_entropy(hidden_states.detach(), weight, target)
    torch.testing.assert_close(loss, functional.cross_entropy(hidden_states @ weight.T, target))
    assert counter.get_total_flops() == 2 * len(hidden_states) * weight.numel()
