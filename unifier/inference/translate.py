"""An HTML page of the attention between the tokens of a translation and of its source.

`unifier translate`: lines in, lines out, in order, as they come."""

import gzip
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO, final, get_args

import numpy as np
import torch

from unifier.files import print_status
from unifier.heads.generation import Hypothesis, check_length_penalty
from unifier.heads.text_generation import TextGenerationHead
from unifier.inference.translator import Translation, Translator
from unifier_tokenizers import InputError, Tokens, Units
from unifier_tokenizers.errors import check_choice, one_line

PAGE_START = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Alignments</title>
<style>
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { margin: 2rem; }
div { overflow-x: auto; margin: 0 0 2.5rem; }
table { border-collapse: collapse; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
thead th { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; padding: .3rem 0; }
tbody th { text-align: right; padding-right: .5rem; }
th { font-weight: 400; white-space: nowrap; }
td { width: 1.6rem; height: 1.6rem; border: 1px solid color-mix(in srgb, CanvasText 15%, Canvas);
     print-color-adjust: exact; -webkit-print-color-adjust: exact; }
</style>
<h1>Alignments</h1>
<p>A row for each token of a translation, a column for each of its source; the stronger a cell's color, the more the
one looked at the other. Each row sums to 1; point at a cell to read its share.</p>
"""


@final
class AlignmentPage:
    """An HTML file of alignment matrices, written one by one, that is whole when it is closed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"{path} is a folder: name a file in it, such as {self.path / 'alignments.html'}")
        self._part = self.path.with_name(f".{self.path.name}.part")

    def add(
        self, number: int, source: Sequence[str], target: Sequence[str], weights: Sequence[Sequence[float]]
    ) -> None:
        """A matrix: a row of weights for each token of the target, one weight in it for each of the source."""
        columns = "".join(f"<th scope=col>{escape(token)}</th>" for token in source)
        self._file.write(
            f"<div><table><caption>line {number}</caption><thead><tr><td></td>{columns}</tr></thead><tbody>\n"
        )
        for token, row in zip(target, weights, strict=True):
            cells = "".join(
                f'<td title="{escape(f"{token} → {seen}: {share:.2f}")}" style="background:'
                f'color-mix(in srgb, #1f6f8b {100 * share:.0f}%, Canvas)"></td>'
                for seen, share in zip(source, row, strict=True)
            )
            self._file.write(f"<tr><th scope=row>{escape(token)}</th>{cells}</tr>\n")
        self._file.write("</tbody></table></div>\n")

    def __enter__(self) -> "AlignmentPage":
        """Raises InputError where it cannot be written."""
        try:
            self._file = self._part.open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error
        self._file.write(PAGE_START)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was added is kept, whatever ended it."""
        self._file.write("</html>\n")
        self._file.close()
        self._part.replace(self.path)


LongInput = Literal["translate", "refuse"]
"""What is done with a line that is longer than any text the model was trained on."""


LINES_PER_BLOCK = 1 << 16
"""The most bytes that are read at a time."""


MAX_BATCH_LINES = 64
"""The most lines that wait for each other."""


@final
@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How lines are translated; None is as the run's own settings say."""

    n_best: int | None = None
    """How many texts are written for each line, each with the line's number and a score; None: one, without them."""
    beam: int | None = None
    length_penalty: float | None = None
    sample: bool = False
    """Whether texts are drawn by chance, by these three (see `unifier.heads.generation`) and the seed."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """None is 0."""
    long: LongInput = "translate"

    def __post_init__(self) -> None:
        check_choice("long", self.long, get_args(LongInput))
        for name in ("n_best", "beam"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise InputError(f"{name}={count}: at least 1 is needed")
        if self.length_penalty is not None:
            check_length_penalty(self.length_penalty)
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed={self.seed}: 0 or more is needed")
        if self.sample and self.beam is not None:
            raise InputError("texts are drawn by chance or searched for with a beam: leave out --sample or --beam")
        drawing = [*self.drawing, *(["seed"] if self.seed is not None else [])]
        if drawing and not self.sample:
            raise InputError(f"{', '.join(drawing)}: of texts drawn by chance alone; add --sample")
        if self.beam is not None and (self.n_best or 1) > self.beam:
            raise InputError(f"a beam of {self.beam} finds no {self.n_best} texts: take --beam {self.n_best}")

    @property
    def drawing(self) -> dict[str, Any]:
        """What was said of drawing by chance."""
        said = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return {name: value for name, value in said.items() if value is not None}

    def search(self, head: TextGenerationHead, tokens: Tokens, numbers: Sequence[int]) -> list[list[Hypothesis]]:
        """The texts for B lines of these numbers, best first."""
        count, penalty = self.n_best or 1, self.length_penalty
        if not self.sample:
            width = self.beam or max(head.beam_width, count)
            return [found[:count] for found in head.search(tokens, width, length_penalty=penalty)]
        drawn: list[list[Hypothesis]] = []
        for k in range(count):
            # Of its own number alone, so that a line's text does not depend on how the lines came in.
            seeds = [np.random.SeedSequence((self.seed or 0, number, k)).generate_state(1)[0] for number in numbers]
            draws = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
            drawn.append(head.sample(tokens, draws, length_penalty=penalty, **self.drawing))
        return [sorted(texts, key=lambda text: -text.score) for texts in zip(*drawn, strict=True)]


Line = tuple[int, bytes]
"""A line's number, from 1, and what it holds without its end."""


