"""A text and its translation, line by line, from files of your own.

Additional training examples: texts that a run has translated, a second collection."""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast, final, get_args

import numpy as np
from numpy.typing import NDArray

from unifier.data.dataset import Examples, open_split
from unifier.data.readers import hash_files
from unifier.data.source import (
    NO_SCORE_RANGE,
    SPLITS,
    Example,
    ScoreRange,
    Source,
    SplitName,
    describe_example,
    name_of,
)
from unifier.data.splits import hold_out_rows
from unifier.data.storage import MemmapArray
from unifier.data.text_files import Duplicates, LineIndex, duplicate_pairs, length_outliers, open_decompressed, read_tmx
from unifier.files import print_status
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

Texts = str | Path | tuple[str | Path, str | Path]
"""One file of two columns with a tab between, a translation memory (.tmx), or a source file and a target file whose
lines correspond."""


MAX_HELD_OUT = 2000
"""The most pairs that are held out for a split: all of them are translated in each validation."""


@final
class ParallelText:
    """Sentence pairs from UTF-8 text files, packed (.gz) or not; input and target are texts.

    Where `val` or `test` is not given, a tenth of the pairs of `train` is held out for it, 2,000 at most, the same
    every time; none of which `train` keeps a copy.
    A pair with an empty side, or no UTF-8, raises InputError when it is read, so that such pairs can be left out.
    Pairs stay on disk until they are read: a few bytes are kept of each.
    """

    score_range = ScoreRange("bleu", 0.0, None, NO_SCORE_RANGE)

    def __init__(
        self,
        train: Texts,
        val: Texts | None = None,
        test: Texts | None = None,
        *,
        name: str = "parallel_text",
        languages: tuple[str, str] | None = None,
        length_ratio: float | None = None,
        duplicates: Duplicates = "keep",
    ) -> None:
        """`languages` are those of source and target, which a translation memory needs to be told.

        `length_ratio` and `duplicates` clean the pairs of `train`, before any are held out: pairs are dropped of which
        one text has more than so many times the characters of the other, and those that have occurred before.
        """
        if length_ratio is not None and not length_ratio >= 1:
            raise InputError(f"length_ratio={length_ratio}: at least 1 is needed, that of texts of like length")
        self.name, self._languages, self._length_ratio = name, languages, length_ratio
        self._duplicates = check_choice("duplicates", duplicates, get_args(Duplicates))
        given: dict[SplitName, Texts | None] = {"train": train, "val": val, "test": test}
        self._files: dict[SplitName, tuple[Path, ...]] = {
            part: tuple(map(Path, texts if isinstance(texts, tuple) else (texts,)))
            for part, texts in given.items()
            if texts is not None
        }

    def split(self, name: SplitName) -> Examples[int]:
        """The pairs of one split.

        Raises InputError for a file that lacks, cannot be read or is empty, and for two files of unlike length.
        """
        check_choice("split", name, SPLITS)
        read = self._pairs[name if name in self._files else "train"]
        return Examples(self._rows[name], read, read.where)

    @cached_property
    def whole(self) -> Examples[int]:
        """All pairs of `train` that cleaning leaves, none held out."""
        read = self._pairs["train"]
        return Examples(
            cast("Sequence[int]", MemmapArray.from_array(np.flatnonzero(self._cleaned[0]))), read, read.where
        )

    @cached_property
    def sha256(self) -> str:
        """The hash of the files, in the order train, val, test."""
        return hash_files({f"{part}/{k}": file for part, files in self._files.items() for k, file in enumerate(files)})

    @property
    def dropped(self) -> dict[str, int]:
        """How many pairs of `train` were left out, for each reason there could be."""
        return self._cleaned[1]

    @cached_property
    def _pairs(self) -> "dict[SplitName, _Pairs]":
        return {part: _Pairs(files, self._languages) for part, files in self._files.items()}

    @cached_property
    def _cleaned(self) -> tuple[NDArray[np.bool_], dict[str, int]]:
        """Which rows of `train` stay, a bool each, and how many do not."""
        pairs = self._pairs["train"]
        stays, dropped = np.ones(len(pairs), np.bool_), dict[str, int]()
        if pairs.numbers is not None:
            dropped["untranslated"] = pairs.lacking
        if self._length_ratio is not None:
            unlike = length_outliers(pairs.raw(), self._length_ratio)
            stays, dropped["length_ratio"] = stays & ~unlike, int(unlike.sum())
        if self._duplicates == "drop":
            again = duplicate_pairs(pairs.raw()) & stays
            stays, dropped["duplicates"] = stays & ~again, int(again.sum())
        if any(dropped.values()):
            said = ", ".join(f"{count:,} ({reason})" for reason, count in dropped.items())
            print_status(f"{self.name}: of {len(pairs) + pairs.lacking:,} pairs to train, dropped {said}", sys.stderr)
        return stays, dropped

    @cached_property
    def _rows(self) -> dict[SplitName, Sequence[int]]:
        rows: dict[SplitName, Any] = {part: range(len(pairs)) for part, pairs in self._pairs.items()}
        rows["train"] = np.flatnonzero(self._cleaned[0])
        lacking: list[SplitName] = [part for part in SPLITS if part not in rows]
        if lacking:
            whole, what = rows["train"], f"{self._files['train'][0]}, {len(rows['train']):,} pairs"
            raw = self._pairs["train"].raw()
            alone = None if self._duplicates == "drop" else ~duplicate_pairs(raw, first_too=True)[whole]
            held = hold_out_rows(what, len(whole), lacking, max_rows=MAX_HELD_OUT, unique=alone)
            rows |= {part: whole[some] for part, some in held.items()}
        return {part: cast("Sequence[int]", MemmapArray.from_array(np.asarray(one))) for part, one in rows.items()}


