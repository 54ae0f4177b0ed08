"""Settings and fixtures of all tests: one thread per process, a fixed seed, no cache, and empty figures."""

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
