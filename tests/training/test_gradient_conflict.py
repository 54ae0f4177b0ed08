"""Gradients of tasks that share a trunk are compared layer by layer."""

import csv
import resource
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from unifier import ClassificationHead, Experiment, Task, Training, Transformer
from unifier.data.source import Example
from unifier.datasets import Digits
from unifier.training.callbacks import GracefulStop
from unifier.training.fit import fit
from unifier.training.gradient_conflict import GradientConflict, layer_of
from unifier.training.result import Interrupted, Result
from unifier.training.run_context import RunContext
from unifier_tokenizers import PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

D = 16
SAME = {label: label for label in Digits.labels}
REVERSED = dict(zip(Digits.labels, reversed(Digits.labels), strict=True))


def renamed(names: Mapping[str, str]) -> Any:
    """Return digits whose labels are exchanged."""
    examples = [Example(image, names[label]) for image, label in list(Digits().split("train"))[:64]]
    return SimpleNamespace(name="renamed", labels=Digits.labels, split=lambda _: examples)


Fit = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Fit:
    """Return a function that trains two tasks with one tokenizer and one head, so that only their labels differ."""

    def train(names: Mapping[str, str] = SAME, grad_accumulation: int = 1, resume: Path | None = None) -> Result:
        def build() -> Experiment:
            tokenizer, head = PatchTokenizer(D, patch=2, channels=1), ClassificationHead(Digits.labels, D)
            tasks = {"one": Task(renamed(SAME), tokenizer, head), "other": Task(renamed(names), tokenizer, head)}
            settings: dict[str, Any] = {"batch_tokens": 512, "num_validations": 1, "num_workers": 0}
            training = Training(steps=40, grad_accumulation=grad_accumulation, **settings)
            return Experiment(Transformer(D, 2, 2, 16), tasks, training, name="pair")

        return fit(build, {}, 0, RunContext(tmp_path, "study", wandb="off"), resume=resume)

    return train


def cosines(folder: Path) -> dict[tuple[str, str, str], list[float]]:
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with (folder / "interference.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values[row["layer"], row["task_a"], row["task_b"]].append(float(row["cosine"]))
    return values


@pytest.mark.slow
@pytest.mark.parametrize("grad_accumulation", [1, 2])
def test_opposed_tasks_have_lower_cosines(grad_accumulation: int, run: Fit) -> None:
    agreeing = cosines(run(SAME, grad_accumulation).folder)
    opposed = cosines(run(REVERSED, grad_accumulation).folder)
    assert {(a, b) for _, a, b in agreeing} == {("one", "one"), ("one", "other"), ("other", "other")}
    assert {layer for layer, _, _ in agreeing} == {"blocks.0", "blocks.1", "norm"}
    assert all(len(values) >= 19 and all(-1 <= value <= 1 for value in values) for values in agreeing.values())
    for layer in ("blocks.0", "blocks.1"):
        assert fmean(agreeing[layer, "one", "other"]) > fmean(agreeing[layer, "one", "one"]) - 0.2
        assert fmean(opposed[layer, "one", "other"]) < fmean(opposed[layer, "one", "one"]) - 0.2


@pytest.mark.slow
def test_resumed_run_has_the_same_cosines(run: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run()
    on_start = GracefulStop.on_train_batch_start

    def stop_at_half(self: GracefulStop, trainer: Any, *given: Any) -> None:
        self.requested = trainer.global_step == 20
        on_start(self, trainer, *given)

    with monkeypatch.context() as patch:
        patch.setattr(GracefulStop, "on_train_batch_start", stop_at_half)
        with pytest.raises(Interrupted) as stop:
            run()
    resumed = run(resume=Path(str(stop.value)))
    first, second = (sorted((each.folder / "interference.csv").read_text().splitlines()) for each in (resumed, whole))
    assert first == second


def test_full_disk_keeps_the_file_before(tmp_path: Path) -> None:
    unused: Any = None
    callback, path = GradientConflict(tmp_path), tmp_path / "interference.csv"
    callback.window_starts[0] = 0, 128
    callback.cosines[0]["blocks.0", ("one", "other")] = [0.25, 0.75]
    callback.on_train_end(unused, unused)
    content = path.read_text()
    assert content == "step,tokens,layer,task_a,task_b,cosine\n0,128,blocks.0,one,other,0.5\n"
    callback.cosines[0]["norm", ("one", "other")] = [1.0]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            callback.on_train_end(unused, unused)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == content


def test_layer_of_parameter() -> None:
    names = ("blocks.0.attention.weight", "norm.weight", "weight")
    assert [layer_of(name) for name in names] == ["blocks.0", "norm", "weight"]
