"""A split is encoded once, the same in one process and in many, and says which examples could not be read."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import final

import pytest
import torch
from torch import Tensor

from unifier import Experiment, run
from unifier.data.encoding import CHUNK_EXAMPLES, EncodedSplit, encode_split
from unifier.data.source import Example, data_folder, describe_example, readable_examples
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer, Tokens, Units

D = 4


@final
class Count(Tokenizer):
    """The columns of a number n are 0 to n - 1, each over its square; a number below 1 cannot be read."""

    def __init__(self) -> None:
        super().__init__(D)
        self.calls: list[int] = []

    def encode(self, raw: int) -> Units:
        self.calls.append(raw)
        if raw < 1:
            raise InputError(f"{raw} has no columns")
        column = torch.arange(raw)
        return Units(torch.stack([column, column**2]), column[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([values, values], dim=1).float()


@final
class Echo(Head):
    """The target is a scalar, or a list that becomes (L,) or (2, L)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def encode(self, target: int | list[int]) -> Tensor:
        self.calls += 1
        return torch.tensor(target)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return tokens.matrix.mean()

    def predict(self, tokens: Tokens) -> list[int]:
        return [0] * len(tokens.mask)

    def metrics(self, predictions: Sequence[int], targets: Sequence[int]) -> dict[str, float]:
        return {"none": 0.0}


class Lines(list[Example]):
    """Examples that know where they come from."""

    def example_id(self, index: int) -> str:
        return f"numbers.txt, line {index + 1}"


def content(split: EncodedSplit) -> list[tuple[list[list[int]], list[list[int]], list[int]]]:
    return [
        (split.units(k).values.tolist(), split.units(k).positions.tolist(), split.target(k).tolist())
        for k in range(len(split))
    ]


def read(examples: Sequence[Example], **options: object) -> tuple[EncodedSplit, list[str]]:
    return encode_split(examples, Count(), Echo(), **options)  # pyright: ignore[reportArgumentType]


def test_every_example_is_encoded_once_and_comes_back_as_it_was() -> None:
    examples = [Example(1 + k % 7, k) for k in range(CHUNK_EXAMPLES + 5)]
    tokenizer, head = Count(), Echo()
    split, skipped = encode_split(examples, tokenizer, head, num_workers=0)
    assert tokenizer.calls == [example.input for example in examples]
    assert head.calls == len(examples)
    assert skipped == []
    assert len(split) == len(examples)
    assert split.indices.tolist() == list(range(len(examples)))
    for k, (raw, target) in enumerate(examples):
        values, positions = Count().encode(raw)
        assert torch.equal(split.units(k).values, values)
        assert torch.equal(split.units(k).positions, positions)
        assert split.target(k).shape == ()
        assert split.target(k) == target
    assert split.lengths().tolist() == [[example.input, 1] for example in examples]


@pytest.mark.parametrize("shape", [[0, 1], [[0, 1, 2], [3, 4, 5]]])
def test_targets_of_any_rank_come_back(shape: list[int]) -> None:
    examples = [Example(2, shape), Example(3, torch.tensor(shape)[..., :1].tolist())]
    split, _ = read(examples)
    assert [split.target(k).tolist() for k in range(2)] == [example.target for example in examples]
    assert split.lengths().tolist() == [[2, len(torch.tensor(shape)[0]) if torch.tensor(shape).ndim > 1 else 2], [3, 1]]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one core
def test_workers_give_what_no_workers_give() -> None:
    examples = Lines(Example(k % 9, list(range(k % 4 + 1))) for k in range(3 * CHUNK_EXAMPLES + 7))
    alone, skipped_alone = read(examples, num_workers=0, bad_examples="skip")
    many, skipped_many = read(examples, num_workers=2, bad_examples="skip")
    assert skipped_alone == skipped_many
    assert alone.indices.tolist() == many.indices.tolist()
    assert content(alone) == content(many)


