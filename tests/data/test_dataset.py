"""Map-style data sets as splits, examples of files, and shares of a train split."""

import importlib
import json
import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from unifier.data.cache import fit_once
from unifier.data.dataset import Examples, LabeledFile, Subset, from_files, open_split
from unifier.data.prepare import sha256_of
from unifier.data.source import Example, ScoreRange, Split, SplitName, describe_example, readable_examples, target_of
from unifier.data.statistics import median_duration, median_side
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.heads.head import Head
from unifier.launch import run
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import FrameTokenizer, InputError, PatchTokenizer, Tokens

D = 8
PICTURES = np.arange(12 * 64).reshape(12, 8, 8).astype(np.uint8)
LABELS = ("even", "odd")


@final
class Rows:
    """A table like Hugging Face's `Dataset`, which returns a row as a dictionary and a slice as one of columns."""

    def __init__(self) -> None:
        self.log: list[int] = []

    def __len__(self) -> int:
        return len(PICTURES)

    def __getitem__(self, key: int) -> dict[str, Any]:
        assert type(key) is int, "a slice or an array is not a row number"
        self.log.append(key)
        return {"id": key, "input": PICTURES[key], "target": LABELS[key % 2]}


def one_split(items: Any) -> Any:
    """Return a source whose three splits are one data set."""
    return SimpleNamespace(name="own", items=items, split=lambda _: items)


def pairs() -> list[Any]:
    return [(PICTURES[k], LABELS[k % 2]) if k % 3 else [PICTURES[k], LABELS[k % 2]] for k in range(len(PICTURES))]


MAKE: dict[str, Callable[[], Split]] = {
    "levels": lambda: TensorDataset(torch.from_numpy(PICTURES), torch.arange(len(PICTURES)).float()),
    "numbers": lambda: TensorDataset(torch.from_numpy(PICTURES), torch.arange(len(PICTURES)) % 2),
    "pairs": pairs,
    "dictionaries": lambda: [{"input": picture, "target": label} for picture, label in pairs()],
    "rows": Rows,
}


@pytest.mark.parametrize("kind", MAKE)
def test_items_become_examples(kind: str) -> None:
    source = one_split(MAKE[kind]())
    split = open_split(source, "train")
    assert len(split) == len(PICTURES)
    for examples in (split, list(split[:]), list(readable_examples(source.items)), pickle.loads(pickle.dumps(split))):
        for k in range(len(PICTURES)):
            assert isinstance(examples[k], Example)
            assert np.array_equal(examples[k].input, PICTURES[k])
            assert examples[k].target in (LABELS[k % 2], k, k % 2)
    assert target_of(split, 3) in ("odd", 3, 1)
    assert median_side(source) == 8


