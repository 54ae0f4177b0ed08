"""Translation of a file line by line, and an HTML page of alignments."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from io import BufferedIOBase, TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TextIO, final, get_args

import numpy as np
import torch

from unifier.data.text_files import DECOMPRESSION_ERRORS, open_stream
from unifier.files import create_temporary, print_status, printable
from unifier.heads.generation import Hypothesis, check_length_penalty
from unifier.heads.text_generation import TextGenerationHead
from unifier.inference.explain import explain_heads
from unifier.inference.stream import MAX_LENGTH_RATIO, round_probability
from unifier.inference.translator import Alignment, Translation, Translator
from unifier.report.content_policy import add_policy
from unifier.report.head_lines import LayerLines, head_lines_code, render_head_lines, visible_token
from unifier_tokenizers import InputError, Tokens, Units
from unifier_tokenizers.errors import check_choice, one_line

LongInput = Literal["translate", "refuse"]
"""The treatment of a line that is longer than all texts in training."""

BLOCK_BYTES = 1 << 16
"""The number of bytes to read at a time."""

MAX_READ_BYTES = 1 << 20
"""The number of bytes of a line that are read."""

MAX_SKIPPED_BYTES = 1 << 28
"""Largest number of bytes in a line. A device such as /dev/zero has no line ends."""

MAX_BATCH_LINES = 64
"""The maximum number of lines that are translated together."""

Line = tuple[int, bytes]
"""The number of a line, counted from 1, and the bytes of the line without the line feed."""

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
<p>Each row is a token of a translation, each column a token of its source. A stronger color means more attention.
Each row sums to 1. Point at a cell to read its weight. Below a short line, choose a layer and a head of the encoder
(trunk), of the decoder, or between decoder and encoder (cross).</p>
"""


@final
@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Options of the translation. None means the value in the run's settings."""

    n_best: int | None = None
    """Number of translations per line, printed with line number and score. None prints only the best translation."""
    beam: int | None = None
    length_penalty: float | None = None
    sample: bool = False
    """True samples random texts, and False searches for the best texts (see `unifier.heads.generation`)."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """The random seed of sampling. None means 0."""
    long: LongInput = "translate"
    candidates: int | None = None
    """Number of likely tokens that are printed for each step of a translation, as JSON Lines. None prints texts."""

    def __post_init__(self) -> None:
        check_choice("long", self.long, get_args(LongInput))
        for name in ("n_best", "beam", "candidates"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise InputError(f"{name}={count}: at least 1 is needed")
        if self.candidates is not None and self.n_best is not None:
            raise InputError(f"candidates={self.candidates}: only the best translation has steps; leave out --n-best")
        if self.length_penalty is not None:
            check_length_penalty(self.length_penalty)
        if self.seed is not None and self.seed < 0:
            raise InputError(f"seed={self.seed}: 0 or more is needed")
        if self.sample and self.beam is not None:
            raise InputError(f"beam={self.beam}: sampling does not use a beam; leave out --sample or --beam")
        given = [*self.sampling, *(["seed"] if self.seed is not None else [])]
        if given and not self.sample:
            raise InputError(f"{', '.join(given)}: only sampling uses these options; add --sample")
        if self.beam is not None and (self.n_best or 1) > self.beam:
            raise InputError(
                f"n_best={self.n_best}: a beam of {self.beam} finds fewer texts; give --beam {self.n_best}"
            )

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling options that are given, as a mapping from name to value."""
        options = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return {name: value for name, value in options.items() if value is not None}

    def search(self, head: TextGenerationHead, tokens: Tokens, numbers: Sequence[int]) -> list[list[Hypothesis]]:
        """Return the translations of B lines, best first, from the tokens (B, D, N) and the line numbers."""
        count, penalty = self.n_best or 1, self.length_penalty
        if not self.sample:
            width = self.beam or max(head.beam_width, count)
            return [hypotheses[:count] for hypotheses in head.search(tokens, width, length_penalty=penalty)]
        samples: list[list[Hypothesis]] = []
        for k in range(count):
            # Each line has its own seed, so a translation does not depend on other lines of the batch.
            seeds = [np.random.SeedSequence((self.seed or 0, number, k)).generate_state(1)[0] for number in numbers]
            generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
            samples.append(head.sample(tokens, generators, length_penalty=penalty, **self.sampling))
        return [sorted(texts, key=lambda text: -text.score) for texts in zip(*samples, strict=True)]


