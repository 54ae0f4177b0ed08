"""The lines of a text, each read from disk when it is asked for.

Translation memories (TMX 1.4b): pairs of texts out of XML, however large.

Cleaning of text pairs: which ones are left out."""

import gzip
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Literal, NamedTuple, final
from weakref import finalize
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from unifier.data.storage import MemmapArray
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

INDEX_BLOCK = 1 << 20
"""Bytes that are searched for ends of lines at a time."""


def open_decompressed(path: Path) -> BinaryIO:
    """A file to read from anywhere; one whose name ends in .gz is unpacked into a temporary file.

    Raises InputError where there is none, or it cannot be read.
    """
    try:
        if path.suffix != ".gz":
            return path.open("rb")
        with ExitStack() as closing, gzip.open(path) as packed:
            plain = closing.enter_context(TemporaryFile())
            shutil.copyfileobj(packed, plain, INDEX_BLOCK)
            plain.seek(0)
            closing.pop_all()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from error
    return plain


@final
class LineIndex:
    """The lines of a text as bytes; only a line feed ends one, and a carriage return before it is no part of it.

    Cut at the separators that may stand inside a sentence, aligned files would slip out of step.
    Eight bytes a line are kept, in a mapped array that says where each begins.
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


CODE_ELEMENTS = frozenset({"bpt", "ept", "it", "ph", "ut"})
"""Elements inside a text that hold the formatting of whatever program it came from."""


SPACES = re.compile(r"[ \t\r\n]+")
"""What XML lays its lines out with; a space that does not break is part of a text."""


LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


class TranslationMemory(NamedTuple):
    """The units of a translation memory that have both languages."""

    source: BinaryIO
    """One text a line."""
    target: BinaryIO
    unit_numbers: MemmapArray
    """Each one's number in the file, from 1."""
    num_incomplete: int
    """How many units have not both languages."""


def read_tmx(path: Path, languages: tuple[str, str]) -> TranslationMemory:
    """The texts of two languages, from a .tmx or .tmx.gz, which is read unit by unit.

    A language also stands for its variants: en for en-GB. Of several texts in one language, the first is taken.
    Raises InputError for what is no XML, and where no unit has both.
    """
    numbers, number = MemmapArray(np.int64), 0
    with ExitStack() as closing, open_decompressed(path) as file:
        source, target = (closing.enter_context(TemporaryFile()) for _ in languages)
        try:
            body: ElementTree.Element | None = None
            for event, element in ElementTree.iterparse(file, events=("start", "end")):
                if event == "start":
                    body = element if _name(element) == "body" else body
                elif _name(element) == "tu" and body is not None:
                    number += 1
                    texts = _texts(element)
                    pair = [next((text for key, text in texts if _is(key, language)), "") for language in languages]
                    if all(pair):
                        source.write(f"{pair[0]}\n".encode())
                        target.write(f"{pair[1]}\n".encode())
                        numbers.append(np.array([number]))
                    body.clear()  # or the whole tree would grow in memory
        except (ElementTree.ParseError, LookupError, ValueError) as error:  # or of an encoding that expat cannot read
            raise InputError(f"{path}: no translation memory ({error})") from error
        if not len(numbers):
            raise InputError(f"{path}: none of its {number:,} units has both {' and '.join(languages)}")
        closing.pop_all()
    return TranslationMemory(source, target, numbers, number - len(numbers))


def _name(element: ElementTree.Element) -> str:
    """What an element is called, whatever namespace the file gives its elements."""
    return element.tag.rpartition("}")[2]


def _is(key: str, language: str) -> bool:
    key, language = (name.lower().replace("_", "-") for name in (key, language))
    return key == language or key.startswith(f"{language}-")


def _texts(unit: ElementTree.Element) -> list[tuple[str, str]]:
    """Language and text of each variant of a unit."""
    return [
        (variant.get(LANGUAGE) or variant.get("lang") or "", SPACES.sub(" ", "".join(_spoken(segment))).strip())
        for variant in unit.iter()
        if _name(variant) == "tuv"
        for segment in variant
        if _name(segment) == "seg"
    ]


def _spoken(element: ElementTree.Element) -> Iterator[str]:
    """The pieces of a text without its codes."""
    if _name(element) not in CODE_ELEMENTS:
        yield element.text or ""
        for inner in element:
            yield from _spoken(inner)
            yield inner.tail or ""


Duplicates = Literal["keep", "drop"]
"""Whether a pair stays that has occurred before, both sides of it."""


def length_outliers(pairs: Iterable[tuple[bytes, bytes]], ratio: float) -> NDArray[np.bool_]:
    """Of which pairs the longer text has more than `ratio` times the characters of the shorter; a bool a pair."""
    return np.fromiter((_unlike(*pair, ratio) for pair in pairs), np.bool_)


def _unlike(source: bytes, target: bytes, ratio: float) -> bool:
    shorter, longer = sorted(len(text.decode(errors="replace").strip()) for text in (source, target))
    return longer > ratio * shorter


def duplicate_pairs(pairs: Iterable[tuple[bytes, bytes]], *, first_too: bool = False) -> NDArray[np.bool_]:
    """Which pairs have occurred before, or also occur again (`first_too`); a bool a pair.

    Eight bytes a pair are kept, in a mapped array: a hash of 64 bits; sorting takes some twenty for a moment. Of ten
    million unlike pairs, two have the same hash with a chance of 3 in a million.
    """
    hashes = MemmapArray(np.uint64)
    for source, target in pairs:
        digest = blake2b(b"%d\t%b%b" % (len(source), source, target), digest_size=8).digest()
        hashes.append(np.frombuffer(digest, np.uint64))
    found = hashes.read()
    copies = np.zeros(len(found), np.bool_)
    order = found.argsort(kind="stable")
    ranked = found[order]
    alike = ranked[1:] == ranked[:-1]
    copies[order[1:][alike]] = True
    if first_too:
        copies[order[:-1][alike]] = True
    return copies
