"""Small experiments on digits, and an untrained fit of them."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol, final

import pytest
import torch

from unifier import ClassificationHead, Experiment, Result, Task, Training, Transformer, files
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.data.source import Example, Source, SplitName
from unifier.datasets import Digits
from unifier.training.fit import fit
from unifier.training.run_context import RunContext
from unifier_tokenizers import PatchTokenizer

D = 8


@final
class FewDigits:
    """The first digits of each split."""

    name = "digits"

    def __init__(self, train: int = 60, held_out: int = 20) -> None:
        self.sizes = {"train": train, "val": held_out, "test": held_out}

    def split(self, name: SplitName) -> list[Example]:
        return list(digits(self.sizes["val"]).split(name)[: self.sizes[name]])


@cache
def digits(held_out: int) -> Digits:
    """Return the digits, which are drawn once per process."""
    return Digits(val=held_out, test=held_out)


class MakeTask(Protocol):
    def __call__(self, source: Source | None = None) -> Task: ...


class MakeExperiment(Protocol):
    def __call__(self, *tasks: Task, dropout: float = 0.0, **training: Any) -> Experiment: ...


@pytest.fixture
def make_task() -> MakeTask:
    """Return a function that creates a task on a few digits."""

    def make(source: Source | None = None) -> Task:
        head = ClassificationHead(Digits.labels, D)
        return Task(source or FewDigits(), PatchTokenizer(D, channels=1), head)

    return make


@pytest.fixture
def make_experiment(make_task: MakeTask) -> MakeExperiment:
    """Return a function that creates an experiment on digits; its tasks are called a, b and so on."""

    def make(*tasks: Task, dropout: float = 0.0, **training: Any) -> Experiment:
        settings: dict[str, Any] = {"batch_tokens": 128, "num_validations": 1, "num_workers": 0, **training}
        settings |= {} if {"seconds", "epochs", "tokens"} & set(training) else {"steps": training.get("steps", 2)}
        named = dict(zip("abcdef", tasks or (make_task(),), strict=False))
        return Experiment(Transformer(D, 1, 2, 8, dropout=dropout), named, Training(**settings), name="digits")

    return make


@pytest.fixture
def run_tracked(make_experiment: MakeExperiment, tmp_path: Path) -> Callable[..., Result]:
    """Return a function that trains on digits with the given trackers, by default with none."""

    def train(origin: str = "", **context: Any) -> Result:
        options: dict[str, Any] = {"wandb": "off", **context}
        given = RunContext(tmp_path, "study", origin=origin, **options)
        return fit(lambda: make_experiment(steps=3), {"data": "embedded", "dim": D}, 0, given)

    return train


@pytest.fixture
def encode() -> Callable[..., dict[str, EncodedSplit]]:
    """Return a function that encodes the first examples of a split of each task."""

    def encode_first(tasks: Mapping[str, Task], split: Any = "train", count: int = 5) -> dict[str, EncodedSplit]:
        return {
            name: encode_split(
                [task.source.split(split)[k] for k in range(count)],  # pyright: ignore[reportArgumentType]
                task.tokenizer,
                task.head,
            )[0]
            for name, task in tasks.items()
        }

    return encode_first


@pytest.fixture
def read_metrics() -> Callable[[Path], list[dict[str, float]]]:
    """Return a function that reads metrics.csv without empty cells and without seconds."""

    def read(folder: Path) -> list[dict[str, float]]:
        with (folder / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [{name: float(cell) for name, cell in row.items() if cell and name != "budget/seconds"} for row in rows]

    return read


@pytest.fixture
def read_json() -> Callable[..., dict[str, Any]]:
    """Return a function that reads a JSON file of a run's folder, by default its result."""
    return lambda folder, name="result.json": json.loads((folder / name).read_text())


@pytest.fixture
def checkpoint_steps() -> Callable[[Path], list[int]]:
    """Return a function that reads the steps of the best and the last checkpoint of a run."""

    def read(folder: Path) -> list[int]:
        paths = [folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")]
        return [torch.load(path, weights_only=True)["global_step"] for path in paths]

    return read


@pytest.fixture
def fail_halfway() -> Callable[..., None]:
    """Return a function that makes each write fail in the middle of the files whose names contain one of the texts."""

    def patch_files(patch: pytest.MonkeyPatch, error: BaseException, *names: str) -> None:
        create = files.create_temporary

        class Half(io.BufferedWriter):
            def write(self, content: Any, /) -> int:
                super().write(content[: len(content) // 2])
                raise error

        def create_half(path: Path) -> io.BufferedWriter:
            file = create(path)
            return Half(file.detach()) if any(name in path.name for name in names) else file

        patch.setattr(files, "create_temporary", create_half)

    return patch_files
