"""A split is encoded once, equally in one process and in several, and bad examples are named."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

import pytest
import torch
from torch import Tensor

from unifier.data.encoding import CHUNK_EXAMPLES, EncodedSplit, concat, encode_split
from unifier.data.source import Example
from unifier.heads.head import Head
from unifier_tokenizers import InputError, Tokenizer, Tokens, Units

D = 4


@final
class CountingTokenizer(Tokenizer):
    """Tokenizer whose units of a number n are 0 to n - 1 and their squares. A number below 1 cannot be encoded."""

    def __init__(self) -> None:
        super().__init__(D)
        self.calls: list[int] = []

    def encode(self, raw: int) -> Units:
        self.calls.append(raw)
        if raw < 1:
            raise InputError(f"{raw} has no tokens")
        numbers = torch.arange(raw)
        return Units(torch.stack([numbers, numbers**2]), numbers[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return torch.cat([values, values], dim=1).float()


@final
class EchoHead(Head):
    """Head whose encoded target is the target as a tensor: a scalar, (L,) or (2, L)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def encode(self, target: int | list[int] | Tensor) -> Tensor:
        self.calls += 1
        return target if isinstance(target, Tensor) else torch.tensor(target)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return tokens.matrix.mean()

    def predict(self, tokens: Tokens) -> list[int]:
        return [0] * len(tokens.mask)

    def metrics(self, predictions: Sequence[int], targets: Sequence[int]) -> dict[str, float]:
        return {"none": 0.0}


class Lines(list[Example]):
    """Examples with names."""

    def example_id(self, index: int) -> str:
        return f"numbers.txt, line {index + 1}"


def content(split: EncodedSplit) -> list[tuple[list[list[int]], list[list[int]], list[int]]]:
    return [
        (split.units(k).values.tolist(), split.units(k).positions.tolist(), split.target(k).tolist())
        for k in range(len(split))
    ]


def encoded(examples: Sequence[Example], **options: object) -> tuple[EncodedSplit, list[str]]:
    return encode_split(examples, CountingTokenizer(), EchoHead(), **options)  # pyright: ignore[reportArgumentType]


def test_every_example_is_encoded_once() -> None:
    examples = [Example(1 + k % 7, k) for k in range(CHUNK_EXAMPLES + 5)]
    tokenizer, head = CountingTokenizer(), EchoHead()
    split, skipped = encode_split(examples, tokenizer, head, num_workers=0)
    assert tokenizer.calls == [example.input for example in examples]
    assert (head.calls, skipped, len(split)) == (len(examples), [], len(examples))
    assert split.indices.tolist() == list(range(len(examples)))
    for k, (raw, target) in enumerate(examples):
        values, positions = CountingTokenizer().encode(raw)
        assert torch.equal(split.units(k).values, values)
        assert torch.equal(split.units(k).positions, positions)
        assert (split.target(k).shape, split.target(k)) == ((), target)
    assert split.lengths().tolist() == [[example.input, 1] for example in examples]


@pytest.mark.parametrize("shape", [[0, 1], [[0, 1, 2], [3, 4, 5]]])
def test_targets_of_any_rank_are_stored(shape: list[int]) -> None:
    examples = [Example(2, shape), Example(3, torch.tensor(shape)[..., :1].tolist())]
    split, _ = encoded(examples)
    assert [split.target(k).tolist() for k in range(2)] == [example.target for example in examples]
    assert split.lengths().tolist() == [[2, len(torch.tensor(shape)[0]) if torch.tensor(shape).ndim > 1 else 2], [3, 1]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with one core
def test_workers_return_equal_splits() -> None:
    examples = Lines(Example(k % 9, list(range(k % 4 + 1))) for k in range(3 * CHUNK_EXAMPLES + 7))
    alone, skipped_alone = encoded(examples, num_workers=0, bad_examples="skip")
    many, skipped_many = encoded(examples, num_workers=2, bad_examples="skip")
    assert (skipped_alone, alone.indices.tolist()) == (skipped_many, many.indices.tolist())
    assert content(alone) == content(many)


def test_bad_example_stops_with_file_and_line() -> None:
    for at in (2, CHUNK_EXAMPLES + 3):  # in the first chunk, and in one that a worker reads
        examples = Lines(Example(3, 0) for _ in range(CHUNK_EXAMPLES + 10))
        examples[at] = Example(0, 0)
        with pytest.raises(InputError, match=re.escape(f"numbers.txt, line {at + 1}: 0 has no tokens")) as error:
            encoded(examples, desc="numbers, train")
        assert str(error.value).startswith("numbers, train: ")
        assert "bad_examples=skip" in str(error.value)


def test_skipped_examples_are_named() -> None:
    first, skipped = encoded(Lines(Example(k, k) for k in (3, 0, 2, -1, 1)), bad_examples="skip")
    assert skipped == ["numbers.txt, line 2: 0 has no tokens", "numbers.txt, line 4: -1 has no tokens"]
    assert first.indices.tolist() == [0, 2, 4]
    assert [first.target(k).item() for k in range(3)] == [3, 2, 1]
    second, _ = encoded([Example(3, 7)])
    merged = concat(first, second)
    assert merged.indices.tolist() == [0, 2, 4, 0]
    assert content(merged) == content(first) + content(second)


def test_missing_file_is_a_bad_example_but_a_type_error_is_not() -> None:
    class Gone(Lines):
        def __getitem__(self, index: int) -> Example:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise FileNotFoundError(2, "No such file or directory", "gone.png")

    with pytest.raises(InputError, match=r"line 1: .*gone\.png"):
        encoded(Gone([Example(1, 0)]))
    with pytest.raises(TypeError):
        encoded([Example("two", 0)], bad_examples="skip")


def test_split_without_readable_examples_fails() -> None:
    with pytest.raises(InputError, match="numbers, val: the split is empty"):
        encoded([], desc="numbers, val")
    with pytest.raises(InputError, match="none of 2 examples can be read; the first is example 0: 0 has no"):
        encoded([Example(0, 0), Example(-1, 0)], bad_examples="skip")


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (torch.tensor(1), torch.tensor([1]), "scalars"),
        (torch.ones(2, dtype=torch.uint8), torch.ones(3, dtype=torch.uint8), "torch.uint8"),
        (torch.ones(2), torch.ones(2).bfloat16(), "EchoHead.encode gives a torch.bfloat16"),
        (torch.ones(2), torch.ones(2, requires_grad=True), "EchoHead.encode gives a tensor with a gradient"),
    ],
)
def test_unsupported_targets_are_refused(first: Tensor, second: Tensor, problem: str) -> None:
    with pytest.raises(InputError, match=f"examples: example 1: .*{problem}"):
        encoded([Example(1, first), Example(1, second)])


VICTIM = """
import multiprocessing, signal, time, torch
from unifier.data.encoding import ordered_map
from unifier.data.source import Example
signal.signal(signal.SIGTERM, signal.default_int_handler)
examples = [Example(k, None) for k in range(4000)]
for k, _ in enumerate(ordered_map(examples, lambda example: (torch.zeros(1 << 16),), num_workers=2)):
    if k == 300:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(60)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_a_terminated_process(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as victim:
        assert victim.stdout
        workers = [int(word) for word in victim.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(is_running, workers))
        time.sleep(0.5)  # The queue of the workers is full.
        victim.send_signal(number)
        victim.wait(30)
    deadline = time.monotonic() + 10
    while (alive := [worker for worker in workers if is_running(worker)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for worker in alive:
        os.kill(worker, signal.SIGKILL)
    assert alive == []
