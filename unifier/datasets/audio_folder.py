"""Sounds of your own, listed with their labels in a table, or in one folder per class."""

import os
import warnings
from functools import cached_property
from pathlib import Path
from typing import Literal, final

from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.readers import (
    AUDIO_SUFFIXES,
    TableRow,
    hash_all,
    hash_each,
    parse_integer,
    read_audio,
    read_groups,
    read_labels_table,
)
from unifier.data.source import NO_SCORE_RANGE, SPLITS, UNREADABLE_MARK, ScoreRange, SplitName, accuracy_range
from unifier.data.splits import check_no_leak, check_trained_labels, count_copies, hold_out, rotate_folds, select_part
from unifier.datasets.class_folders import files_by_class, folds_of, split_folders
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice


@final
class AudioFolder:
    """Sounds named by a CSV table with the columns file (from the table's folder) and label; or a folder of them.

    The folder holds train/<class>/, val/<class>/ and test/<class>/, or <class>/ alone, and is read as an `ImageFolder`:
    what lacks is held out, or else split as its folds.csv says. Files with other endings than `SOUND_SUFFIXES` are left
    out with a warning, hidden ones without.

    The input is a `Sound`, float32 (samples,) or (channels, samples), at its file's own rate. The target is the label,
    or with task "tags" a tuple of labels, which the table separates by semicolons; it may be empty.

    The split is the column split (train, val, test); or, with `fold` or without such a column, that of the column fold
    (numbers): `fold`, by default the first, is the test and the next one validates. For what neither tells, val or test
    or both, a tenth of the rest is held out, the same every time, stratified by label. A column group (who speaks, who
    plays) keeps each group in one split: groups are held out whole, and a given split or fold that cuts one is refused.
    So is a given split with a label that train lacks.
    """

    name = "audio_folder"

    def __init__(
        self,
        place: str | Path,
        *,
        target: Literal["label", "tags"] = "label",
        fold: int | None = None,
    ) -> None:
        self.target = check_choice("task", target, ("label", "tags"))
        self._place, self._fold = Path(place), fold
        self._table = self._place / "folds.csv" if self._place.is_dir() else self._place

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the table, in the order of the alphabet."""
        targets = [sound.target for sound in self._sounds]
        return tuple(sorted({tag for tags in targets for tag in tags} if self.target == "tags" else set(targets)))

    @property
    def folds(self) -> tuple[int, ...]:
        """The numbers in the column fold of the table, or of folds.csv; none where there is no such column."""
        return tuple(sorted(set(self._numbers or ())))

    @property
    def score_range(self) -> ScoreRange:
        """Chance alone: of your own sounds no reference is known."""
        if self.target == "tags":
            return ScoreRange("macro_auc", 0.5, None, NO_SCORE_RANGE)
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """The sounds of one split, in the order of the table. A sound that cannot be read raises InputError."""
        return from_files(select_part(self._sounds, self._parts, name), read_audio)

    @cached_property
    def sha256(self) -> str:
        """The hash of the table, where there is one, and of every sound that can be read."""
        table = hash_each({"table": self._table}) if self._table.exists() else {}
        return hash_all(table | self._hashes)

    @property
    def copies(self) -> int:
        """How many sounds of val and test are in train too, byte for byte."""
        return count_copies(list(self._hashes.values()), self._parts)

    @cached_property
    def _hashes(self) -> dict[str, str]:
        """Each sound's own, in the order of the table."""
        return hash_each({row.cells["file"]: self._path(row) for row in self._rows}, unreadable=UNREADABLE_MARK)

    @cached_property
    def _rows(self) -> list[TableRow]:
        if self._place.is_dir():
            return self._found()
        rows = read_labels_table(self._table, ("file", "label"))
        if not rows:
            raise InputError(f"{self._table} lists no sounds")
        files = [os.path.normpath(row.cells["file"]) for row in rows]
        check_no_leak(f"{self._table}:", files, [f"line {row.line}" for row in rows])
        return rows

    def _found(self) -> list[TableRow]:
        """The sounds of a folder, as a table would list them."""
        if self.target == "tags":
            raise InputError(f"{self._place} is a folder, which has no tags: list its sounds in a table")
        found = files_by_class(self._place, AUDIO_SUFFIXES, "sounds", "dog/1.wav")
        sounds = [sound for part in found.values() for sound in part]
        files = [sound.path.relative_to(self._place).as_posix() for sound in sounds]
        if self._fold is not None or self._table.exists():
            rows = folds_of(self._table, files)
        else:
            parts = split_folders(self._place, found)
            rows = [TableRow(0, {"file": file, "split": part}) for file, part in zip(files, parts, strict=True)]
        return [TableRow(row.line, row.cells | {"label": one.target}) for row, one in zip(rows, sounds, strict=True)]

    def _path(self, row: TableRow) -> Path:
        return self._table.parent / row.cells["file"]

    def _column(self, name: str) -> list[str] | None:
        return [row.cells[name] for row in self._rows] if name in self._rows[0].cells else None

    @cached_property
    def _sounds(self) -> list[LabeledFile]:
        if self.target == "tags":
            tags = [[tag.strip() for tag in row.cells["label"].split(";")] for row in self._rows]
            if all(len(own) == 1 for own in tags) and (listed := next((tag for (tag,) in tags if "," in tag), None)):
                warnings.warn(
                    f"{self._table}: {listed!r} is one tag; several are separated by semicolons", stacklevel=2
                )
            return [
                LabeledFile(self._path(row), tuple(filter(None, own)))
                for row, own in zip(self._rows, tags, strict=True)
            ]
        if lacking := next((row for row in self._rows if not row.cells["label"].strip()), None):
            raise InputError(f"{self._table}, line {lacking.line}: the label is empty; leave the row out")
        return [LabeledFile(self._path(row), row.cells["label"].strip()) for row in self._rows]

    @property
    def _classes(self) -> list[str]:
        """The label of each row; all one where it has tags, since most sets of tags are unlike each other."""
        return ["" if self.target == "tags" else sound.target for sound in self._sounds]

    @cached_property
    def _groups(self) -> list[str] | None:
        return read_groups(self._rows)

    @cached_property
    def _numbers(self) -> list[int] | None:
        """The fold of each row."""
        if "fold" not in self._rows[0].cells:
            return None
        return [parse_integer(row.cells["fold"], f"{self._table}, line {row.line}") for row in self._rows]

    @cached_property
    def _parts(self) -> list[SplitName]:
        """The split of each row."""
        splits = self._column("split")
        if splits is not None and self._fold is None:
            parts: list[SplitName] = [
                check_choice(f"split ({self._table}, line {row.line})", given, SPLITS)
                for row, given in zip(self._rows, splits, strict=True)
            ]
            if "train" not in parts:
                raise InputError(f"{self._table}: no row is of split train, and there is nothing to train on")
            if self._groups is not None:
                check_no_leak(f"{self._table}: group", self._groups, [f"split {part}" for part in parts])
            check_trained_labels(str(self._place), self._classes, parts)
            return self._held_out(parts)
        if self._numbers is not None:
            return rotate_folds(str(self._table), self._numbers, self._fold, groups=self._groups, labels=self._classes)
        if self._fold is not None:
            raise InputError(f"{self._table} has no column fold; its columns are {', '.join(self._rows[0].cells)}")
        return self._held_out(["train"] * len(self._sounds))

    def _held_out(self, parts: list[SplitName]) -> list[SplitName]:
        """The same with every split that there is nothing of, val or test or both, held out of training."""
        lacking: list[SplitName] = [part for part in SPLITS if part not in parts]
        if not lacking:
            return parts
        groups = None if self._groups is None else select_part(self._groups, parts, "train")
        drawn = iter(hold_out(str(self._place), select_part(self._classes, parts, "train"), lacking, groups=groups))
        return [next(drawn) if part == "train" else part for part in parts]