@final
class _Pairs:
    """The pairs of some files by row, each read when it is asked for; it can go into data num_workers."""

    def __init__(self, files: tuple[Path, ...], languages: tuple[str, str] | None) -> None:
        self.files, self.languages = files, languages
        self.numbers: NDArray[np.int64] | None = None
        """Of a translation memory: each pair's number in it."""
        self.lacking = 0
        if files[0].name.lower().removesuffix(".gz").endswith(".tmx"):
            if files[1:]:
                raise InputError(f"{files[0]} holds both languages, and {files[1]} stands beside it: give one of them")
            if languages is None:
                raise InputError(f"{files[0]}: a translation memory has many languages; say which two are meant")
            memory = read_tmx(files[0], languages)
            self.sides = [LineIndex(memory.source), LineIndex(memory.target)]
            self.numbers, self.lacking = memory.unit_numbers.read(), memory.num_incomplete
        else:
            self.sides = [LineIndex(open_decompressed(file)) for file in files]
        if len(self.sides[0]) != len(self.sides[-1]):
            raise InputError(
                f"{files[0]} has {len(self.sides[0]):,} lines and {files[-1]} {len(self.sides[-1]):,}: "
                "line by line they cannot be translations of each other"
            )
        if not len(self):
            raise InputError(f"{files[0]} is empty")

    def __reduce__(self) -> Any:
        return _Pairs, (self.files, self.languages)  # open files do not travel

    def __len__(self) -> int:
        return len(self.sides[0])

    def raw(self) -> Iterator[tuple[bytes, bytes]]:
        """All pairs as they stand; a line without a tab has no second text."""
        if len(self.sides) == 2:
            return zip(*self.sides, strict=True)
        return ((source, target) for source, _, target in (line.partition(b"\t") for line in self.sides[0]))

    def example_id(self, row: int, side: int = 0) -> str:
        if self.numbers is not None:
            return f"{self.files[0]}, unit {self.numbers[row]}"
        return f"{self.files[side]}, line {row + 1}"

    def __call__(self, row: int) -> Example:
        texts: list[str] = []
        for k, side in enumerate(self.sides):
            try:
                texts.append(side[row].decode())
            except UnicodeDecodeError as error:
                raise InputError(f"{self.example_id(row, k)}: not UTF-8 text ({error.reason})") from error
        if len(texts) == 1:
            texts = texts[0].split("\t")
            if len(texts) != 2:
                raise InputError(f"{self.example_id(row)}: one tab is expected, and there are {len(texts) - 1}")
        for k, (text, name) in enumerate(zip(texts, ("source", "target"), strict=True)):
            if not text.strip():
                raise InputError(f"{self.example_id(row, k % len(self.files))}: the {name} is empty")
        return Example(*texts)


@final
class WithExtraPairs:
    """A source whose training examples are followed by all pairs of `extra`; val and test are its own."""

    def __init__(self, source: Source, extra: ParallelText) -> None:
        self.name, self.score_range = name_of(source), getattr(source, "score_range", None)
        self._source, self._extra = source, extra

    def split(self, name: SplitName) -> Sequence[Example]:
        """The examples of one split; those to train on still know their places."""
        own = open_split(self._source, name)
        if name != "train":
            return own
        extra = self._extra.whole
        return Examples(range(len(own) + len(extra)), partial(_read, own, extra), partial(_place, own, extra))

    @property
    def sha256(self) -> str | None:
        """A hash of both's; None where the source has none."""
        own = getattr(self._source, "sha256", None)
        return own and hashlib.sha256(f"{own} {self._extra.sha256}".encode()).hexdigest()

    @property
    def dropped(self) -> dict[str, int]:
        """How many pairs cleaning left out of either, by reason."""
        own, extra = getattr(self._source, "dropped", None) or dict[str, int](), self._extra.dropped
        return {reason: own.get(reason, 0) + extra.get(reason, 0) for reason in own | extra}


def _read(own: Sequence[Example], extra: Sequence[Example], index: int) -> Example:
    return own[index] if index < len(own) else extra[index - len(own)]


def _place(own: Sequence[Example], extra: Sequence[Example], index: int) -> str:
    return describe_example(own, index) if index < len(own) else describe_example(extra, index - len(own))
