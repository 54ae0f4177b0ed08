"""The command `new`, which writes a small package with a tokenizer, a head or a data source."""

import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Literal, get_args

from unifier.files import write_text
from unifier.plugins import PluginKind, plugin_names
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

PartKind = Literal["tokenizer", "head", "source"]
GROUPS: dict[PartKind, PluginKind] = {"tokenizer": "tokenizers", "head": "heads", "source": "sources"}

CODE: dict[PartKind, str] = {
    "tokenizer": '''"""A tokenizer for series of numbers. Replace `encode` and `embed` by your own."""

import torch
from torch import Tensor, nn

import unifier as uf


class CLASS(uf.Tokenizer):
    """Tokenizer for a series of numbers. A token contains `width` neighboring numbers."""

    def __init__(self, dim: int, width: int = 4) -> None:
        super().__init__(dim)
        self.width = width
        self.project = nn.Linear(width, dim)

    def encode(self, raw: list[float]) -> uf.Units:
        if len(raw) < self.width:
            raise uf.InputError(f"a series of {len(raw)} numbers is shorter than a token of {self.width}")
        values = torch.tensor(raw).unfold(0, self.width, self.width).T.contiguous()
        return uf.Units(values, torch.arange(values.shape[1])[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        return self.project(values.mT).mT
''',
    "head": '''"""A head that predicts one number per example. Replace its methods by your own."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import unifier as uf


class CLASS(uf.Head):
    """Head that predicts one number per example."""

    lower_is_better = frozenset({"mae"})
    max_score = None

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, 1)

    def encode(self, target: float) -> Tensor:
        return torch.tensor(float(target))

    def number(self, tokens: uf.Tokens) -> Tensor:
        """Return one number per example (B,), from the mean of the real tokens."""
        real = tokens.mask[:, None].float()
        return self.out((tokens.matrix * real).sum(2) / real.sum(2))[:, 0]

    def loss(self, tokens: uf.Tokens, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.number(tokens), target)

    def predict(self, tokens: uf.Tokens) -> list[float]:
        return self.number(tokens).tolist()

    def metrics(self, predictions: Sequence[float], targets: Sequence[float]) -> dict[str, float]:
        errors = [abs(guess - true) for guess, true in zip(predictions, targets, strict=True)]
        return {"mae": sum(errors) / len(errors)}
''',
    "source": '''"""A data set of rising series. Replace `split` by your own."""

import unifier as uf


class CLASS:
    """Series that rise at a constant speed. The target is the speed."""

    name = "NAME"

    def split(self, name: str) -> list[uf.Example]:
        first, count = {"train": (0, 200), "val": (200, 40), "test": (240, 40)}[name]
        speeds = [(first + i) * 0.618 % 1 for i in range(count)]
        return [uf.Example([speed * t for t in range(32)], speed) for speed in speeds]
''',
}
"""The module of a new package. NAME and CLASS are replaced by the names of the package and of its class."""

TESTS: dict[PartKind, str] = {
    "tokenizer": "    uf.check_tokenizer(CLASS(8), [[0.1 * i for i in range(12)], [0.3 * i for i in range(20)]])\n",
    "head": "    uf.check_head(CLASS(8), [0.5, 1.0, 2.0], dim=8)\n",
    "source": "    uf.check_source(CLASS())\n",
}

TEST = '''"""The KIND fulfills the contract of unifier."""

import unifier as uf
from NAME import CLASS


def test_contract() -> None:
'''

PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "NAME"
version = "0.1.0"
dependencies = ["unifier-torch"]

[project.entry-points."unifier.GROUP"]
NAME = "NAME:CLASS"

[tool.setuptools]
py-modules = ["NAME"]
"""

README = """`NAME` is a KIND for unifier, in the class `CLASS` of NAME.py. `unifier list GROUP` prints its name.
In this folder, install the package with `pip install --editable .`, and test every change with `python -m pytest`.
In the file of an experiment, write `from NAME import CLASS`, and give the KIND to a `uf.Task`.
"""


def write_package(kind: PartKind, name: str, folder: Path = Path()) -> Path:
    """Write a new package into a new subfolder, and return the subfolder.

    The package has one module, an entry point, a test that calls the checks of unifier, and a README.

    Args:
        kind: The kind of part in the package.
        name: The name of the package, of its module and of its entry point.
        folder: The folder in which the subfolder is created.

    Raises:
        InputError: The name is no identifier of Python, or something with this name already exists.
    """
    check_choice("kind", kind, get_args(PartKind))
    if keyword.iskeyword(name):
        raise InputError(f"{name!r} is a keyword of Python: choose another name, such as my_{kind}")
    if not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise InputError(f"{name!r} is no name of a package: use letters, digits and underscores, such as my_{kind}")
    if (path := folder / name).exists():
        raise InputError(f"{path} already exists: choose another name, or remove it")
    if name in plugin_names(GROUPS[kind]):
        raise InputError(f"{name}: a {kind} of this name is already installed; choose another name")
    if find_spec(name) is not None:
        raise InputError(f"{name}: a Python module of this name is already installed; choose another name")
    words = {"NAME": name, "CLASS": class_name(name), "KIND": kind, "GROUP": GROUPS[kind]}
    files = {
        f"{name}.py": CODE[kind],
        f"test_{name}.py": TEST + TESTS[kind],
        "pyproject.toml": PROJECT,
        "README.md": README,
    }
    temporary = Path(mkdtemp(prefix=".new-", dir=folder))
    try:
        for file, text in files.items():
            write_text(temporary / file, re.sub("|".join(words), lambda found: words[found.group()], text))
        temporary.chmod(0o755)
        temporary.rename(path)
    except BaseException:
        rmtree(temporary, ignore_errors=True)
        raise
    return path


def class_name(name: str) -> str:
    """Return the name of a class in camel case, such as MySeries for my_series."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
