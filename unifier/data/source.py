"""The contract of a data set: named splits of examples, each an input and its target."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from unifier_tokenizers import InputError

SplitName = Literal["train", "val", "test"]


class Example(NamedTuple):
    """One raw example, before any tokenizer or head has seen it."""

    input: Any
    """What the arm's tokenizer encodes: a text, a picture, a `Sound`, or for a mixture a dictionary of them."""
    target: Any
    """What the arm's head encodes: a text, a label, a list of tags."""


@runtime_checkable
class Source(Protocol):
    """A data set with the splits "train", "val" and "test".

    Any map-style data set fits: a split needs a length and integer indexing. A split may also have `where(index)`,
    a method that names an example for an error message ("train.en, line 12").
    """

    name: str

    def split(self, name: SplitName) -> Sequence[Example]:
        """The examples of one split, in a fixed order. Reading an example may raise InputError."""
        ...


def where(examples: Sequence[Example], index: int) -> str:
    """Name one example for an error message, by its file and line where the split knows them."""
    name = getattr(examples, "where", None)
    return name(index) if name else f"example {index}"


def data_folder(name: str, data: str | Path | None = None) -> Path:
    """The folder of the data set `name`.

    It is `data` where given, else `$UNIFIER_DATA/name` (the command line's `--data` sets it), else a folder in the
    user's cache, where downloads are kept.
    """
    if data is not None:
        return Path(data)
    if root := os.environ.get("UNIFIER_DATA"):
        if not Path(root).is_dir():
            raise InputError(f"--data {root}: no such folder")
        return Path(root) / name
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "unifier" / name
