"""Reader of translation memories (TMX 1.4b)."""

import html
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple, final
from xml.etree.ElementTree import ParseError, XMLParser

import numpy as np

from unifier.data.storage import MemmapArray
from unifier.data.text_files import INDEX_BLOCK, open_decompressed
from unifier_tokenizers import InputError

PAIRED_CODES, SINGLE_CODES = frozenset({"bpt", "ept", "it"}), frozenset({"ph", "ut"})
"""TMX elements with formatting codes: the start or end of a format, and codes without a partner."""

BREAK_CODE = re.compile(
    r"\s+"
    r"|.*</?(?:[\w-]+:)?(?:br|hr|p|div|li|ul|ol|dl|dt|dd|td|th|tr|table|tbody|thead|h[1-6]|pre|blockquote|option|section"
    r"|title|line-?break|tab|tabulator|s|lb|pb|cb|cr|softreturn|softbreak|paragraph|para)(?:\s[^>]*)?/?>.*"
    r"|.*\\(?:par|pard|line|tab|sect|page|column|cell|row|emspace|enspace|lbr[0-3]?|softline|[nrt])(?![a-z]).*"
    r"|.*\\~.*",
    re.IGNORECASE | re.DOTALL,
)
"""Codes that separate words: white space, elements such as <br/> or </p>, and RTF words such as \\par or \\tab."""

STRIKE = re.compile(r"</?s>", re.IGNORECASE)
"""HTML's element of struck-out text. An element <text:s/> of OpenDocument is a space, and so is a single <s/>."""

FORMAT_CODE = re.compile(
    r"[^\w%$]+"
    r"|.*</?(?:[\w-]+:)?(?:a|abbr|acronym|b|bdi|bdo|big|c|cf|cite|code|del|dfn|em|font|g|hi|i|ins|kbd|mark|q|r|rpr|s|samp"
    r"|shy|small|soft-?hyphen|span|strike|strong|sub|sup|tt|u|var|wbr)(?:\s[^>]*)?/?>.*"
    r"|.*\\(?:[a-z]+|-).*",
    re.IGNORECASE | re.DOTALL,
)
"""Codes that may occur inside a word: elements such as <b>, RTF words such as \\b, and signs such as **."""

BREAK_TYPES = frozenset({"lb", "pb", "cb", "struct", "softreturn", "tab"})
FORMAT_TYPES = frozenset(
    {"bold", "color", "dulined", "font", "italic", "link", "scap", "ulined", "sub", "sup", "strike", "hyphen"}
)
"""Values of the attribute `type` for codes that separate words, and for codes that may occur inside a word."""

BREAK, UNKNOWN = "\x1e", "\x1f"
"""Marks of codes that separate words, and of unknown codes. XML texts cannot contain these characters."""

MARKS = re.compile(f"[{BREAK}{UNKNOWN}]+")

UNSPACED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]"
"""Characters of scripts without spaces between words, such as Chinese, Japanese, Thai, Lao, Burmese and Khmer."""

JOINED_BEFORE, JOINED_AFTER = re.compile(r"(?:^|\s|[(\[{¿¡]|\w[-'’/])\Z"), re.compile(r"\Z|\s|[.,;:!?)\]}…%]")
"""Text before a code, or after a code, that needs no space at a break."""

SPACES = re.compile(r"[ \t\r\n]+")
"""White space that only formats the XML file. No-break spaces are not included, because they are part of the text."""

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
"""XML attribute with the language of a text."""


class TranslationMemory(NamedTuple):
    """The texts of a translation memory in two languages, from all translation units with texts in both languages."""

    source: BinaryIO
    """Source texts, one per line."""
    target: BinaryIO
    """Target texts, one per line."""
    unit_numbers: MemmapArray
    """Position of each included translation unit in the file, counted from 1."""
    num_incomplete: int
    """Number of translation units in the file that have no text in one of the languages."""


def read_tmx(path: Path, languages: tuple[str, str]) -> TranslationMemory:
    """Read the texts in two languages from a TMX file. The file may be compressed. Units are read one at a time.

    A language includes its variants: for example, en also matches en-GB. If a unit has several texts in one language,
    the first text is used. A unit inside a unit is a unit of its own. Formatting codes are removed:

    - A code between words becomes a space, except next to white space, punctuation, or a script without spaces.
    - A code of a format, such as <b>, leaves no trace, because it may occur inside a word.
    - A code that is a character reference, such as &amp;, becomes the character.
    - An unknown code becomes a space between two letters or digits if the code has no partner (ph, ut).

    Raises:
        InputError: The file is not valid XML, or no unit has texts in both languages.
    """
    unit_numbers, reader = MemmapArray(np.int64), _UnitReader()
    with ExitStack() as stack, open_decompressed(path) as file:
        source, target = (stack.enter_context(TemporaryFile()) for _ in languages)
        try:
            for unit in _read_units(file, reader):
                pair = [
                    next((text for key, text in unit.texts if _matches(key, language)), "") for language in languages
                ]
                if all(pair):
                    source.write(f"{pair[0]}\n".encode())
                    target.write(f"{pair[1]}\n".encode())
                    unit_numbers.append(np.array([unit.number]))
        except (ParseError, LookupError, ValueError) as error:  # An unknown encoding raises LookupError.
            raise InputError(f"{path}: the file is not a valid translation memory ({error})") from error
        if not len(unit_numbers):
            raise InputError(
                f"{path}: none of its {reader.count:,} units has texts in both {' and '.join(languages)}: check the "
                "setting `languages`"
            )
        stack.pop_all()
    return TranslationMemory(source, target, unit_numbers, reader.count - len(unit_numbers))


