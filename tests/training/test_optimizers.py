"""Each parameter has its own optimizer, two optimizers act as one, and the learning rate follows its schedule."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from unifier import InputError, PrefixHead, Transformer
from unifier.experiment import Schedule, Training
from unifier.training import optimizers as module
from unifier.training.optimizers import create_optimizer, learning_rate_factor, orthogonalize
from unifier_tokenizers import Vocabulary

D = 6


def model() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"table": nn.Embedding(5, D), "trunk": Transformer(D, 2, 2, 12), "out": nn.Linear(D, 3)})


def create(parts: nn.ModuleDict, **settings: Any) -> Optimizer:
    return create_optimizer(Training(steps=1, weight_decay=0.1, **settings), parts, parts["trunk"])


def walk(parts: nn.ModuleDict, optimizer: Optimizer, *, first: int = 0, last: int = 3) -> None:
    """Make steps with random gradients, which depend on the number of the step."""
    for step in range(first, last + 1):
        for i, parameter in enumerate(parts.parameters()):
            generator = torch.Generator().manual_seed(100 * step + i)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_own_optimizer_and_schedule_replace_ours() -> None:
    parts, alone = model(), model()
    walk(parts, create(parts, optimizer=torch.optim.SGD, learning_rate=0.01))
    matrices, others = ([p for p in alone.parameters() if (p.ndim >= 2) is is_matrix] for is_matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    walk(alone, torch.optim.SGD(groups, lr=0.01))
    assert all(map(torch.equal, parts.parameters(), alone.parameters()))
    training = Training(steps=9, schedule=lambda step, steps: step / steps)
    assert [learning_rate_factor(training, step, 9) for step in (0, 3, 9)] == [0, pytest.approx(1 / 3), 1]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"optimizer": lambda groups, lr: 3}, "optimizer=.*int"),
        ({"optimizer": lambda groups: 3}, "optimizer=.*lr"),
        ({"optimizer": 3}, "optimizer 3"),
        ({"schedule": lambda step, steps: math.nan}, "schedule=.*nan"),
    ],
)
def test_wrong_optimizer_or_schedule_is_one_line(settings: dict[str, Any], named: str) -> None:
    def use() -> None:
        learning_rate_factor(Training(steps=1, **settings), 0, 1)
        create(model(), **settings)

    with pytest.raises(InputError, match=named):
        use()


def test_weight_decay_is_for_matrices_only() -> None:
    parts = model()
    parts["head"] = PrefixHead(Vocabulary.fit(["a b"], size=10, level="word"), D)
    optimizer = create(parts)
    assert isinstance(optimizer, AdamW)
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    segment = parts["head"].get_parameter("segment")
    assert decays == {p: 0.1 if p.ndim == 2 and p is not segment else 0.0 for p in parts.parameters()}


def test_muon_trains_trunk_matrices_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_fast_bfloat16", lambda _: True)  # torch's Muon is always in bfloat16.
    parts, alone = model(), model()
    optimizer = create(parts, optimizer="muon", learning_rate=0.01)
    inside = [p for p in alone["trunk"].parameters() if p.ndim == 2]
    rest = [p for p in alone.parameters() if all(p is not other for other in inside)]
    muon = Muon(inside, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    matrices, others = ([p for p in rest if (p.ndim == 2) is is_matrix] for is_matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adamw = AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    for module_, optimizer_ in ((parts, optimizer), (alone, muon), (alone, adamw)):
        walk(module_, optimizer_)
    for (name, parameter), expected in zip(parts.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, msg=name)
    parts["trunk"].requires_grad_(False)
    assert isinstance(create(parts, optimizer="muon"), AdamW), "there is no matrix for Muon"


@pytest.mark.parametrize("can", [{"avx512_bf16": True}, {"avx2": True}], ids=["fast", "slow"])
def test_orthogonalize_is_in_bfloat16_if_fast(can: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    matrices = torch.randn(3, 2 * D, D, generator=torch.Generator().manual_seed(0))
    result = orthogonalize(matrices, (3.4445, -4.775, 2.0315), 5, 1e-7)
    assert result.dtype == (torch.bfloat16 if "avx512_bf16" in can else torch.float32)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    along = (left.mT @ result.float() @ right.mT).diagonal(dim1=1, dim2=2)
    assert ((along > 0.6) & (along < 1.3)).all(), "the range of Jordan et al. 2024"
    assert values.max() > 2, "the matrices were far from orthogonal"


def test_checkpoint_and_schedule_reach_both() -> None:
    whole, stopped = model(), model()
    optimizer = create(whole, optimizer="muon")
    walk(whole, optimizer)
    first = create(stopped, optimizer="muon")
    walk(stopped, first, last=1)
    again = create(stopped, optimizer="muon")
    again.load_state_dict(first.state_dict())
    schedule = torch.optim.lr_scheduler.LambdaLR(again, lambda step: float(step == 0))
    walk(stopped, again, first=2)
    for parameter, expected in zip(stopped.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected)
    schedule.step()
    before = [parameter.clone() for parameter in stopped.parameters()]
    walk(stopped, again)
    assert all(torch.equal(parameter, old) for parameter, old in zip(stopped.parameters(), before, strict=True))


def factors(schedule: Schedule, total: int, warmup: float = 0.1) -> list[float]:
    training = Training(steps=total, schedule=schedule, warmup_ratio=warmup)
    return [learning_rate_factor(training, step, total) for step in range(total)]


@pytest.mark.parametrize("schedule", ["cosine", "inverse_sqrt", "constant"])
@pytest.mark.parametrize("total", [1, 2, 10, 1000])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 1.0])
def test_learning_rate_rises_then_falls(schedule: Schedule, total: int, warmup: float) -> None:
    curve = factors(schedule, total, warmup)
    warmup_steps = max(round(warmup * total), 1)
    assert curve[warmup_steps - 1] == max(curve) == 1
    assert all(0 < factor <= 1 for factor in curve)
    rising, falling = curve[:warmup_steps], curve[warmup_steps - 1 :]
    assert rising == pytest.approx([(k + 1) / warmup_steps for k in range(warmup_steps)])
    assert falling == sorted(falling, reverse=True)


def test_cosine_schedule_equals_torch() -> None:
    total, warmup_steps = 200, 20
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup_steps)
    expected: list[float] = []
    for _ in range(total - warmup_steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    assert factors("cosine", total)[warmup_steps:] == pytest.approx(expected, abs=1e-6)
    assert learning_rate_factor(Training(steps=total), total, total) == pytest.approx(0, abs=1e-12)


def test_inverse_sqrt_halves_in_four_times_the_steps() -> None:
    curve = factors("inverse_sqrt", 1000)
    assert curve[399] / curve[99] == pytest.approx(0.5)
    assert curve[899] / curve[99] == pytest.approx(1 / 3)
    assert set(factors("constant", 50)[5:]) == {1.0}
