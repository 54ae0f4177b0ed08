"""The contract of a source: its examples, names, score range and data folder."""

import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from unifier.data import source as source_module
from unifier.data.source import (
    Example,
    ScoreRange,
    Source,
    SplitName,
    data_folder,
    describe_example,
    example_of,
    name_of,
    readable_examples,
    score_range_of,
    use_data_folder,
)
from unifier.experiment import Experiment
from unifier.launch import run
from unifier_tokenizers import InputError


class Nameless:
    """A source with nothing but splits."""

    def split(self, name: SplitName) -> list[Example]:
        return [Example(name, "a")]


class Bare(Nameless):
    """A source with nothing but splits and a name."""

    name = "bare"


class Lines(list[Example]):
    """A split that names its examples, of which number 3 cannot be read."""

    def example_id(self, index: int) -> str:
        return f"numbers.txt, line {index + 1}"

    def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
        if index == 3:
            raise InputError(f"{self.example_id(index)}: broken")
        return super().__getitem__(index)


def test_example_of_pairs_and_rows() -> None:
    for item in (Example((1, 2), [3, 4]), ((1, 2), [3, 4]), [(1, 2), [3, 4]], {"input": (1, 2), "target": [3, 4]}):
        assert example_of(item) == ((1, 2), [3, 4])


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        *[({"text": "a", "label": 0}, "'text', 'label'.*rename_columns"), ((1, 2, 3), "tuple of 3")],
        *[("ab", "str"), (torch.zeros(2), "Tensor"), (None, "NoneType")],
    ],
)
def test_example_of_other_items_is_refused(item: Any, kind: str) -> None:
    with pytest.raises(InputError, match=kind) as error:
        example_of(item)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("chance", "reference"), [(50.0, 50.0), (0.0, float("nan"))])
def test_reference_must_differ_from_chance(chance: float, reference: float) -> None:
    with pytest.raises(InputError, match=f"chance={chance:g}, reference={reference:g}"):
        ScoreRange("mse", chance, reference, "a paper")


@pytest.mark.parametrize(("chance", "errors", "side"), [(0.5, {"mse"}, "below"), (2.0, {"mae"}, "above")])
def test_reference_must_be_better_than_chance(chance: float, errors: set[str], side: str) -> None:
    source: Any = Bare()
    source.score_range = ScoreRange("mse", chance, 1.0, "a paper")
    with pytest.raises(InputError, match=f"bare: .*{side} chance"):
        score_range_of(source, errors)
    other = {"mae"} if errors == {"mse"} else {"mse"}
    assert score_range_of(source, other) == score_range_of(source) == source.score_range


def test_score_range_of_another_type_is_refused() -> None:
    assert score_range_of(Bare()) is None
    odd: Any = Bare()
    odd.score_range = ("accuracy", 0.0, 99.0, "a paper")
    with pytest.raises(InputError, match="bare: its score_range is a tuple"):
        score_range_of(odd)


def test_names_of_sources_and_examples() -> None:
    names = [name_of(cast(Source, source)) for source in (Bare(), Nameless(), Nameless, source_module)]
    assert names == ["bare", "Nameless", "Nameless", "unifier.data.source"]
    assert describe_example(Lines([Example(1, 1)]), 0) == "numbers.txt, line 1"
    assert describe_example([Example(1, 1)], 0) == "example 0"


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"bad_examples": "skip"}, [0, 1, 2, 4, 5, 6, 7, 8, 9]),
        ({"max_examples": 5}, [0, 2, 4, 6, 8]),
        ({"max_examples": 6}, [0, 2, 4, 6, 8]),  # 6 is an upper bound, since 10 examples have no 6 of equal distance.
        ({"bad_examples": "skip", "max_examples": 10}, [0, 1, 2, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_readable_examples_are_evenly_spaced(options: dict[str, Any], inputs: list[int]) -> None:
    lines = Lines(Example(k, k) for k in range(10))
    assert [example.input for example in readable_examples(lines, **options)] == inputs
    with pytest.raises(InputError, match=r"line 4: broken \(bad_examples=skip"):
        list(readable_examples(lines))


def test_data_folder_is_given_or_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    assert (data_folder("set"), str(data_folder("set", "given"))) == (tmp_path / "set", "given")
    monkeypatch.setenv("UNIFIER_DATA", f"{tmp_path}/none")
    with pytest.raises(InputError, match=f"--data {tmp_path}/none"):
        data_folder("set")
    monkeypatch.delenv("UNIFIER_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder("set").parts[-2:] == ("unifier", "set")


@pytest.mark.parametrize("before", [None, "before"])
def test_data_folder_of_a_run_is_temporary(before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIFIER_DATA", raising=False)
    if before is not None:
        monkeypatch.setenv("UNIFIER_DATA", before)
    with use_data_folder(None):
        assert os.environ.get("UNIFIER_DATA") == before

    def read() -> Experiment:
        raise InputError(str(data_folder("set")))

    with pytest.raises(InputError, match=str(tmp_path / "set")):
        run(read, data_folder=tmp_path, out=tmp_path, track="off")
    assert os.environ.get("UNIFIER_DATA") == before
