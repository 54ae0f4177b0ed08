"""Optimizers: what is whose, and that two of them go on together as one."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from unifier.experiment import Training
from unifier.heads.prefix_lm import PrefixHead
from unifier.training import optimizers as module
from unifier.training.optimizers import create_optimizer, orthogonalize
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Vocabulary

D = 6


def model() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"table": nn.Embedding(5, D), "trunk": Transformer(D, 2, 2, 12), "out": nn.Linear(D, 3)})


def of(parts: nn.ModuleDict, **settings: Any) -> Optimizer:
    return create_optimizer(Training(steps=1, weight_decay=0.1, **settings), parts, parts["trunk"])


def walk(parts: nn.ModuleDict, optimizer: Optimizer, *, first: int = 0, last: int = 3) -> None:
    """Steps along gradients that each step has its own of."""
    for step in range(first, last + 1):
        for i, parameter in enumerate(parts.parameters()):
            generator = torch.Generator().manual_seed(100 * step + i)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_weights_that_are_no_matrix_do_not_decay() -> None:
    parts = model()
    optimizer = of(parts)
    assert isinstance(optimizer, AdamW)
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {p: 0.1 if p.ndim == 2 else 0.0 for p in parts.parameters()}


def test_what_tells_written_columns_from_read_ones_does_not_decay() -> None:
    vocabulary = Vocabulary.fit(["a b"], size=10, level="word")
    parts = nn.ModuleDict({"trunk": Transformer(D, 2, 2, 12), "head": PrefixHead(vocabulary, D)})
    decays = {p: group["weight_decay"] for group in of(parts).param_groups for p in group["params"]}
    assert decays[parts["head"].get_parameter("side")] == 0


def test_muon_takes_the_trunks_matrices_and_each_weight_moves_as_its_own_optimizer_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "fast_bfloat16", lambda _: True)  # torch's is in bfloat16 anywhere
    parts, alone = model(), model()
    optimizer = of(parts, optimizer="muon", learning_rate=0.01)
    inside = [p for p in alone["trunk"].parameters() if p.ndim == 2]
    rest = [p for p in alone.parameters() if all(p is not other for other in inside)]
    muon = Muon(inside, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    groups = [
        {"params": [p for p in rest if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    for whole, one in ((parts, optimizer), (alone, muon), (alone, adamw)):
        walk(whole, one)
    for (name, found), expected in zip(parts.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, expected, msg=name)


@pytest.mark.parametrize("can", [{"avx512_bf16": True}, {"avx2": True}], ids=["fast", "slow"])
def test_muon_multiplies_in_bfloat16_where_that_is_fast(can: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    matrices = torch.randn(3, 2 * D, D, generator=torch.Generator().manual_seed(0))
    found = orthogonalize(matrices, (3.4445, -4.775, 2.0315), 5, 1e-7)
    assert found.dtype == (torch.bfloat16 if "avx512_bf16" in can else torch.float32)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    along = (left.mT @ found.float() @ right.mT).diagonal(dim1=1, dim2=2)
    assert ((along > 0.6) & (along < 1.3)).all(), "as near to 1 as Jordan et al. 2024 have them"
    assert values.max() > 2, "or there was nothing to bring near"


def test_a_schedule_and_a_checkpoint_reach_both() -> None:
    whole, stopped = model(), model()
    optimizer = of(whole, optimizer="muon")
    walk(whole, optimizer)
    first = of(stopped, optimizer="muon")
    walk(stopped, first, last=1)
    again = of(stopped, optimizer="muon")
    again.load_state_dict(first.state_dict())
    schedule = torch.optim.lr_scheduler.LambdaLR(again, lambda step: float(step == 0))
    walk(stopped, again, first=2)
    for found, expected in zip(stopped.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
    schedule.step()
    before = [parameter.clone() for parameter in stopped.parameters()]
    walk(stopped, again)
    assert all(torch.equal(found, old) for found, old in zip(stopped.parameters(), before, strict=True))


def test_a_frozen_trunk_leaves_muon_nothing() -> None:
    parts = model()
    parts["trunk"].requires_grad_(False)
    assert isinstance(of(parts, optimizer="muon"), AdamW)


def test_an_optimizer_by_another_name() -> None:
    with pytest.raises(InputError, match="muon"):
        Training(steps=1, optimizer="moun")  # pyright: ignore[reportArgumentType]