def open_input(path: str | None) -> BufferedIOBase:
    """A file to read, unpacked where its name ends in .gz, or standard input."""
    if path is None:
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  it was closed
            raise InputError("there is no standard input: name a file")
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return gzip.open(path) if path.endswith(".gz") else Path(path).open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def read_as_it_arrives(file: BufferedIOBase, name: str) -> Iterator[list[Line]]:
    """The lines of a file, as many together as have come and are no more than `CHUNK`; only a line feed ends one."""
    number, rest = 0, list[bytes]()
    while True:
        try:
            block = file.read1(LINES_PER_BLOCK)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{name} cannot be read: {one_line(error)}") from error
        *lines, last = block.split(b"\n")
        if lines:
            lines[0], rest = b"".join([*rest, lines[0]]), []
        rest.append(last)
        if not block and any(rest):
            lines = [b"".join(rest)]
        for start in range(0, len(lines), MAX_BATCH_LINES):
            chunk = [line.removesuffix(b"\r") for line in lines[start : start + MAX_BATCH_LINES]]
            if not number:
                chunk[0] = chunk[0].removeprefix(b"\xef\xbb\xbf")
            yield list(enumerate(chunk, start=number + 1))
            number += len(chunk)
        if not block:
            return


def translate(
    translator: Translator,
    file: BufferedIOBase,
    name: str,
    out: TextIO,
    decoding: DecodingOptions,
    page: AlignmentPage | None = None,
) -> None:
    """Write the translation of each line of a file, which `name` names in messages.

    An empty line stays one. With n_best, a line becomes rows of its number, score and text with tabs between, best
    first, and an empty line the row of its number alone. A line that cannot be read, or is refused, is an InputError
    that names it; what stands before it is translated.
    """
    for chunk in read_as_it_arrives(file, name):
        trouble: InputError | None = None
        lines: dict[int, Units | None] = {}
        for number, line in chunk:
            try:
                lines[number] = _encode(translator, line, f"{name}, line {number}", decoding.long)
            except InputError as error:
                trouble = error
                break
        numbers = [number for number, units in lines.items() if units is not None]
        found = translator.translate(
            [units for units in lines.values() if units is not None],
            lambda head, tokens, rows, numbers=numbers: decoding.search(head, tokens, [numbers[row] for row in rows]),
        )
        translations = dict(zip(numbers, found, strict=True))
        for number in lines:
            one = translations.get(number)
            for row in _rows(number, one, nbest=decoding.n_best is not None):
                print(row, file=out)
            if one is not None and one.cut:
                _warn(f"{name}, line {number}: its translation was truncated at the maximum length")
            if page is not None and one is not None and one.alignment is not None:
                page.add(number, *one.alignment)
        out.flush()
        if trouble is not None:
            raise trouble


def _encode(translator: Translator, line: bytes, place: str, long: LongInput) -> Units | None:
    try:
        text = line.decode()
        if not text.strip():
            return None
        units = translator.tokenizer.encode(text)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 text ({error.reason})") from error
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
    length = units.values.shape[-1]
    if length > translator.longest:
        said = f"{place}: {length} tokens, and the longest text the model was trained on had {translator.longest}"
        if long == "refuse":
            raise InputError(f"{said}; --long translate translates it all the same")
        _warn(f"{said}; it is translated all the same")
    return units


def _rows(number: int, found: Translation | None, *, nbest: bool) -> list[str]:
    if found is None:
        return [f"{number}\t\t" if nbest else ""]
    texts = [text.replace("\n", " ").replace("\r", " ") for text in found.texts]
    if nbest:
        return [f"{number}\t{score:.4f}\t{text}" for score, text in zip(found.scores, texts, strict=True)]
    return texts[:1]


def _warn(said: str) -> None:
    print_status(f"warning: {said}", sys.stderr)
