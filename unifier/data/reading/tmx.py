"""Translation memories (TMX 1.4b): pairs of texts out of XML, however large."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

import numpy as np

from unifier.data.keeping.mapped import Mapped
from unifier.data.reading.lines import open_plain
from unifier_tokenizers import InputError

CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
"""Elements inside a text that hold the formatting of whatever program it came from."""
SPACES = re.compile(r"[ \t\r\n]+")
"""What XML lays its lines out with; a space that does not break is part of a text."""
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


class Memory(NamedTuple):
    """The units of a translation memory that have both languages."""

    source: BinaryIO
    """One text a line."""
    target: BinaryIO
    numbers: Mapped
    """Each one's number in the file, from 1."""
    lacking: int
    """How many units have not both languages."""


def read_memory(path: Path, languages: tuple[str, str]) -> Memory:
    """The texts of two languages, from a .tmx or .tmx.gz, which is read unit by unit.

    A language also stands for its variants: en for en-GB. Of several texts in one language, the first is taken.
    Raises InputError for what is no XML, and where no unit has both.
    """
    numbers, number = Mapped(np.int64), 0
    with ExitStack() as closing, open_plain(path) as file:
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
    return Memory(source, target, numbers, number - len(numbers))


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
    if _name(element) not in CODES:
        yield element.text or ""
        for inner in element:
            yield from _spoken(inner)
            yield inner.tail or ""
