"""A text and its translation, line by line, from files of your own."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.examples import Examples
from unifier.data.files import hash_files, read_lines
from unifier.data.source import UNKNOWN, Example, Scale, SplitName
from unifier.data.splitting import SPLITS, hold_out, pick
from unifier_tokenizers import InputError
from unifier_tokenizers.choice import choose

Texts = str | Path | tuple[str | Path, str | Path]
"""One file of two columns with a tab between, or a source file and a target file whose lines correspond."""


class Line(NamedTuple):
    """A line of the source file and the one it corresponds to; of a file of two columns, the line and itself."""

    number: int
    source: str
    target: str


@final
class ParallelText:
    """Sentence pairs from UTF-8 text files, packed (.gz) or not; input and target are texts.

    Where `val` or `test` is not given, a tenth of the lines of `train` is held out for it, the same every time.
    A pair with an empty side raises InputError when it is read, so that such pairs can be left out.
    """

    scale = Scale("bleu", 0.0, None, UNKNOWN)

    def __init__(
        self, train: Texts, val: Texts | None = None, test: Texts | None = None, *, name: str = "parallel_text"
    ) -> None:
        self.name = name
        given: dict[SplitName, Texts | None] = {"train": train, "val": val, "test": test}
        self._files: dict[SplitName, tuple[Path, ...]] = {
            part: tuple(map(Path, texts if isinstance(texts, tuple) else (texts,)))
            for part, texts in given.items()
            if texts is not None
        }

    def split(self, name: SplitName) -> Examples[Line]:
        """The pairs of one split.

        Raises InputError for a file that lacks or is no UTF-8, and for two files of unlike length.
        """
        choose("split", name, SPLITS)
        read = _Pairs(self._files.get(name, self._files["train"]))
        return Examples(self._lines[name], read, read.where)

    @cached_property
    def sha256(self) -> str:
        """The hash of the files, in the order train, val, test."""
        return hash_files({f"{part}/{k}": file for part, files in self._files.items() for k, file in enumerate(files)})

    @cached_property
    def _lines(self) -> dict[SplitName, list[Line]]:
        lines: dict[SplitName, list[Line]] = {part: _read(files) for part, files in self._files.items()}
        lacking: list[SplitName] = [part for part in SPLITS if part not in lines]
        if lacking:
            whole = lines["train"]
            splits = hold_out(self.name, [""] * len(whole), lacking)
            for part in (SPLITS[0], *lacking):
                lines[part] = pick(whole, splits, part)
        return lines


def _read(files: Sequence[Path]) -> list[Line]:
    texts = [read_lines(file) for file in files]
    if len(texts[0]) != len(texts[-1]):
        raise InputError(
            f"{files[0]} has {len(texts[0]):,} lines and {files[-1]} {len(texts[-1]):,}: "
            "line by line they cannot be translations of each other"
        )
    return [Line(number, *pair) for number, pair in enumerate(zip(texts[0], texts[-1], strict=True), start=1)]


@final
class _Pairs:
    """What a line of these files says."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def where(self, line: Line) -> str:
        return f"{self.files[0]}, line {line.number}"

    def __call__(self, line: Line) -> Example:
        source, target = line.source, line.target
        if len(self.files) == 1:
            tabs = source.count("\t")
            if tabs != 1:
                raise InputError(f"{self.where(line)}: one tab is expected, and there are {tabs}")
            source, target = source.split("\t")
        for side, text, file in (("source", source, self.files[0]), ("target", target, self.files[-1])):
            if not text.strip():
                raise InputError(f"{file}, line {line.number}: the {side} is empty")
        return Example(source, target)
