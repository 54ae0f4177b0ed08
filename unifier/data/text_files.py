"""Text files: reading single lines, and finding bad text pairs."""

import gzip
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Literal, final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from unifier.data.storage import MemmapArray
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

INDEX_BLOCK = 1 << 20
"""Number of bytes that are read at a time to find the ends of lines."""

Duplicates = Literal["keep", "drop"]
"""Policy for a pair of texts that equals an earlier pair. The repeated pair is kept ("keep") or removed ("drop")."""


def open_decompressed(path: Path) -> BinaryIO:
    """Open a file for random access. A .gz file is first decompressed into a temporary file.

    Raises InputError if the file is missing or cannot be read.
    """
    try:
        if path.suffix != ".gz":
            return path.open("rb")
        with ExitStack() as stack, gzip.open(path) as compressed:
            plain = stack.enter_context(TemporaryFile())
            shutil.copyfileobj(compressed, plain, INDEX_BLOCK)
            plain.seek(0)
            stack.pop_all()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    return plain


@final
class LineIndex:
    """The lines of a text file, as bytes. A line is read from disk when it is indexed.

    Only a line feed ends a line. A carriage return before the line feed is removed. Other Unicode line separators may
    occur inside a sentence. Splitting at other separators could misalign the lines of two parallel files. The offsets
    of the lines are memory-mapped, with eight bytes per line.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        finalize(self, file.close)
        file.seek(0)
        position = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
        starts = MemmapArray(np.int64)
        starts.append(np.array([position]))
        end = file.seek(position)
        while block := file.read(INDEX_BLOCK):
            starts.append(end + 1 + np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")))
            end += len(block)
        if end > position and not _ends_with_line_feed(file, end):
            starts.append(np.array([end + 1]))
        self._starts = starts.read()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> bytes:
        start, following = self._starts[row : row + 2].tolist()
        # Worker processes share the position in the open file. `pread` neither uses nor changes the file position.
        return os.pread(self._file.fileno(), following - 1 - start, start).removesuffix(b"\r")

    def __iter__(self) -> Iterator[bytes]:
        """Yield all lines, several times faster than indexing. Only one iteration may run at a time."""
        self._file.seek(int(self._starts[0]))
        for line in self._file:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _ends_with_line_feed(file: BinaryIO, end: int) -> bool:
    file.seek(end - 1)
    return file.read(1) == b"\n"


def length_outliers(pairs: Iterable[tuple[bytes, bytes]], ratio: float) -> NDArray[np.bool_]:
    """Return True for each pair whose longer text has more than `ratio` times the characters of the shorter text."""
    return np.fromiter((_is_length_outlier(*pair, ratio) for pair in pairs), np.bool_)


def _is_length_outlier(source: bytes, target: bytes, ratio: float) -> bool:
    shorter, longer = sorted(len(text.decode(errors="replace").strip()) for text in (source, target))
    return longer > ratio * shorter


def duplicate_pairs(pairs: Iterable[tuple[bytes, bytes]], *, first_too: bool = False) -> NDArray[np.bool_]:
    """Return True for each pair that equals an earlier pair.

    Pairs are compared by a 64-bit hash. The hashes take eight bytes per pair in a memory-mapped array. Sorting the
    hashes takes about twenty bytes of memory per pair. For ten million different pairs, the probability of equal hashes
    of different pairs is 3 in a million.

    Args:
        pairs: Source and target of each pair.
        first_too: If True, also return True for the first occurrence of a repeated pair.
    """
    hashes = MemmapArray(np.uint64)
    for source, target in pairs:
        digest = blake2b(b"%d\t%b%b" % (len(source), source, target), digest_size=8).digest()
        hashes.append(np.frombuffer(digest, np.uint64))
    digests = hashes.read()
    duplicates = np.zeros(len(digests), np.bool_)
    order = digests.argsort(kind="stable")
    ranked = digests[order]
    equal = ranked[1:] == ranked[:-1]
    duplicates[order[1:][equal]] = True
    if first_too:
        duplicates[order[:-1][equal]] = True
    return duplicates
