"""Splits and parts of one's own that look right and are not: each is one line before anything is trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unifier import ClassificationHead, Comparison, Example, Experiment, Task, Training, Transformer, run
from unifier.comparison import Mode
from unifier.data.dataset import Subset, open_split
from unifier.data.source import SplitName, describe_example, target_of
from unifier.datasets.digits import Digits
from unifier.datasets.parallel_text import ParallelText
from unifier.training.fit import RunContext
from unifier.trials.plan import plan_trials
from unifier.trials.trials import TrialRunner
from unifier_tokenizers import InputError, Mixture, PatchTokenizer, Tokenizer, Units

D = 4


@final
class Written(Tokenizer):
    """Columns as an example writes them down."""

    def __init__(self) -> None:
        super().__init__(D)
        self.map = nn.Linear(2, D)

    def encode(self, raw: Tensor) -> Units:
        return Units(raw, torch.arange(raw.shape[-1])[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return self.map(values.mT.float()).mT


@final
class Kept:
    """Inputs and targets under the names that most data sets have for them."""

    def __init__(self, data: Sequence[Any], target: Any) -> None:
        self.data, self.target, self.where = data, target, "here"

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.data[index], self.target[index]


@final
class Own:
    """The same split three times, unless another test is given."""

    name = "own"

    def __init__(self, split: Any, test: Any = None) -> None:
        self.every, self.test = split, split if test is None else test

    def split(self, name: SplitName) -> Any:
        return self.test if name == "test" else self.every


def trained(source: Own, out: Path) -> None:
    def own() -> Experiment:
        tasks = {"own": Task(source, Written(), ClassificationHead("ab", D))}
        return Experiment(Transformer(D, 1, 2, D), tasks, Training(steps=1, batch_tokens=16), name="own")

    run(own, out=out, track="off")


GOOD = [torch.ones(2, 3)] * 4
TARGETS = ["a", "b", "a", "b"]


@pytest.mark.parametrize("targets", [[0, 1, 0, 1], torch.tensor([0, 1, 0, 1])], ids=["list", "tensor"])
def test_a_split_may_hold_its_targets_under_any_name(targets: Any) -> None:
    source = Own(Kept(GOOD, targets))
    for split in (open_split(source, "train"), Subset(source, 0.5).split("train")):
        assert target_of(split, 1) in (0, 1)
        assert "example" in describe_example(split, 1)


@pytest.mark.parametrize(
    "split", [{"input": GOOD, "target": TARGETS}, iter([]), None], ids=["columns", "iterator", "none"]
)
def test_what_is_no_split_is_named(split: Any) -> None:
    source = Own([])
    source.every = split
    with pytest.raises(InputError, match=rf'own: split\("train"\) gives a {type(split).__name__}: a list is expected'):
        open_split(source, "train")


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (torch.ones(2, 0), r"values \(2, 0\) and positions \(1, 0\): N and A must be at least 1"),
        (torch.ones(2, 3).bfloat16(), "torch.bfloat16 values, which no data set is kept in"),
        (torch.ones(2, 3).long(), "an example of int64 .* stands beside one of float32 .*: encode all alike"),
    ],
    ids=["empty", "bfloat16", "unlike"],
)
def test_an_example_that_is_none_is_named_by_its_place(odd: Tensor, said: str, tmp_path: Path) -> None:
    examples = [Example(*pair) for pair in zip([*GOOD[:3], odd], TARGETS, strict=True)]
    with pytest.raises(InputError, match=f"own, train: example 3: .*{said}"):
        trained(Own(examples), tmp_path)


def test_a_split_laid_out_unlike_training_s_is_named_before_it_trains(tmp_path: Path) -> None:
    train, test = ([Example(torch.ones(rows, 3), target) for target in TARGETS] for rows in (2, 5))
    with pytest.raises(InputError, match=r"own, test: its values are float32 \(5, n\), and those to train on .*\(2, n"):
        trained(Own(train, test), tmp_path)
    assert not list(tmp_path.rglob("checkpoints"))


def test_a_member_of_a_mixture_without_columns_is_named() -> None:
    mixture = Mixture({"picture": PatchTokenizer(D, patch=2, channels=1), "own": Written()})
    with pytest.raises(InputError, match=r"member 'own': encode gives values \(2, 0\)"):
        mixture.encode({"picture": np.ones((4, 4), np.uint8), "own": torch.ones(2, 0)})


@pytest.mark.parametrize("labels", [[1, 2, 3], [True, False], range(3)])
def test_labels_are_texts(labels: Any) -> None:
    with pytest.raises(InputError, match="labels are texts, not"):
        ClassificationHead(labels, D)


def test_pairs_have_no_classes(tmp_path: Path) -> None:
    (tmp_path / "texts.tsv").write_text("one\tun\ntwo\tdeux\n")
    with pytest.raises(InputError, match="at least 3 examples are needed"):
        ParallelText(tmp_path / "texts.tsv").split("train")


def test_a_trunk_that_was_trained_before_is_no_random_control(tmp_path: Path) -> None:
    def digits() -> Experiment:
        trunk = Transformer(D, 1, 2, D)
        trunk.pretrained = True
        tasks = {"digits": Task(Digits(), PatchTokenizer(D, patch=4), ClassificationHead(Digits.labels, D))}
        return Experiment(trunk, tasks, Training(tokens=64), name="digits")

    def shapes() -> Experiment:
        return digits()

    def built(*modes: Mode) -> Experiment:
        trials = TrialRunner(Comparison("study", [digits, shapes], {}, (0,), modes), RunContext(tmp_path, "study"))
        return trials.build(next(iter(plan_trials(trials.comparison))))

    assert built("solo", "joint").trunk.pretrained
    with pytest.raises(InputError, match="the trunk of digits is trained before, so its control is not random"):
        built("transfer")
