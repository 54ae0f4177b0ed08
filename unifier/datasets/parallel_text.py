"""Sentence pairs from your own files, and a source with additional training pairs.

Additional pairs may be translations by a trained model, or pairs from other files.
"""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast, final, get_args

import numpy as np
from numpy.typing import NDArray

from unifier.data.dataset import Examples, concatenate, open_split
from unifier.data.readers import hash_files
from unifier.data.source import (
    NO_SCORE_RANGE,
    SPLITS,
    Example,
    ScoreRange,
    Source,
    SplitName,
    name_of,
)
from unifier.data.splits import hold_out_rows
from unifier.data.storage import MemmapArray
from unifier.data.text_files import (
    Duplicates,
    LineIndex,
    duplicate_pairs,
    length_outliers,
    open_lines,
    remove_compressed_suffix,
)
from unifier.data.tmx import read_tmx
from unifier.files import print_status
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

Texts = str | Path | tuple[str | Path, str | Path]
"""Files with sentence pairs: a source file and a target file, a file with two columns, or a translation memory.

A tab separates the two columns. A translation memory has the suffix .tmx.
"""

MAX_HELD_OUT = 2000
"""Maximum number of pairs that are held out for a split. More pairs would make each validation slower."""


@final
class ParallelText:
    """Sentence pairs from UTF-8 text files, which may be compressed (.gz, .bz2 or .xz).

    The input is a text, and the target is its translation. A tenth of the `train` pairs, at most 2,000 pairs, is held
    out for each missing split, val or test. The held-out pairs are chosen with a fixed seed. Train contains no copy of
    a held-out pair.

    A pair is read from disk when it is indexed. Each pair takes only a few bytes of memory. If a text is empty, not
    valid UTF-8 or a line of over 4 MB, reading its pair raises an InputError. With `bad_examples=skip`, unreadable
    pairs are left out.
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
        """Store the paths of the files. The files are read later.

        Args:
            train: Texts of train.
            val: Texts of val. With None, pairs of `train` are held out.
            test: Texts of test. With None, pairs of `train` are held out.
            name: Name of the data set.
            languages: Languages of input and target. Translation memories need this argument.
            length_ratio: Drop a pair of `train` if the longer text has more than `length_ratio` times the characters of
                the shorter text. None means that no pair is dropped for its length.
            duplicates: "drop" removes a pair of `train` that equals an earlier pair. Pairs are dropped before val and
                test are held out.
        """
        if length_ratio is not None and not length_ratio >= 1:
            raise InputError(f"length_ratio={length_ratio}: give at least 1, which is the ratio for equal lengths")
        self.name, self._languages, self._length_ratio = name, languages, length_ratio
        self._duplicates = check_choice("duplicates", duplicates, get_args(Duplicates))
        given: dict[SplitName, Texts | None] = {"train": train, "val": val, "test": test}
        self._files: dict[SplitName, tuple[Path, ...]] = {
            part: tuple(map(Path, texts if isinstance(texts, tuple) else (texts,)))
            for part, texts in given.items()
            if texts is not None
        }

    def split(self, name: SplitName) -> Examples[int]:
        """Return the pairs of one split.

        Raises:
            InputError: A file does not exist, cannot be read or is empty, or two files differ in the number of lines.
        """
        check_choice("split", name, SPLITS)
        pairs = self._pairs[name if name in self._files else "train"]
        return Examples(self._rows[name], pairs, pairs.example_id)

    @cached_property
    def cleaned_pairs(self) -> Examples[int]:
        """All pairs of `train` except the dropped pairs. Pairs that are held out for val and test are included."""
        pairs = self._pairs["train"]
        rows = MemmapArray.from_array(np.flatnonzero(self._cleaning[0]))
        return Examples(cast("Sequence[int]", rows), pairs, pairs.example_id)

    @cached_property
    def sha256(self) -> str:
        """The hash of the files in the order train, val, test."""
        return hash_files({f"{part}/{k}": file for part, files in self._files.items() for k, file in enumerate(files)})

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped `train` pairs for each reason."""
        return self._cleaning[1]

    @cached_property
    def _pairs(self) -> "dict[SplitName, _PairReader]":
        return {part: _PairReader(files, self._languages) for part, files in self._files.items()}

    @cached_property
    def _cleaning(self) -> tuple[NDArray[np.bool_], dict[str, int]]:
        """A mask (n,), True for pairs of `train` that are not dropped, and the number of dropped pairs per reason."""
        pairs = self._pairs["train"]
        remains, dropped = np.ones(len(pairs), np.bool_), dict[str, int]()
        if pairs.unit_numbers is not None:
            dropped["untranslated"] = pairs.num_incomplete
        if self._length_ratio is not None:
            outliers = length_outliers(pairs.raw(), self._length_ratio)
            remains, dropped["length_ratio"] = remains & ~outliers, int(outliers.sum())
        if self._duplicates == "drop":
            repeats = duplicate_pairs(pairs.raw()) & remains
            remains, dropped["duplicates"] = remains & ~repeats, int(repeats.sum())
        if any(dropped.values()):
            counts = ", ".join(f"{count:,} ({reason})" for reason, count in dropped.items())
            total = len(pairs) + pairs.num_incomplete
            print_status(f"{self.name}: dropped {counts} of {total:,} training pairs", sys.stderr)
        return remains, dropped

    @cached_property
    def _rows(self) -> dict[SplitName, Sequence[int]]:
        """The row of each pair in its file, for each split."""
        rows: dict[SplitName, Any] = {part: range(len(pairs)) for part, pairs in self._pairs.items()}
        rows["train"] = np.flatnonzero(self._cleaning[0])
        missing: list[SplitName] = [part for part in SPLITS if part not in rows]
        if missing:
            remaining = rows["train"]
            name = f"{self._files['train'][0]}, {len(remaining):,} pairs"
            raw = self._pairs["train"].raw()
            unique = None if self._duplicates == "drop" else ~duplicate_pairs(raw, first_too=True)[remaining]
            held_out = hold_out_rows(name, len(remaining), missing, max_rows=MAX_HELD_OUT, unique=unique)
            rows |= {part: remaining[indices] for part, indices in held_out.items()}
        return {part: cast("Sequence[int]", MemmapArray.from_array(np.asarray(row))) for part, row in rows.items()}


