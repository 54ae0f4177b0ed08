"""What examples are known by outlives a run, and changes with the code that reads them."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unifier.data.dataset import LabeledFile, from_files


def test_the_function_that_reads_is_known_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reading_of_mine.py").write_text("def load(path):\n    return path.name\n")
    load = importlib.import_module("reading_of_mine").load

    def identities() -> list[str] | None:
        return from_files(
            [LabeledFile(tmp_path / "a.wav", "a"), LabeledFile(tmp_path / "b.wav", "b")], load
        ).identities()

    before = identities()
    assert before is not None
    assert len(set(before)) == 2
    assert identities() == before
    (tmp_path / "reading_of_mine.py").write_text("def load(path):\n    return path.stem\n")
    assert set(identities() or []).isdisjoint(before)


HASH = """
import torch
from unifier.data.source import Example
from unifier.training.result import sha256_of

class Tensors:
    name, labels = "tensors", ("calm", "sad", "tender")

    def __init__(self, value):
        self.value = value

    def split(self, name):
        wide = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
        return [Example((wide.mT, torch.tensor(self.value)), {"sad", "calm", "tender"})]

print(*(sha256_of(Tensors(value)) for value in (0.5, 0.25)))
"""


def test_data_of_tensors_and_sets_has_one_hash_in_every_process() -> None:
    def hashed(seed: int) -> list[str]:
        ballast = f"import torch; kept = torch.zeros({1 + seed * 100_000})\n"
        return subprocess.run(
            [sys.executable, "-c", ballast + HASH],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()

    one, other = hashed(0)
    assert one != other
    assert hashed(1) == [one, other]
