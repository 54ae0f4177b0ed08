"""The command `new`: the package passes its own test, and a bad name writes nothing."""

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import unifier as uf
from unifier.cli import main
from unifier.inference.new_package import GROUPS, PartKind, write_package


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in an empty folder, and forget the modules that a test imports from it."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.endswith("tide"):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("kind", get_args(PartKind))
def test_new_package_passes_its_test(
    kind: PartKind, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", kind, "low_tide"]) == 0
    assert capsys.readouterr().out.strip() == "low_tide"
    package = folder / "low_tide"
    assert len((package / "README.md").read_text().splitlines()) == 3
    project = tomllib.loads((package / "pyproject.toml").read_text())
    module, _, name = project["project"]["entry-points"][f"unifier.{GROUPS[kind]}"]["low_tide"].partition(":")
    monkeypatch.syspath_prepend(str(package))
    assert isinstance(getattr(importlib.import_module(module), name), type)
    importlib.import_module("test_low_tide").test_contract()
    ruff = [sys.executable, "-m", "ruff", "check", "--quiet", "--select", "E,F", "--line-length", "120", str(package)]
    assert subprocess.run(ruff).returncode == 0


def test_name_in_capitals_is_kept(folder: Path) -> None:
    """A name that contains a word of the template, such as CLASS, must not be replaced twice."""
    package = write_package("source", "CLASSIC", folder)
    assert "from CLASSIC import CLASSIC\n" in (package / "test_CLASSIC.py").read_text()
    values: dict[str, Any] = {}
    exec((package / "CLASSIC.py").read_text(), values)
    inputs = [{str(each.input) for each in values["CLASSIC"]().split(split)} for split in ("train", "val", "test")]
    assert len(set.union(*inputs)) == 280


@pytest.mark.parametrize("name", ["my-part", "9tides", "class", "", "../tide", "_tide", "json", "translation", "there"])
def test_new_package_with_a_bad_name_is_refused(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "there").mkdir()
    assert main(["new", "head", name]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert name in lines[0]
    assert [path.name for path in folder.iterdir()] == ["there"]


class Level(uf.Head):
    """A head with one fault."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.out, self.fault = torch.nn.Linear(4, 1), fault

    def encode(self, target: float) -> Any:
        return target if self.fault == "encode" else torch.tensor(float(target))

    def level(self, tokens: uf.Tokens) -> Tensor:
        real = torch.ones_like(tokens.mask) if self.fault == "padding" else tokens.mask
        return self.out((tokens.matrix * real[:, None]).sum(2))[:, 0]

    def loss(self, tokens: uf.Tokens, target: Tensor) -> Tensor:
        error = (self.level(tokens) - target).square()
        return error if self.fault == "loss" else error.mean().detach() if self.fault == "gradient" else error.mean()

    def predict(self, tokens: uf.Tokens) -> list[float]:
        return self.level(tokens).tolist()[: 1 if self.fault == "predict" else None]

    def metrics(self, predictions: Any, targets: Any) -> dict[str, float]:
        return {} if self.fault == "metrics" else {"score": 1.0}


@pytest.mark.parametrize("fault", ["encode", "padding", "loss", "gradient", "predict", "metrics"])
def test_check_head_finds_the_fault(fault: str) -> None:
    uf.check_head(Level(), [0.5, 1.0], dim=4)
    with pytest.raises((uf.ContractError, RuntimeError, uf.InputError)):
        uf.check_head(Level(fault), [0.5, 1.0], dim=4)


@pytest.mark.slow
def test_check_head_accepts_heads_of_unifier() -> None:
    uf.check_head(uf.ClassificationHead(["a", "b"], 8), ["a", "b", "a"], dim=8)
    uf.check_head(uf.TaggingHead(["a", "b"], 8), [("a",), ("a", "b")], dim=8)
    uf.check_head(uf.TokenClassificationHead(["O", "B-a"], 8), [["O", "B-a"], ["B-a", "O", "O"]], dim=8)


@pytest.mark.parametrize(
    "splits",
    [
        {"train": [(1, 2)], "val": [(3, 4)]},
        {"train": [(1, 2)], "val": [(3, 4)], "test": []},
        {"train": [(1, 2)], "val": [(3, 4)], "test": [(1, 2)]},
        {"train": [1], "val": [2], "test": [3]},
    ],
    ids=["missing split", "empty split", "test is train", "no pairs"],
)
def test_check_source_finds_the_fault(splits: dict[str, Any]) -> None:
    uf.check_source(Own({"train": [(1, 2)], "val": [(3, 4)], "test": [(5, 6)]}))
    source = Own(splits)
    with pytest.raises(uf.ContractError):
        uf.check_source(source)


class Own:
    """A source with given splits."""

    def __init__(self, splits: dict[str, Any]) -> None:
        self.splits = splits

    def split(self, name: str) -> Any:
        return self.splits[name]


def test_write_package_needs_a_known_kind(folder: Path) -> None:
    with pytest.raises(uf.InputError):
        write_package("trunk", "low_tide", folder)  # pyright: ignore[reportArgumentType]
