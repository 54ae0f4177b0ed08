"""Any map-style data set is a split: its items become Examples where they are read, and nothing else is asked of it."""

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from unifier import ClassificationHead, Example, Experiment, Head, Task, Training, Transformer, run
from unifier.data.cache import fit_once
from unifier.data.dataset import Examples, Subset, open_split
from unifier.data.source import Split, SplitName, describe_example, example_of, readable_examples, target_of
from unifier.data.statistics import median_duration, median_side
from unifier.datasets.digits import Digits
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier.inference.inspect import show_experiment
from unifier_tokenizers import FrameTokenizer, InputError, PatchTokenizer, Tokens

pytestmark = pytest.mark.usefixtures("undrawn")

D = 8
PICTURES = np.arange(12 * 64).reshape(12, 8, 8).astype(np.uint8)
LABELS = ("even", "odd")


@final
class Rows:
    """A table as Hugging Face's `Dataset` is: a row is a dictionary, and a slice would be a dictionary of columns."""

    features = {"id": "int64", "input": "image", "target": "string"}

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(PICTURES)

    def __getitem__(self, key: int) -> dict[str, Any]:
        assert type(key) is int, "slices and arrays give no rows"
        self.read.append(key)
        return {"id": key, "input": PICTURES[key], "target": LABELS[key % 2]}


@final
class Level(Head):
    """One number for an example, which torch's data sets give as a tensor."""

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


def tensors() -> TensorDataset:
    return TensorDataset(torch.from_numpy(PICTURES), torch.arange(len(PICTURES)).float())


def numbered() -> TensorDataset:
    return TensorDataset(torch.from_numpy(PICTURES), torch.arange(len(PICTURES)) % 2)


def pairs() -> list[Any]:
    return [(PICTURES[k], LABELS[k % 2]) if k % 3 else [PICTURES[k], LABELS[k % 2]] for k in range(len(PICTURES))]


def dictionaries() -> list[dict[str, Any]]:
    return [{"input": picture, "target": label} for picture, label in pairs()]


@final
class Own:
    """A source of one data set, three times."""

    name = "own"

    def __init__(self, items: Split) -> None:
        self.items = items

    def split(self, name: SplitName) -> Split:
        return self.items


MAKE: dict[str, Callable[[], Split]] = {
    "tensors": tensors,
    "numbered": numbered,
    "pairs": pairs,
    "dictionaries": dictionaries,
    "rows": Rows,
}


@pytest.fixture(params=list(MAKE))
def source(request: pytest.FixtureRequest) -> Own:
    return Own(MAKE[request.param]())


def of_pictures(source: Own) -> Experiment:
    level = isinstance(source.items, TensorDataset) and source.items.tensors[1].is_floating_point()
    head = Level() if level else ClassificationHead(LABELS, D)
    task = Task(source, PatchTokenizer(D, channels=1), head)
    training = Training(steps=2, batch_tokens=64, num_validations=1, num_workers=0)
    return Experiment(Transformer(D, 1, 2, 8), {"own": task}, training, name="of_pictures")


def test_every_item_is_an_example(source: Own) -> None:
    split = open_split(source, "train")
    assert len(split) == len(PICTURES)
    for found in (split, list(split[:]), list(readable_examples(source.items)), pickle.loads(pickle.dumps(split))):
        for k in range(len(PICTURES)):
            assert isinstance(found[k], Example)
            assert np.array_equal(found[k].input, PICTURES[k])
            assert found[k].target in (LABELS[k % 2], k, k % 2)
    assert target_of(split, 3) in ("odd", 3, 1)
    assert median_side(source) == 8


def test_it_is_shown_trained_on_scored_and_sampled(
    source: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_experiment(of_pictures(source))
    assert "8 x 8" in capsys.readouterr().out

    def own() -> Experiment:
        return of_pictures(source)

    (result,) = run(own, out=tmp_path, track="off")
    assert result.data["own"]["train"] == len(PICTURES)
    (samples,) = json.loads((result.folder / "samples.json").read_text()).values()
    assert len(samples) == len(PICTURES)
    assert {"image", "input", "target", "prediction"} == samples[0].keys()
    if "test/own/accuracy" in result.metrics:  # a label's number is a label
        assert {sample["target"] for sample in samples} == {*LABELS}


def test_what_a_pair_of_sound_and_label_holds_is_not_looked_at() -> None:
    music = SyntheticMusic(train=4, val=2, test=2, seconds=1.0)
    source = Own([(example.input, example.target) for example in music.split("train")])
    assert isinstance(open_split(source, "train")[0].input, tuple)  # a Sound is a pair itself
    assert median_duration(source) == 1
    own, theirs = (FrameTokenizer(D, sample_rate=8000) for _ in range(2))
    fit_once(own, source)
    fit_once(theirs, music)
    assert all(torch.equal(a, b) for a, b in zip(own.buffers(), theirs.buffers(), strict=True))
    for item in (Example((1, 2), [3, 4]), ((1, 2), [3, 4]), {"input": (1, 2), "target": [3, 4]}):
        assert example_of(item) == ((1, 2), [3, 4])


def test_nothing_is_read_before_it_is_asked_for_and_a_share_reads_its_own() -> None:
    rows = Rows()
    subset = Subset(Own(rows), 0.25)
    train, val = subset.split("train"), open_split(subset, "val")
    assert (len(train), len(val), rows.read) == (3, len(PICTURES), [])
    assert [example.target in LABELS for example in train] == [True] * 3
    assert len(rows.read) == 3


def test_what_else_a_split_has_is_its_own() -> None:
    class Told(list[Any]):
        def example_id(self, index: int) -> str:
            return f"line {index + 1}"

        def target(self, index: int) -> str:
            return "known"

    split = open_split(Own(Told(pairs())), "test")
    assert (describe_example(split, 2), target_of(split, 2)) == ("line 3", "known")
    assert describe_example(open_split(Own(pairs()), "test"), 2) == "example 2"
    read = Digits().split("train")
    ours = Examples(range(3), read.__getitem__, str)
    assert open_split(Own(ours), "train") is ours


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"text": "a", "label": 0}, r"'input' and 'target' is expected, not 'text', 'label': rename .*rename_columns"),
        ((1, 2, 3), r"an Example\(input, target\) is expected, .* not a tuple of 3"),
        ("ab", "not a str"),
        (torch.zeros(2), "not a Tensor"),
        (None, "not a NoneType"),
    ],
)
def test_an_item_that_is_no_example_is_said_in_a_line(item: Any, said: str, tmp_path: Path) -> None:
    def own() -> Experiment:
        return of_pictures(Own([item]))

    with pytest.raises(InputError, match=rf"own, train: example 0: .*{said}") as error:
        run(own, out=tmp_path, track="off")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=said):
        show_experiment(own())
    with pytest.raises(InputError, match=said):  # of what reads files, too
        _ = Examples([0], lambda _: item, str)[0]
