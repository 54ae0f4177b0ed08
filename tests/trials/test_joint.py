"""Experiments merged on one trunk, their budgets, and shuffled trunks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unifier import ClassificationHead, Experiment, MeanAttentionTrunk, Task, Training, Transformer, Trunk
from unifier.datasets import Digits
from unifier.trials.joint import budget_per_task, merge_experiments, shuffle, with_budget
from unifier_tokenizers import InputError, PatchTokenizer


def digits(name: str, trunk: Trunk | None = None, *tasks: str) -> Experiment:
    task = Task(Digits(), PatchTokenizer(8, channels=1), ClassificationHead(Digits.labels, 8))
    trunk = trunk or Transformer(8, 1, 2, 8)
    return Experiment(trunk, dict.fromkeys(tasks or (name,), task), Training(steps=2), name=name)


def test_merged_tasks_share_the_first_trunk() -> None:
    parts = [digits(name, Transformer(8, 1, 2, 8, dropout=0.1)) for name in ("one", "other")]
    joint = merge_experiments(parts)
    assert joint.trunk is parts[0].trunk
    assert list(joint.tasks) == ["one", "other"]
    assert joint.training.grad_accumulation == 2


@pytest.mark.parametrize(("grad_accumulation", "steps"), [(1, 8), (2, 4), (4, 4)])
def test_tasks_with_a_batch_in_a_step_share_it(grad_accumulation: int, steps: int) -> None:
    joint = merge_experiments([digits("one"), digits("other")])
    assert budget_per_task(joint, "steps") == 2
    joint = replace(joint, training=replace(joint.training, grad_accumulation=grad_accumulation))
    limited = with_budget(joint, "steps", 4)
    assert (limited.training.steps, budget_per_task(limited, "steps")) == (steps, 4)
    assert with_budget(joint, "tokens", 100).training.tokens == 200


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 4}, "head_dim is 4 in one and 2 in other"),
        ({"rotary": True}, "rotary is False in one and True in other"),
        ({"dropout": 0.2}, "is 0.0 in one and 0.2 in other"),
        ({"activation": "relu"}, "kind is GELU in one and ReLU in other"),
        ({"ffn_dim": 16}, "one and other"),
    ],
    ids=str,
)
def test_different_trunks_are_not_merged(changed: dict[str, Any], message: str) -> None:
    settings = dict[str, Any](dim=8, depth=1, heads=2, ffn_dim=8)
    parts = [digits("one", Transformer(**settings)), digits("other", Transformer(**settings | changed))]
    with pytest.raises(InputError, match=message):
        merge_experiments(parts)


def test_other_trunks_or_equal_tasks_are_not_combined() -> None:
    with pytest.raises(InputError, match="one and other"):
        merge_experiments([digits("one"), digits("other", MeanAttentionTrunk(8, 1, 8))])
    with pytest.raises(InputError, match=r'other .*"one"'):
        merge_experiments([digits("one"), digits("other", None, "one")])


def test_accumulated_steps_need_single_tasks() -> None:
    parts = [digits("one", None, "a", "b"), digits("other")]
    parts = [replace(part, training=replace(part.training, grad_accumulation=2)) for part in parts]
    with pytest.raises(InputError, match="several tasks"):
        merge_experiments(parts)
    in_tokens = [replace(part, training=replace(part.training, steps=None, tokens=100)) for part in parts]
    assert merge_experiments(in_tokens).training.tokens == 200


def shuffled(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    trunk = Transformer(8, 1, 2, 8)
    shuffle(trunk, seed)
    return trunk.state_dict()


def test_shuffled_order_depends_on_the_seed_alone() -> None:
    first, again, other = shuffled(1), shuffled(1), shuffled(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name, tensor in first.items() if tensor.ndim == 2]
    assert matrices
    for name in matrices:
        assert not torch.equal(first[name], other[name])
        assert torch.equal(first[name].flatten().sort().values, other[name].flatten().sort().values)