@final
class LevelHead(Head):
    """A regression head for targets that torch's data sets return as tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(D, 1)

    def encode(self, target: Tensor) -> Tensor:
        assert isinstance(target, Tensor)
        return target

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return (self.out(tokens.matrix.mean(2))[:, 0] - target).square().mean()

    def predict(self, tokens: Tokens) -> list[Tensor]:
        return list(self.out(tokens.matrix.mean(2))[:, 0])

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[Tensor]) -> dict[str, float]:
        return {"near": -float((torch.stack([*predictions]) - torch.stack([*targets])).abs().mean())}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.usefixtures("undrawn")
def test_items_are_trained_on_and_sampled(kind: str, tmp_path: Path) -> None:
    def own() -> Experiment:
        head = LevelHead() if kind == "levels" else ClassificationHead(LABELS, D)
        task = Task(one_split(MAKE[kind]()), PatchTokenizer(D, channels=1), head)
        training = Training(steps=2, batch_tokens=64, num_validations=1, num_workers=0)
        return Experiment(Transformer(D, 1, 2, 8), {"own": task}, training, name="own")

    (result,) = run(own, out=tmp_path, track="off")
    assert result.data["own"]["train"] == len(PICTURES)
    (samples,) = json.loads((result.folder / "samples.json").read_text()).values()
    assert (len(samples), {"image", "input", "target", "prediction"}) == (len(PICTURES), samples[0].keys())
    if kind != "levels":
        assert {sample["target"] for sample in samples} == {*LABELS}


def test_pair_of_audio_and_label_is_an_example() -> None:
    music = SyntheticMusic(train=4, val=2, test=2, seconds=1.0)
    source = one_split([(example.input, example.target) for example in music.split("train")])
    assert isinstance(open_split(source, "train")[0].input, tuple)  # An Audio is a pair itself.
    assert median_duration(source) == 1
    fitted, expected = (FrameTokenizer(D, sample_rate=8000) for _ in range(2))
    fit_once(fitted, source)
    fit_once(expected, music)
    assert all(torch.equal(a, b) for a, b in zip(fitted.buffers(), expected.buffers(), strict=True))


def test_rows_are_read_on_access() -> None:
    rows = Rows()
    subset = Subset(one_split(rows), 0.25)
    train, val = subset.split("train"), open_split(subset, "val")
    assert (len(train), len(val), rows.log) == (3, len(PICTURES), [])
    assert [example.target in LABELS for example in train] == [True] * 3
    assert len(rows.log) == 3


def test_methods_of_a_split_stay_available() -> None:
    class Named(list[Any]):
        def example_id(self, index: int) -> str:
            return f"line {index + 1}"

        def target(self, index: int) -> str:
            return "known"

    split = open_split(one_split(Named(pairs())), "test")
    assert (describe_example(split, 2), target_of(split, 2)) == ("line 3", "known")
    assert describe_example(open_split(one_split(pairs()), "test"), 2) == "example 2"
    examples = Examples(range(3), Digits().split("train").__getitem__, str)
    assert open_split(one_split(examples), "train") is examples


@pytest.mark.parametrize("targets", [[0, 1, 0, 1], torch.tensor([0, 1, 0, 1])], ids=["list", "tensor"])
def test_attributes_are_not_taken_for_methods(targets: Any) -> None:
    @final
    class Stored:
        target, example_id = targets, "here"

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            return index, targets[index]

    source = one_split(Stored())
    for split in (open_split(source, "train"), Subset(source, 0.5).split("train")):
        assert target_of(split, 1) in (0, 1)
        assert "example" in describe_example(split, 1)


@pytest.mark.parametrize("split", [{"input": PICTURES, "target": LABELS}, iter([]), None])
def test_split_that_is_not_map_style_is_refused(split: Any) -> None:
    with pytest.raises(InputError, match=rf'own: split\("train"\) returns a {type(split).__name__}'):
        open_split(one_split(split), "train")


def test_item_that_is_no_example_is_refused() -> None:
    split: Any = open_split(one_split(["ab"]), "train")
    for examples in (split, Examples([0], lambda _: "ab", str)):  # pyright: ignore[reportArgumentType]
        with pytest.raises(InputError, match="not a str"):
            examples[0]


def test_identities_depend_on_the_reading_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reading_of_mine.py").write_text("def load(path):\n    return path.name\n")
    load = importlib.import_module("reading_of_mine").load
    files = [LabeledFile(tmp_path / name, name) for name in ("a.wav", "b.wav")]
    before = from_files(files, load).identities()
    assert before is not None
    assert (len(set(before)), from_files(files, load).identities()) == (2, before)
    (tmp_path / "reading_of_mine.py").write_text("def load(path):\n    return path.stem\n")
    assert set(from_files(files, load).identities() or []).isdisjoint(before)


@final
class Songs:
    """Numbers as songs, whose examples are named lines."""

    name = "songs"
    labels = LABELS
    score_range = ScoreRange("accuracy", 50.0, None, "two classes of one size")
    dropped: ClassVar = {"duplicates": 2}

    def split(self, name: SplitName) -> Examples[int]:
        return Examples(range(40 if name == "train" else 5), self.read, "line {}".format)

    def read(self, number: int) -> Example:
        return Example(number, self.labels[number % 2])


def numbers(examples: Sequence[Example]) -> list[int]:
    return [example.input for example in examples]


@pytest.mark.parametrize("seed", [0, 7])
def test_subset_is_contained_in_every_larger_one(seed: int) -> None:
    subsets = [numbers(Subset(Songs(), share, seed).split("train")) for share in (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)]
    assert [len(subset) for subset in subsets] == [1, 1, 1, 4, 12, 40]
    for smaller, larger in pairwise(subsets):
        assert set(smaller) <= set(larger)
    assert subsets[-1] == numbers(Songs().split("train"))


def test_subset_depends_on_seed_and_spans_split() -> None:
    source = GrammarPairs(train=200, val=10, test=10)
    first, again, other = (list(Subset(source, 0.2, seed).split("train")) for seed in (0, 0, 1))
    assert first == again != other
    rows = [list(source.split("train")).index(example) for example in first]
    assert rows == sorted(rows)
    assert max(rows) > 150
    for share in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(InputError, match=f"share={share}"):
            Subset(source, share)


def test_subset_has_the_full_source_s_attributes() -> None:
    subset = Subset(Songs(), 0.1)
    for name in ("val", "test"):
        assert list(subset.split(name)) == list(Songs().split(name))
    assert (subset.name, subset.labels, subset.score_range) == (Songs.name, Songs.labels, Songs.score_range)
    source = GrammarPairs(train=30, val=3, test=3)
    assert (subset.dropped, Subset(source, 0.5).dropped) == ({"duplicates": 2}, None)
    test: Any = Subset(source, 0.5).split("test")
    assert test.alignment(0) == source.split("test").alignment(0)


def test_subset_keeps_the_names_of_examples() -> None:
    train = Subset(Songs(), 0.3).split("train")
    assert isinstance(train, Examples)
    for index, (number, _) in enumerate(train):
        assert describe_example(train, index) == f"line {number}"
    assert list(pickle.loads(pickle.dumps(train))) == list(train)
    assert describe_example(Subset(Digits(), 0.01).split("train"), 0).startswith("example ")


def test_subset_has_its_own_hash() -> None:
    digits = Digits()
    hashes = {sha256_of(Subset(digits, share, seed)) for share in (0.1, 0.2) for seed in (0, 1)}
    assert len(hashes | {digits.sha256}) == 5
    assert Subset(Songs(), 0.5).sha256 is None
    assert len({sha256_of(source) for source in (Songs(), Subset(Songs(), 0.5), Subset(Songs(), 0.5, 1))}) == 3
