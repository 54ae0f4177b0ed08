"""Text files: reading single lines, and finding bad text pairs."""

import bz2
import codecs
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Literal, final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from unifier.data.storage import MemmapArray
from unifier.files import open_regular
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

INDEX_BLOCK = 1 << 20
"""Number of bytes that are read at a time to find the ends of lines."""

ENCODING_BYTES = 1 << 12
"""Number of bytes in which zeros are counted. Over a quarter of the bytes are zeros in most texts in UTF-16."""

MAX_LINE_BYTES = 1 << 22
"""Largest number of bytes in a line. Encoding a longer line would fill the memory."""

UNPACKERS: dict[bytes, Callable[[Path], BufferedIOBase]] = {
    rb"\x1f\x8b\x08": gzip.GzipFile,
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": bz2.BZ2File,
    rb"\xfd7zXZ\x00": lzma.LZMAFile,
}
"""Mapping from a regular expression for the first bytes of a compressed file to the reader of the file."""

COMPRESSED_SUFFIXES = frozenset({".gz", ".bz2", ".xz"})

FOREIGN_FORMATS = {b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "Zstandard", b"7z\xbc\xaf\x27\x1c": "7z"}
"""Mapping from the first bytes of a file to a format that must be unpacked first."""

MAX_UNPACKED, MAX_UNPACKED_RATIO = 1 << 28, 100
"""A compressed file may unpack to at most this number of bytes, or to this multiple of its size if that is more."""

DECOMPRESSION_ERRORS = (OSError, EOFError, ValueError, MemoryError, zlib.error, lzma.LZMAError)
"""Errors that Python raises for damaged compressed files."""

Duplicates = Literal["keep", "drop"]
"""Policy for a pair of texts that equals an earlier pair. The repeated pair is kept ("keep") or removed ("drop")."""


def open_stream(path: Path) -> BufferedIOBase:
    """Open a regular file for reading. A gzip, bzip2 or xz file is decompressed while it is read.

    Raises InputError if the file is missing, is not a regular file, or has a format that must be unpacked first.
    """
    file = open_regular(path)
    start = file.read(10)
    file.seek(0)
    if unpack := next((unpack for first, unpack in UNPACKERS.items() if re.match(first, start)), None):
        file.close()
        return unpack(path)
    if name := next((name for first, name in FOREIGN_FORMATS.items() if start.startswith(first)), None):
        file.close()
        raise InputError(f"{path} is compressed as {name}: unpack the file, or compress it as .gz, .bz2 or .xz")
    if start and path.suffix.lower() in COMPRESSED_SUFFIXES:
        file.close()
        raise InputError(f"{path} is not compressed: remove the suffix {path.suffix} from its name")
    return file


def remove_compressed_suffix(name: str) -> str:
    """Return a file name in lower case without .gz, .bz2 or .xz."""
    suffix = Path(name.lower()).suffix
    return name.lower().removesuffix(suffix) if suffix in COMPRESSED_SUFFIXES else name.lower()


def open_decompressed(path: Path) -> BinaryIO:
    """Open a file for random access. A compressed file is first decompressed into a temporary file.

    Raises InputError if the file is missing, cannot be read, or exceeds the limit of `MAX_UNPACKED`.
    """
    stream = open_stream(path)
    if isinstance(stream, BufferedReader):
        return stream
    limit = max(MAX_UNPACKED, MAX_UNPACKED_RATIO * path.stat().st_size)
    with ExitStack() as stack, stream:
        plain = stack.enter_context(TemporaryFile())
        try:
            while block := stream.read(INDEX_BLOCK):
                plain.write(block)
                if plain.tell() > limit:
                    raise InputError(f"it unpacks to over {limit / 1e6:,.0f} MB: unpack the file yourself")
        except DECOMPRESSION_ERRORS as error:
            raise InputError(f"{path} cannot be read: {one_line(error)}") from error
        plain.seek(0)
        stack.pop_all()
    return plain


