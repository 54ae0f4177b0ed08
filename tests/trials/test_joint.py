"""Experiments become one on one trunk, or it is said why not."""

from dataclasses import replace
from typing import Any

import pytest

from unifier import Experiment
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.trials.joint import budget_per_task, merge_experiments, with_budget
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PatchTokenizer


def pictures(name: str, trunk: Trunk) -> Experiment:
    task = Task(Digits(), PatchTokenizer(8, channels=1), ClassificationHead(Digits.labels, 8))
    return Experiment(trunk, {name: task}, Training(steps=2), name=name)


def test_the_first_ones_trunk_is_that_of_all() -> None:
    parts = [pictures(name, Transformer(8, 1, 2, 8, dropout=0.1)) for name in ("one", "other")]
    joint = merge_experiments(parts)
    assert joint.trunk is parts[0].trunk
    assert list(joint.tasks) == ["one", "other"]
    assert joint.training.grad_accumulation == 2


@pytest.mark.parametrize(("grad_accumulation", "steps"), [(1, 8), (2, 4), (4, 4)])
def test_a_step_is_of_every_task_that_has_a_batch_in_it(accumulate: int, steps: int) -> None:
    """Four steps an task are eight of a batch each, and four where a step has a batch of either task, or two."""
    joint = merge_experiments([pictures(name, Transformer(8, 1, 2, 8)) for name in ("one", "other")])
    assert budget_per_task(joint, "steps") == 2, "as each has alone"
    both = replace(joint, training=replace(joint.training, grad_accumulation=accumulate))
    limited = with_budget(both, "steps", 4)
    assert (limited.training.steps, budget_per_task(limited, "steps")) == (steps, 4)
    assert with_budget(both, "tokens", 100).training.tokens == 200


@pytest.mark.parametrize(
    ("makes", "said"),
    [
        ({"heads": 4}, "head_dim is 4 in one and 2 in other"),
        ({"rotary": True}, "rotary is False in one and True in other"),
        ({"dropout": 0.2}, "share is 0.0 in one and 0.2 in other"),
        ({"activation": "relu"}, "kind is GELU in one and ReLU in other"),
    ],
    ids=str,
)
def test_trunks_that_compute_otherwise_are_not_taken_for_one(makes: dict[str, Any], said: str) -> None:
    parts = [
        pictures("one", Transformer(8, 1, heads=2, ffn_dim=8)),
        pictures("other", Transformer(**dict[str, Any](dim=8, depth=1, heads=2, ffn_dim=8) | makes)),
    ]
    with pytest.raises(InputError, match=f"joint: the trunks differ: .*{said}"):
        merge_experiments(parts)


def test_trunks_of_other_kinds() -> None:
    with pytest.raises(InputError, match="joint: the trunks of one and other are of different shapes"):
        merge_experiments([pictures("one", Transformer(8, 1, 2, 8)), pictures("other", MeanAttentionTrunk(8, 1, 8))])


def test_steps_of_several_batches_are_not_shared_out_among_several_tasks() -> None:
    one, other = (pictures(name, Transformer(8, 1, 2, 8)) for name in ("one", "other"))
    both = replace(one, tasks={**one.tasks, **pictures("third", one.trunk).tasks})
    parts = [replace(part, training=replace(part.training, grad_accumulation=2)) for part in (both, other)]
    with pytest.raises(InputError, match="joint: steps of several batches, of experiments with several tasks"):
        merge_experiments(parts)
    tokens = [replace(part, training=replace(part.training, steps=None, tokens=100)) for part in parts]
    assert merge_experiments(tokens).training.tokens == 200