@final
class AlignmentPage:
    """HTML file of alignment matrices. The file appears under its final name when the page is closed."""

    def __init__(self, path: str | Path) -> None:
        """Prepare a page, which is written to `path`. A `with` statement opens and closes the page."""
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"{path} is a folder: give a file in it, such as {self.path / 'alignments.html'}")
        if self.path.exists() and not self.path.is_file():  # The page would replace a device such as /dev/null.
            raise InputError(f"{path} is not a regular file: give the path of a new file, such as alignments.html")

    def add(self, number: int, alignment: Alignment, layers: Sequence[LayerLines] = ()) -> None:
        """Write the alignment matrix of a line, and the attention of each layer and head.

        Rows of the matrix are tokens of the target, and columns are tokens of the source.
        """
        source, target = ([printable(visible_token(token)) for token in tokens] for tokens in alignment[:2])
        header = "".join(f"<th scope=col>{escape(token)}</th>" for token in source)
        self._file.write(
            f"<div><table><caption>line {number}</caption><thead><tr><td></td>{header}</tr></thead><tbody>\n"
        )
        for token, row in zip(target, alignment[2], strict=True):
            cells = "".join(
                f'<td title="{escape(f"{token} → {source_token}: {weight:.2f}")}" style="background:'
                f'color-mix(in srgb, #1f6f8b {100 * weight:.0f}%, Canvas)"></td>'
                for source_token, weight in zip(source, row, strict=True)
            )
            self._file.write(f"<tr><th scope=row>{escape(token)}</th>{cells}</tr>\n")
        self._file.write(f"</tbody></table></div>\n{render_head_lines([asdict(layer) for layer in layers])}")

    def __enter__(self) -> "AlignmentPage":
        """Open the file. Raises InputError if the file cannot be written."""
        try:
            self._file = TextIOWrapper(create_temporary(self.path), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error
        self._file.write(add_policy(PAGE_START + head_lines_code()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file. After an error, the file contains only the matrices that were already written."""
        self._file.write("</html>\n")
        self._file.flush()
        Path(self._file.name).replace(self.path)
        self._file.close()


def open_input(path: str | None) -> BufferedIOBase:
    """Open a regular file, which may be compressed (.gz, .bz2 or .xz). None and "-" mean standard input."""
    if path is None or path == "-":
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  A closed stdin is None in Python.
            raise InputError("there is no standard input: give a file")
        return open(sys.stdin.fileno(), "rb", closefd=False)
    # /dev/null is not a regular file, but it is an empty input.
    return Path(path).open("rb") if path == os.devnull else open_stream(Path(path))


def read_as_it_arrives(file: BufferedIOBase, name: str) -> Iterator[list[Line]]:
    """Yield groups of at most `MAX_BATCH_LINES` lines of a file, as soon as the lines arrive.

    Only a line feed ends a line. A carriage return before a line feed is removed. If the first `BLOCK_BYTES` bytes
    contain no line feed, a carriage return ends a line. A byte order mark at the start of the file is removed. Only the
    first `MAX_READ_BYTES` bytes of a line are read. A warning counts the other bytes.

    Args:
        file: The open file.
        name: The file's name for error messages.

    Raises:
        InputError: The file cannot be read or decompressed, or a line has more than `MAX_SKIPPED_BYTES` bytes.
    """
    number, start, size, end = 0, bytearray(), 0, b"\n"
    while True:
        try:
            block = file.read1(BLOCK_BYTES)
        except DECOMPRESSION_ERRORS as error:
            raise InputError(f"{name} cannot be read: {one_line(error)}") from error
        is_first = not number and end == b"\n" and b"\n" not in block and (not block or size >= BLOCK_BYTES)
        if is_first and b"\r" in start[:-1]:
            end, block, start, size = b"\r", bytes(start) + block, bytearray(), 0
        is_last = not block
        *ended, rest = block.split(end)
        lines: list[bytes] = []
        for part in ended or ([b""] if is_last and size else []):
            lines.append(_finish_line(start, part, size + len(part), f"{name}, line {number + len(lines) + 1}"))
            start, size = bytearray(), 0
        start += rest[: MAX_READ_BYTES + 1 - len(start)]
        size += len(rest)
        if size > MAX_SKIPPED_BYTES:
            raise InputError(
                f"{name}, line {number + len(lines) + 1}: over {MAX_SKIPPED_BYTES:,} bytes in a line; give a text file"
            )
        for first in range(0, len(lines), MAX_BATCH_LINES):
            group = lines[first : first + MAX_BATCH_LINES]
            if not number:
                group[0] = group[0].removeprefix(b"\xef\xbb\xbf")
            yield list(enumerate(group, start=number + 1))
            number += len(group)
        if is_last:
            return


def _finish_line(start: bytearray, part: bytes, size: int, place: str) -> bytes:
    """Return a line from its start and its last part, without a carriage return at its end.

    Args:
        start: The first bytes of the line, at most `MAX_READ_BYTES` + 1 bytes.
        part: The last bytes of the line.
        size: Number of bytes in the line.
        place: The file and line for the warning that only `MAX_READ_BYTES` bytes are read.
    """
    if size <= MAX_READ_BYTES:
        return (bytes(start) + part).removesuffix(b"\r")
    line, cut = bytes(start) + part, MAX_READ_BYTES
    while cut and line[cut] & 0xC0 == 0x80:  # A character of UTF-8 is not divided.
        cut -= 1
    _warn(f"{place}: {size:,} bytes; only the first {cut:,} bytes are read, and {size - cut:,} bytes are left out")
    return line[:cut]


def translate(
    translator: Translator,
    file: BufferedIOBase,
    name: str,
    out: TextIO,
    decoding: DecodingOptions,
    page: AlignmentPage | None = None,
) -> None:
    """Write the translation of each line of a file. The translation of an empty line is an empty line.

    With `n_best`, the output contains one row per translation of a line, and the best translation comes first. A row
    contains the line number, a score and a text, separated by tabs. For an empty line, the only row contains the line
    number. With `candidates`, the output contains one JSON object per line.

    Args:
        translator: The translator.
        file: The open file with the lines.
        name: The file's name for error messages.
        out: The stream that receives the translations.
        decoding: The options of the translation.
        page: The page that receives the alignments, or None.

    Raises:
        InputError: A line cannot be read, or is too long. All earlier lines are translated before the error is raised.
    """
    for group in read_as_it_arrives(file, name):
        line_error: InputError | None = None
        lines: dict[int, Units | None] = {}
        for number, line in group:
            try:
                lines[number] = _encode(translator, line, f"{name}, line {number}", decoding.long)
            except InputError as error:
                line_error = error
                break
        numbers = [number for number, units in lines.items() if units is not None]
        results = translator.translate(
            [units for units in lines.values() if units is not None],
            lambda head, tokens, rows, numbers=numbers: decoding.search(head, tokens, [numbers[row] for row in rows]),
        )
        translations = dict(zip(numbers, results, strict=True))
        for number in lines:
            translation = translations.get(number)
            for row in _format_rows(number, translation, decoding):
                print(row, file=out)
            if translation is not None and translation.truncated:
                _warn(f"{name}, line {number}: the translation was truncated at the maximum length")
            if page is not None and translation is not None and translation.alignment is not None:
                units, text = lines[number], translation.texts[0]
                assert units is not None
                page.add(number, translation.alignment, explain_heads(translator.model, translator.task, units, text))
        out.flush()
        if line_error is not None:
            raise line_error


def _encode(translator: Translator, line: bytes, place: str, long: LongInput) -> Units | None:
    """Encode a line, or return None for an empty line. Error messages begin with `place`."""
    try:
        text = line.decode()
        if not text.strip():
            return None
        units = translator.encode(text)
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 text ({error.reason})") from error
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
    length = units.values.shape[-1]
    if length > translator.longest:
        message = f"{place}: {length} tokens, but the longest text in training had {translator.longest} tokens"
        if long == "refuse":
            raise InputError(f"{message}; to translate the line anyway, give --long translate")
        if (most := MAX_LENGTH_RATIO * translator.longest) < length:
            _warn(
                f"{message}; only the first {most:,} tokens ({MAX_LENGTH_RATIO} times the longest text) are "
                f"translated, and {length - most:,} tokens are left out"
            )
            return Units(torch.cat([units.values[: most - 1], units.values[-1:]]), units.positions[:, :most])
        _warn(f"{message}; the line is translated anyway")
    return units


def _format_rows(number: int, translation: Translation | None, decoding: DecodingOptions) -> list[str]:
    if decoding.candidates is not None:
        return [_format_steps(number, translation)]
    n_best = decoding.n_best is not None
    if translation is None:
        return [f"{number}\t\t" if n_best else ""]
    texts = [text.replace("\n", " ").replace("\r", " ") for text in translation.texts]
    if n_best:
        return [f"{number}\t{score:.4f}\t{text}" for score, text in zip(translation.scores, texts, strict=True)]
    return texts[:1]


def _format_steps(number: int, translation: Translation | None) -> str:
    """Return a line's translation and the likeliest tokens of each step as JSON."""
    steps = [
        {
            "token": step.token,
            "candidates": [{"token": token, "probability": round_probability(p)} for token, p in step.candidates],
        }
        for step in (translation and translation.steps) or []
    ]
    return json.dumps({"line": number, "text": translation.texts[0] if translation else "", "steps": steps})


def _warn(message: str) -> None:
    print_status(f"warning: {message}", sys.stderr)