@final
class LineIndex:
    """The lines of a text file, as bytes. A line is read from disk when it is indexed.

    Only a line feed ends a line. A carriage return before the line feed is removed. Other Unicode line separators may
    occur inside a sentence. Splitting at other separators could misalign the lines of two parallel files. Only if the
    file has no line feed before its last byte, a carriage return ends a line, as in files of old Macintosh programs.
    The offsets of the lines are memory-mapped, with eight bytes per line.

    Indexing a line of over `MAX_LINE_BYTES` bytes raises an InputError. Iteration cuts such a line.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Find the lines of an open file."""
        self._file = file
        finalize(self, file.close)
        self._end = b"\n"
        self._starts = self._find_starts()
        if len(self) == 1 and b"\r" in self._read(0) and not self._ends_with(b"\r\n"):
            self._end = b"\r"
            self._starts = self._find_starts()
        self.first_long = self._find_long()
        """Index of the first line of over `MAX_LINE_BYTES` bytes, or None."""

    def _find_long(self) -> int | None:
        for row in range(0, len(self), INDEX_BLOCK):
            is_long = np.diff(self._starts[row : row + INDEX_BLOCK + 1]) > MAX_LINE_BYTES + 1
            if is_long.any():
                return row + int(is_long.argmax())
        return None

    def _find_starts(self) -> NDArray[np.int64]:
        """Return the offset of each line, and the offset of the line after the last line."""
        file = self._file
        file.seek(0)
        position = 3 if file.read(3) == b"\xef\xbb\xbf" else 0
        starts = MemmapArray(np.int64)
        starts.append(np.array([position]))
        end = file.seek(position)
        while block := file.read(INDEX_BLOCK):
            starts.append(end + 1 + np.flatnonzero(np.frombuffer(block, np.uint8) == ord(self._end)))
            end += len(block)
        if end > position and not self._ends_with(self._end):
            starts.append(np.array([end if self._ends_with(b"\n") else end + 1]))
        return starts.read()

    def _ends_with(self, last: bytes) -> bool:
        end = self._file.seek(0, os.SEEK_END)
        return os.pread(self._file.fileno(), len(last), max(end - len(last), 0)) == last

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> bytes:
        start, following = self._starts[row : row + 2].tolist()
        if (size := following - 1 - start) > MAX_LINE_BYTES:
            raise InputError(
                f"the line has {size:,} bytes, but at most {MAX_LINE_BYTES:,} bytes are possible: divide the text into "
                "several lines"
            )
        return self._read(row)

    def _read(self, row: int) -> bytes:
        """Return the first `MAX_LINE_BYTES` bytes of a line."""
        start, following = self._starts[row : row + 2].tolist()
        # Worker processes share the position in the open file. `pread` neither uses nor changes the file position.
        line = os.pread(self._file.fileno(), min(following - 1 - start, MAX_LINE_BYTES), start)
        return line.removesuffix(b"\r")

    def __iter__(self) -> Iterator[bytes]:
        """Yield all lines, several times faster than indexing. Only one iteration may run at a time."""
        if self._end == b"\r" or self.first_long is not None:
            yield from map(self._read, range(len(self)))
            return
        self._file.seek(int(self._starts[0]))
        for line in self._file:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def open_lines(path: Path, *, may_be_long: bool = False) -> LineIndex:
    """Open a UTF-8 text file, which may be compressed.

    Args:
        path: The file.
        may_be_long: Accept lines of over `MAX_LINE_BYTES` bytes. Such a line cannot be read.

    Raises:
        InputError: The file cannot be read, is encoded as UTF-16 or UTF-32, or has a line that is too long.
    """
    file = open_decompressed(path)
    start = file.read(ENCODING_BYTES)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or start.count(0) > len(start) // 4:
        file.close()
        raise InputError(f"{path} is not UTF-8 text, but UTF-16 or another encoding: save the file as UTF-8")
    lines = LineIndex(file)
    if lines.first_long is not None and not may_be_long:
        try:
            lines[lines.first_long]
        except InputError as error:
            raise InputError(f"{path}, line {lines.first_long + 1}: {error}") from error
    return lines


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
