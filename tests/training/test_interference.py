"""Gradients of tasks that share a trunk are compared layer by layer."""

import csv
import resource
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from unifier import Experiment, run
from unifier.data.source import Example, SplitName
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training.callbacks import GracefulStop
from unifier.training.gradient_conflict import GradientConflict
from unifier.training.result import Interrupted
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

D = 16


class Named:
    """Digits whose labels are called by other names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.name, self.names = "named", names
        self.labels = Digits.labels

    def split(self, name: SplitName) -> list[Example]:
        some = list(Digits().split("train"))[:64]
        return [Example(picture, self.names[label]) for picture, label in some]


def tasks(other: Mapping[str, str]) -> dict[str, Task]:
    """Two tasks with one tokenizer and one head: only what they are asked for differs."""
    same = {label: label for label in Digits.labels}
    tokenizer = PatchTokenizer(D, patch=2, channels=1)
    head = ClassificationHead(Digits.labels, D)
    return {"one": Task(Named(same), tokenizer, head), "other": Task(Named(other), tokenizer, head)}


def alike(*, steps: int = 40, accumulate: int = 1) -> Experiment:
    """The same task twice."""
    training = Training(steps=steps, grad_accumulation=accumulate, batch_tokens=512, num_validations=1, num_workers=0)
    return Experiment(
        Transformer(D, 2, 2, 16), tasks({label: label for label in Digits.labels}), training, name="alike"
    )


def contrary(*, steps: int = 40, accumulate: int = 1) -> Experiment:
    """What one task calls 0 the other calls 9, so that what helps the one harms the other."""
    training = Training(steps=steps, grad_accumulation=accumulate, batch_tokens=512, num_validations=1, num_workers=0)
    turned = dict(zip(Digits.labels, reversed(Digits.labels), strict=True))
    return Experiment(Transformer(D, 2, 2, 16), tasks(turned), training, name="contrary")


def cosines(folder: Path) -> dict[tuple[str, str, str], list[float]]:
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with (folder / "interference.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["layer"], row["task_a"], row["task_b"]].append(float(row["cosine"]))
    return found


def windows(folder: Path) -> set[int]:
    with (folder / "interference.csv").open(newline="") as file:
        return {int(row["step"]) for row in csv.DictReader(file)}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_each_pair_of_tasks_has_a_cosine_for_each_layer_and_window(tmp_path: Path) -> None:
    [result] = run(alike, out=tmp_path, track="off")
    found = cosines(result.folder)
    pairs = {("one", "one"), ("one", "other"), ("other", "other")}
    assert {(a, b) for _, a, b in found} == pairs
    assert {layer for layer, _, _ in found} == {"blocks.0", "blocks.1", "norm"}
    assert all(len(values) >= 19 and all(-1 <= value <= 1 for value in values) for values in found.values())


@pytest.mark.parametrize("grad_accumulation", [1, 2])
def test_tasks_that_want_the_same_agree_as_one_with_itself_and_tasks_that_do_not_disagree(
    tmp_path: Path, accumulate: int
) -> None:
    [same] = run(alike, grad_accumulation=accumulate, out=tmp_path, track="off")
    [other] = run(contrary, grad_accumulation=accumulate, out=tmp_path, track="off")
    agreeing, opposed = cosines(same.folder), cosines(other.folder)
    for layer in ("blocks.0", "blocks.1"):
        assert mean(agreeing[layer, "one", "other"]) > mean(agreeing[layer, "one", "one"]) - 0.2
        assert mean(opposed[layer, "one", "other"]) < mean(opposed[layer, "one", "one"]) - 0.2


def test_its_file_is_whole_though_the_disk_is_full(tmp_path: Path) -> None:
    nobody: Any = None
    found, path = GradientConflict(tmp_path), tmp_path / "interference.csv"
    found.on_train_end(nobody, nobody)
    header = "step,tokens,layer,task_a,task_b,cosine\n"
    assert path.read_bytes() == header.encode()
    found.tokens[0] = 0, 128
    found.sums[0]["blocks.0", ("one", "other")] = [0.25, 0.75]
    found.on_train_end(nobody, nobody)
    whole = path.read_bytes()
    assert whole == f"{header}0,128,blocks.0,one,other,0.5\n".encode()
    found.sums[0]["norm", ("one", "other")] = [1.0]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            found.on_train_end(nobody, nobody)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == whole


def test_a_run_that_goes_on_finds_what_it_would_have_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [whole] = run(alike, out=tmp_path, track="off")
    ask = GracefulStop.on_train_batch_start

    def in_the_middle(self: GracefulStop, trainer: Any, model: Any, batch: Any, batch_idx: int) -> None:
        self.asked = trainer.global_step == 20
        ask(self, trainer, model, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(GracefulStop, "on_train_batch_start", in_the_middle)
        with pytest.raises(Interrupted) as stop:
            run(alike, out=tmp_path, track="off")
    [ended] = run(alike, resume=Path(str(stop.value)), track="off")
    first, second = (sorted((run.folder / "interference.csv").read_text().splitlines()) for run in (ended, whole))
    assert first == second
