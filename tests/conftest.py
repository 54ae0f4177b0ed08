"""Settings and fixtures of all tests: one thread per process, a fixed seed, no cache, no drawing, few examples."""

import os

os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # or a test with a limit on file sizes would leave half of a .pyc file
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the programs that tests start
os.environ["UNIFIER_CACHE"] = "off"  # or tests would leave what they encode with the user

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from unifier.datasets import Digits, GrammarPairs, SyntheticMusic

sys.dont_write_bytecode = True  # A test that rewrites a module within a second would import the old bytecode.


@pytest.fixture(autouse=True)
def torch_seed() -> None:
    """Seed torch, so that no test depends on those before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def undrawn() -> Iterator[Callable[..., None]]:
    """Write empty figures and use PCA for maps, because both take most of a small run; yield the drawing function."""
    drawn = Figure.savefig

    def empty(_: Figure, file: Path | io.StringIO, **_given: Any) -> None:
        svg = '<svg xmlns="http://www.w3.org/2000/svg"><style></style></svg>'
        file.write(svg) if isinstance(file, io.StringIO) else file.write_text(svg)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", empty)
        patch.setattr("unifier.training.maps.MIN_NEIGHBOR_POINTS", sys.maxsize)
        yield drawn


@pytest.fixture(scope="module")
def few_examples() -> Iterator[None]:
    """Let a data set of the package contain few examples if its sizes are not given."""
    sizes = {Digits: (None, 20, 30), GrammarPairs: (400, 20, 30), SyntheticMusic: (30, 10, 20)}
    with pytest.MonkeyPatch.context() as patch:
        for dataset, counts in sizes.items():
            for name, count in zip(("train", "val", "test"), counts, strict=True):
                if count:
                    patch.setitem(dataset.__init__.__kwdefaults__, name, count)  # pyright: ignore[reportArgumentType]
        yield
