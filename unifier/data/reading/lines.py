"""The lines of a text, each read from disk when it is asked for."""

import gzip
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, final
from weakref import finalize

import numpy as np

from unifier.data.keeping.mapped import Mapped
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

BLOCK = 1 << 20
"""Bytes that are searched for ends of lines at a time."""


def open_plain(path: Path) -> BinaryIO:
    """A file to read from anywhere; one whose name ends in .gz is unpacked into a temporary file.

    Raises InputError where there is none, or it cannot be read.
    """
    try:
        if path.suffix != ".gz":
            return path.open("rb")
        with ExitStack() as closing, gzip.open(path) as packed:
            plain = closing.enter_context(TemporaryFile())
            shutil.copyfileobj(packed, plain, BLOCK)
            plain.seek(0)
            closing.pop_all()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    return plain


@final
class Lines:
    """The lines of a text as bytes; only a line feed ends one, and a carriage return before it is no part of it.

    Cut at the separators that may stand inside a sentence, aligned files would slip out of step.
    Eight bytes a line are kept, in a mapped array that says where each begins.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        finalize(self, file.close)
        file.seek(0)
        position = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
        starts = Mapped(np.int64)
        starts.append(np.array([position]))
        end = file.seek(position)
        while block := file.read(BLOCK):
            starts.append(end + 1 + np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")))
            end += len(block)
        if end > position and not _ends_with_line_feed(file, end):
            starts.append(np.array([end + 1]))
        self._starts = starts.read()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> bytes:
        start, following = self._starts[row : row + 2].tolist()
        # Of the file's own place nothing is used or changed: worker processes share it.
        return os.pread(self._file.fileno(), following - 1 - start, start).removesuffix(b"\r")

    def __iter__(self) -> Iterator[bytes]:
        """All lines, several times as fast as one by one; one such pass at a time."""
        self._file.seek(int(self._starts[0]))
        for line in self._file:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _ends_with_line_feed(file: BinaryIO, end: int) -> bool:
    file.seek(end - 1)
    return file.read(1) == b"\n"
