"""Preparation of a task's data: one encoding per task, checks of the splits, the overlap warning, the description."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unifier.data import prepare
from unifier.data.dataset import Subset
from unifier.data.prepare import EncodedTask, describe_data, prepare_task
from unifier.data.source import Example
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training.run_data import encode_tasks
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Tokenizer, Units

D = 4


@final
class RawTokenizer(Tokenizer):
    """Tokenizer whose units are the raw tensor."""

    def __init__(self) -> None:
        super().__init__(D)
        self.map = nn.Linear(2, D)

    def encode(self, raw: Tensor) -> Units:
        return Units(raw, torch.arange(raw.shape[-1])[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return self.map(values.mT.float()).mT


def examples(*inputs: Any) -> list[Example]:
    return [Example(raw, "ab"[k % 2]) for k, raw in enumerate(inputs)]


GOOD = [torch.full((2, 3), float(k)) for k in range(9)]


def own(**splits: Any) -> Any:
    """Return a source of these splits, or of GOOD."""
    return SimpleNamespace(name="own", split=lambda name: splits.get(name, examples(*GOOD)))


def prepared(source: Any) -> EncodedTask:
    return prepare_task(source, RawTokenizer(), ClassificationHead("ab", D), bad_examples="stop", num_workers=0)


@pytest.mark.parametrize(
    ("part", "inputs", "problem"),
    [
        ("train", [*GOOD[:3], torch.ones(2, 0)], r"example 3: .*values \(2, 0\)"),
        ("train", [*GOOD[:3], torch.ones(2, 3).bfloat16()], "example 3: .*torch.bfloat16"),
        ("train", [*GOOD[:3], torch.ones(2, 3).long()], "example 3: .*int64 .*float32"),
        ("test", [torch.ones(5, 3)] * 4, r"its values are float32 \(5, n\).*\(2, n\)"),
    ],
    ids=["empty", "bfloat16", "other dtype", "other layout"],
)
def test_invalid_units_name_the_example(part: str, inputs: list[Tensor], problem: str) -> None:
    with pytest.raises(InputError, match=f"own, {part}: {problem}"):
        prepared(own(**{part: examples(*inputs)}))


def test_invalid_score_range_is_refused_first() -> None:
    good, odd = own(), own()
    odd.score_range = ("accuracy", 0.0, 99.0, "a paper")
    first, second = (Task(source, RawTokenizer(), ClassificationHead("ab", D)) for source in (good, odd))
    encoded: dict[str, EncodedTask] = {}
    with pytest.raises(InputError, match="own: its score_range is a tuple"):
        encode_tasks(Experiment(Transformer(D, 0, 2, D), {"a": first, "b": second}, Training(steps=1)), encoded)
    assert encoded == {}


def test_split_redrawn_at_each_call_is_refused() -> None:
    same = examples(*[torch.ones(2, 3)] * 40)
    with pytest.raises(InputError, match=r'redrawn: split\("train"\)'):
        prepared(SimpleNamespace(name="redrawn", split=lambda _: Random().sample(same, 40)))


def overlap(source: Any, capsys: pytest.CaptureFixture[str]) -> str:
    prepare.warn_of_overlap(source)
    return capsys.readouterr().err


def with_copies(make: Callable[[int], Any]) -> Any:
    """Return a source in which one input of val and two of test are also in train."""
    raws = [make(k) for k in range(20)]
    test = examples(*raws[14:], make(0), make(9))
    return own(train=examples(*raws[:10]), val=examples(make(3), *raws[10:14]), test=test)


@pytest.mark.parametrize(
    "make",
    [
        *["text {}".format, lambda k: np.full((4, 4), k, np.uint8), lambda k: torch.full((2, 3), k).bfloat16()],
        lambda k: {"image": np.full(3, k), "text": str(k)},
    ],
    ids=["text", "array", "tensor", "mixture"],
)
def test_overlap_with_train_is_reported(make: Callable[[int], Any], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = overlap(with_copies(make), capsys).splitlines()
    assert re.match("own: .*1 of 5 in val.*2 of 8 in test", line)


def test_disjoint_splits_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for source in (Digits(), GrammarPairs(train=600, val=50, test=50), Subset(Digits(), 0.1)):
        assert overlap(source, capsys) == ""


def test_overlap_skips_unpicklable_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    source = own(train=examples("a", lambda: 0, "b"), val=examples(lambda: 0, "b"), test=examples(lambda: 0))
    assert "1 of 1 in val and 0 of 0 in test" in overlap(source, capsys)


class Counted(list[Example]):
    """A split that counts its reads."""

    reads = 0

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.slow
def test_overlap_reads_a_bounded_sample(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    train, held_out = Counted(examples(*range(25_000))), Counted(examples(*range(5000)))
    source = own(train=train, val=held_out, test=examples(-1))
    monkeypatch.setattr(prepare, "COMPARE_SECONDS", dict.fromkeys(("train", "val", "test"), 60.0))
    assert "of 1,667 in val" in overlap(source, capsys)
    assert (train.reads, held_out.reads) == (12_500, 1_667)
    monkeypatch.setattr(prepare, "COMPARE_SECONDS", dict.fromkeys(("train", "val", "test"), 0.0))
    train.reads = held_out.reads = 0
    overlap(source, capsys)
    assert (train.reads, held_out.reads) == (1, 1)


def test_overlap_is_left_to_sources_with_copies(capsys: pytest.CaptureFixture[str]) -> None:
    source = with_copies(lambda k: torch.full((2, 3), float(k)))
    first = prepared(source)
    assert "1 of 5 in val" in capsys.readouterr().err
    source.copies = 0
    again = prepared(source)
    assert capsys.readouterr().err == ""
    assert again.data == first.data
    source.copies = 3
    assert prepared(source).data == {**first.data, "copies": 3}
    assert "own: 3 examples of val and test" in capsys.readouterr().err


def test_description_has_the_sizes_of_the_splits_and_a_hash() -> None:
    data = describe_data(own(train=examples("a", "b"), val=examples("c"), test=[]), {"val": 1})
    assert len(data.pop("sha256")) == 64
    assert data == {"name": "own", "train": 2, "val": 1, "test": 0, "skipped": {"val": 1}}


HASH = """
import torch
from unifier.data.prepare import sha256_of
from unifier.data.source import Example

class Tensors:
    name, labels = "tensors", ("calm", "sad", "tender")

    def __init__(self, value):
        self.value = value

    def split(self, name):
        wide = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        return [Example((wide.mT, torch.tensor(self.value)), {"sad", "calm", "tender"})]

print(*(sha256_of(Tensors(value)) for value in (0.5, 0.25)))
"""


@pytest.mark.slow
def test_hash_is_equal_in_every_process() -> None:
    def hashes(seed: int) -> list[str]:
        # Another amount of memory in use changes where torch stores the tensors.
        ballast = f"import torch; kept = torch.zeros({1 + seed * 100_000})\n"
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", ballast + HASH]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()

    first, second = hashes(0)
    assert first != second
    assert hashes(1) == [first, second]