@final
class _PairReader:
    """Reader of sentence pairs from one file or two parallel files. The reader can be pickled for worker processes."""

    def __init__(self, files: tuple[Path, ...], languages: tuple[str, str] | None) -> None:
        self.files, self.languages = files, languages
        self.unit_numbers: NDArray[np.int64] | None = None
        """The position of each pair's unit in a translation memory, counted from 1. None if the file is not a
        translation memory."""
        self.num_incomplete = 0
        """Number of units in a translation memory that have no text in one of the languages."""
        if remove_compressed_suffix(files[0].name).endswith(".tmx"):
            if files[1:]:
                raise InputError(f"{files[0]} already contains both languages: do not give {files[1]} as well")
            if languages is None:
                raise InputError(f"{files[0]}: a translation memory may have many languages; give two as `languages`")
            memory = read_tmx(files[0], languages)
            self.sides = [LineIndex(memory.source), LineIndex(memory.target)]
            self.unit_numbers, self.num_incomplete = memory.unit_numbers.read(), memory.num_incomplete
        else:
            self.sides = [open_lines(file, may_be_long=True) for file in files]
        if len(self.sides[0]) != len(self.sides[-1]):
            raise InputError(
                f"{files[0]} has {len(self.sides[0]):,} lines and {files[-1]} {len(self.sides[-1]):,}: "
                "the two files must have equal numbers of lines, because they are translations line by line"
            )
        if not len(self):
            raise InputError(f"{files[0]} is empty, but at least one pair is needed")

    def __reduce__(self) -> Any:
        return _PairReader, (self.files, self.languages)  # Open files cannot be pickled.

    def __len__(self) -> int:
        return len(self.sides[0])

    def __call__(self, row: int) -> Example:
        texts: list[str] = []
        for k, side in enumerate(self.sides):
            try:
                texts.append(side[row].decode())
            except UnicodeDecodeError as error:
                raise InputError(f"{self.example_id(row, k)}: the text is not UTF-8 ({error.reason})") from error
            except InputError as error:
                raise InputError(f"{self.example_id(row, k)}: {error}") from error
        if len(texts) == 1:
            texts = texts[0].split("\t")
            if len(texts) != 2:
                raise InputError(
                    f"{self.example_id(row)}: the line has {len(texts) - 1} tabs, but one tab between two texts is "
                    "expected"
                )
        for k, (text, name) in enumerate(zip(texts, ("source", "target"), strict=True)):
            if not text.strip():
                raise InputError(f"{self.example_id(row, k % len(self.files))}: the {name} is empty")
        return Example(*texts)

    def example_id(self, row: int, side: int = 0) -> str:
        """Return the file and line of a pair, or the file and unit if the file is a translation memory."""
        if self.unit_numbers is not None:
            return f"{self.files[0]}, unit {self.unit_numbers[row]}"
        return f"{self.files[side]}, line {row + 1}"

    def raw(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all pairs as bytes. If a line has no tab, its target is empty."""
        if len(self.sides) == 2:
            return zip(*self.sides, strict=True)
        return ((source, target) for source, _, target in (line.partition(b"\t") for line in self.sides[0]))


@final
class WithExtraPairs:
    """A source whose train split also has the pairs of another source (`extra`). Val and test are unchanged."""

    def __init__(self, source: Source, extra: ParallelText) -> None:
        self.name, self.score_range = name_of(source), getattr(source, "score_range", None)
        self._source, self._extra = source, extra

    def split(self, name: SplitName) -> Sequence[Example]:
        """Return the examples of one split. In train, the additional pairs come last."""
        examples = open_split(self._source, name)
        if name != "train":
            return examples
        return concatenate([examples, self._extra.cleaned_pairs])

    @property
    def sha256(self) -> str | None:
        """The hash of both sources, or None if the first source has no hash."""
        digest = getattr(self._source, "sha256", None)
        return digest and hashlib.sha256(f"{digest} {self._extra.sha256}".encode()).hexdigest()

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped pairs of both sources for each reason."""
        counts, extra = getattr(self._source, "dropped", None) or dict[str, int](), self._extra.dropped
        return {reason: counts.get(reason, 0) + extra.get(reason, 0) for reason in counts | extra}
