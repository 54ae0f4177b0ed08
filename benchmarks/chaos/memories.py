"""Translation memories (TMX) with known texts: formatting codes, encodings and languages."""

import codecs
import gzip
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from unifier.data.tmx import read_tmx
from unifier_tokenizers import InputError

CODES = ("ph", "bpt", "ept", "it", "ut")

CODED_TEXTS = {
    "first{&lt;br/&gt;}house": "first house",
    "first{&lt;/p&gt;}{&lt;p class='a'&gt;}house": "first house",
    "first {&lt;br&gt;}house{&lt;br&gt;}": "first house",
    "first\u00a0{&lt;br&gt;}house{\\tab }.": "first\u00a0house.",
    "first.{\\par }(House": "first. (House",
    "well-{&lt;br/&gt;}known": "well-known",
    "un{&lt;b&gt;}believ{&lt;/b&gt;}able": "unbelievable",
    "un{&lt;span class='br'&gt;}believ{\\b }able": "unbelievable",
    "日{&lt;br/&gt;}本": "日本",
    "AT{&amp;amp;}T": "AT&T",
    "CO{&lt;sub&gt;}2{&lt;/sub&gt;}": "CO2",
}
"""Mapping from a text to the text without codes. Braces enclose a code."""

PLAIN_TEXTS = {
    "first<ph type='lb'/>house": "first house",
    "first<ph x='1'/>house": "first house",
    "bold<ph type='bold'>x1</ph>ly": "boldly",
    "<bpt i='1'>x</bpt>bold<ept i='1'>x</ept>ly": "boldly",
    "a<ph>&lt;img alt='<sub>text</sub>'/&gt;</ph>, b": "a, b",
    "<hi type='x'>high</hi>light": "highlight",
    "<![CDATA[a < b]]> &amp; c": "a < b & c",
    "one<!-- no text --> two": "one two",
    "\n      one\n      two\n    ": "one two",
    "caf&#233; &#x4E2D;": "café 中",
}
"""Mapping from the content of an element `seg` to its text."""


class Memory(NamedTuple):
    """A translation memory."""

    name: str
    content: bytes
    text: str | None
    """The expected English text of the only unit, or None if the file must be refused."""

    def fault(self, folder: Path) -> str | None:
        """Write the file into a folder, read the file, and describe the fault if the result is wrong."""
        path = folder / f"memory{''.join(Path(self.name).suffixes[-2:])}"
        path.write_bytes(self.content)
        try:
            memory = read_tmx(path, ("en", "de"))
        except InputError as error:
            return None if self.text is None else f"{self.name}: refused ({error})"
        memory.source.seek(0)
        with memory.source as source, memory.target:
            found = source.read().decode().removesuffix("\n")
        return None if found == self.text else f"{self.name}: {found!r}, not {self.text!r}"


def tmx(text: str, language: str = "en", encoding: str = "UTF-8") -> str:
    """Return a translation memory with one unit."""
    variants = f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv><tuv xml:lang="de"><seg>deutsch</seg></tuv>'
    start = f'<?xml version="1.0" encoding="{encoding}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
    return f'{start}<tmx version="1.4"><header/><body><tu>{variants}</tu></body></tmx>'


def memory_cases() -> Iterator[Memory]:
    """Yield translation memories. Sources: TMX 1.4b; modernmt issue 510; issue 48 of this project."""
    for code, (text, expected) in product(CODES, CODED_TEXTS.items()):
        marked = text.replace("{", f"<{code} x='1'>").replace("}", f"</{code}>")
        yield Memory(f"{code} {text}.tmx", tmx(marked).encode(), expected)
    for text, expected in PLAIN_TEXTS.items():
        yield Memory(f"{text!r}.tmx", tmx(text).encode(), expected)
    for language in ("EN", "en-GB", "EN_us", "en-Latn-US"):
        yield Memory(f"{language}.tmx", tmx("house", language).encode(), "house")
    for language in ("fr", "eng", "enm-GB", ""):
        yield Memory(f"no text in {language}.tmx", tmx("house", language).encode(), None)
    yield Memory("UTF-16.tmx", codecs.BOM_UTF16_LE + tmx("café", encoding="UTF-16").encode("utf-16-le"), "café")
    yield Memory("big-endian.tmx", codecs.BOM_UTF16_BE + tmx("café", encoding="UTF-16").encode("utf-16-be"), "café")
    yield Memory("byte order mark.tmx", codecs.BOM_UTF8 + tmx("café").encode(), "café")
    yield Memory("Latin-1.tmx", tmx("café", encoding="ISO-8859-1").encode("latin-1"), "café")
    yield Memory("Windows-1252.tmx", tmx("“café”", encoding="windows-1252").encode("cp1252"), "“café”")
    yield Memory("wrong encoding.tmx", tmx("café").encode("latin-1"), None)
    yield Memory("packed.tmx.gz", gzip.compress(tmx("house").encode()), "house")
    yield Memory("cut.tmx", tmx("house").encode()[:-20], None)
    yield Memory("external entity.tmx", tmx("&file;").encode(), None)