def test_a_bad_example_stops_and_names_file_and_line() -> None:
    for at in (2, CHUNK_EXAMPLES + 3):  # in the first chunk, and in one that a worker might read
        examples = Lines(Example(3, 0) for _ in range(CHUNK_EXAMPLES + 10))
        examples[at] = Example(0, 0)
        with pytest.raises(InputError, match=re.escape(f"numbers.txt, line {at + 1}: 0 has no columns")) as error:
            read(examples, said="numbers, train")
        assert str(error.value).startswith("numbers, train: ")
        assert "bad_examples=skip" in str(error.value)


def test_skipped_examples_are_counted_and_named_and_the_rest_keep_their_places() -> None:
    examples = Lines(Example(k, k) for k in (3, 0, 2, -1, 1))
    split, skipped = read(examples, bad_examples="skip")
    assert skipped == ["numbers.txt, line 2: 0 has no columns", "numbers.txt, line 4: -1 has no columns"]
    assert split.indices.tolist() == [0, 2, 4]
    assert [split.target(k).item() for k in range(3)] == [3, 2, 1]


def test_a_file_that_is_gone_is_a_bad_example() -> None:
    class Gone(Lines):
        def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise FileNotFoundError(2, "No such file or directory", "gone.png")

    with pytest.raises(InputError, match=r"line 1: .*gone\.png"):
        read(Gone([Example(1, 0)]))


def test_a_mistake_of_the_program_is_not_taken_for_a_bad_example() -> None:
    with pytest.raises(TypeError):
        read([Example("two", 0)], bad_examples="skip")


def test_an_empty_split_and_one_of_which_nothing_can_be_read() -> None:
    with pytest.raises(InputError, match="numbers, val: the split is empty"):
        read([], said="numbers, val")
    with pytest.raises(InputError, match="none of 2 examples can be read; the first is example 0: 0 has no"):
        read([Example(0, 0), Example(-1, 0)], bad_examples="skip")


def test_an_example_is_named_by_its_split_or_by_its_number() -> None:
    assert describe_example(Lines([Example(1, 1)]), 0) == "numbers.txt, line 1"
    assert describe_example([Example(1, 1)], 0) == "example 0"


def test_what_can_be_read_is_given_in_order_or_some_of_it_evenly() -> None:
    class Torn(Lines):
        def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
            if index == 3:
                raise InputError(f"{self.example_id(index)}: torn")
            return super().__getitem__(index)

    torn = Torn(Example(k, k) for k in range(10))
    assert [one.input for one in readable_examples(torn, bad_examples="skip")] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert [one.input for one in readable_examples(torn, max_examples=5)] == [0, 2, 4, 6, 8]
    assert [one.input for one in readable_examples(torn, max_examples=6)] == [0, 2, 4, 6, 8]  # at most, whatever the remainder
    assert [one.input for one in readable_examples(torn, bad_examples="skip", max_examples=10)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    with pytest.raises(InputError, match=r"line 4: torn \(bad_examples=skip"):
        list(readable_examples(torn))


def test_the_folder_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    assert data_folder("set") == tmp_path / "set"
    assert str(data_folder("set", "given")) == "given"
    monkeypatch.setenv("UNIFIER_DATA", f"{tmp_path}/none")
    with pytest.raises(InputError, match="none: no such folder"):
        data_folder("set")
    monkeypatch.delenv("UNIFIER_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder("set").parts[-2:] == ("unifier", "set")


@pytest.mark.parametrize("before", [None, "before"])
def test_the_folder_of_data_sets_is_a_run_s_alone(
    before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNIFIER_DATA", raising=False)
    if before is not None:
        monkeypatch.setenv("UNIFIER_DATA", before)

    def read() -> Experiment:
        raise InputError(str(data_folder("set")))

    with pytest.raises(InputError, match=re.escape(str(tmp_path / "set"))):
        run(read, data_folder=tmp_path, out=tmp_path, track="off")
    assert os.environ.get("UNIFIER_DATA") == before