def _matches(key: str, language: str) -> bool:
    """Return True if `key` is the language code `language` or a variant of `language`, such as en-GB for en."""
    key, language = (name.lower().replace("_", "-") for name in (key, language))
    return key == language or key.startswith(f"{language}-")


@dataclass
class _Unit:
    """A translation unit that is being read."""

    number: int
    """Position in the file, counted from 1."""
    texts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Language and text of each translation."""
    language: str = ""
    parts: list[str] | None = None
    """Parts of the text that is being read, or None outside a text."""
    depth: int = 0
    """Number of open elements inside the text."""
    code_depth: int = 0
    """The depth of the open formatting code, or 0."""
    code_name: str = ""
    code_type: str = ""
    code: list[str] = field(default_factory=list[str])
    """Parts of the formatting code."""


@final
class _UnitReader:
    """Target of an XML parser. The parser calls one method per event, so deeply nested elements need no recursion."""

    def __init__(self) -> None:
        self.open: list[_Unit] = []
        """Units that are being read. A unit inside a unit comes last."""
        self.finished: list[_Unit] = []
        self.count = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Open an element."""
        name = tag.rpartition("}")[2]
        if name == "tu":
            self.count += 1
            self.open.append(_Unit(self.count))
            return
        if not self.open:
            return
        unit = self.open[-1]
        if unit.parts is None:
            if name == "tuv":
                unit.language = attributes.get(LANGUAGE) or attributes.get("lang") or ""
            elif name == "seg":
                unit.parts = []
            return
        unit.depth += 1
        if not unit.code_depth and (name in PAIRED_CODES or name in SINGLE_CODES):
            unit.code_depth, unit.code = unit.depth, []
            unit.code_name, unit.code_type = name, attributes.get("type", "").lower()

    def data(self, text: str) -> None:
        """Add characters to the open text or the open formatting code."""
        if not self.open or (unit := self.open[-1]).parts is None:
            return
        if not unit.code_depth:
            unit.parts.append(text)
        elif unit.depth == unit.code_depth:  # The texts inside an element <sub> are not part of the code.
            unit.code.append(text)

    def end(self, tag: str) -> None:
        """Close an element."""
        if not self.open:
            return
        unit = self.open[-1]
        if unit.parts is None:
            if tag.rpartition("}")[2] == "tu":
                self.finished.append(self.open.pop())
        elif not unit.depth:
            unit.texts.append((unit.language, _join_parts(unit.parts)))
            unit.parts = None
        else:
            if unit.depth == unit.code_depth:
                unit.parts.append(_replace_code(unit.code_name, unit.code_type, "".join(unit.code)))
                unit.code_depth = 0
            unit.depth -= 1

    def close(self) -> None:
        """Do nothing at the end of the file."""


def _read_units(file: BinaryIO, reader: _UnitReader) -> Iterator[_Unit]:
    """Yield each unit at its end tag."""
    parser = XMLParser(target=reader)
    while block := file.read(INDEX_BLOCK >> 4):
        parser.feed(block)
        yield from reader.finished
        reader.finished.clear()
    parser.close()
    yield from reader.finished


def _replace_code(name: str, kind: str, content: str) -> str:
    """Return the text for a formatting code: a character, a mark, or no text.

    Args:
        name: Name of the TMX element.
        kind: Value of the attribute `type` in lower case, or an empty text.
        content: The code.
    """
    if re.fullmatch(r"&(?:\w+|#\w+);", content):
        return html.unescape(content)
    is_strike = name in PAIRED_CODES and STRIKE.fullmatch(content)
    if kind in BREAK_TYPES or (BREAK_CODE.fullmatch(content) and not is_strike):
        return BREAK
    if name in PAIRED_CODES or kind in FORMAT_TYPES or FORMAT_CODE.fullmatch(content):
        return ""
    return UNKNOWN


def _join_parts(parts: list[str]) -> str:
    """Join the parts of a text. Replace each series of marks by a space, or by no text."""
    text = SPACES.sub(" ", "".join(parts))
    return SPACES.sub(" ", MARKS.sub(_replace_marks, text)).strip()


def _replace_marks(marks: re.Match[str]) -> str:
    before, after = marks.string[max(marks.start() - 2, 0) : marks.start()], marks.string[marks.end() :][:1]
    if BREAK not in marks[0]:
        return " " if before[-1:].isalnum() and after.isalnum() and not _unspaced(before, after) else ""
    return "" if JOINED_BEFORE.search(before) or JOINED_AFTER.match(after) or _unspaced(before, after) else " "


def _unspaced(before: str, after: str) -> bool:
    return bool(re.match(UNSPACED, before[-1:]) and re.match(UNSPACED, after))
