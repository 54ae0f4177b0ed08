"""Your own sounds: a table that lists the files and their labels, or a folder with one folder per class."""

import os
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, final

from unifier.data.audio_files import AUDIO_SUFFIXES, read_audio
from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.readers import (
    MAX_LISTED_COLUMNS,
    TableRow,
    hash_all,
    hash_each,
    parse_integer,
    parse_label,
    read_groups,
    read_labels_table,
)
from unifier.data.source import NO_SCORE_RANGE, SPLITS, UNREADABLE_MARK, ScoreRange, SplitName, accuracy_range
from unifier.data.splits import check_no_leak, check_trained_labels, count_copies, hold_out, rotate_folds, select_part
from unifier.datasets.class_folders import files_by_class, leads_outside, read_folds_table, split_folders, task_name
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice


@final
class AudioFolder:
    """Your own sounds, from a CSV table with the columns `file` and `label`, or from one folder per class.

    The input is an `Audio` with a float32 waveform (samples,) or (channels, samples), at the sample rate of the file.
    The target is the label, or a tuple of tags. File names in the table are relative to the table's folder.
    The files must be in this folder unless the argument `allow_outside` is given.

    A folder has the same layout as for `ImageFolder`: either train/<class>/, val/<class>/ and test/<class>/, or only
    <class>/. The folder may also contain folds.csv. Files that are not sounds are left out with a warning. Hidden files
    are left out without a warning.

    A table may have three optional columns:

    - `split`: train, val or test.
    - `fold`: an integer. One fold is the test split, the next fold is the val split, and all other folds are the train
      split. The column `fold` is used if the argument `fold` is given, or if the table has no column `split`.
    - `group`: for example the speaker or the artist. All sounds of a group must be in the same split and the same fold.

    A tenth of the train sounds is held out for each missing split, val or test. The held-out sounds are chosen with a
    fixed seed and stratified by label. Every label of val and test must also occur in train.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        target: Literal["label", "tags"] = "label",
        fold: int | None = None,
        allow_outside: bool = False,
    ) -> None:
        """Store the path of the table or folder. The files are read later.

        Args:
            path: The CSV table or the folder.
            target: "label" if each sound has one label. "tags" if a sound can have any number of tags, separated by
                semicolons in the column `label`.
            fold: The fold to test on. None means the first fold if there are folds.
            allow_outside: True if the table may name files outside its folder, with absolute paths, `..` or links, or
                if links in a folder may lead outside. Data from an unknown source could name any file of the machine.
        """
        self.target = check_choice("target", target, ("label", "tags"))
        self._path, self._fold, self._allow_outside = Path(path), fold, allow_outside
        self._table = self._path / "folds.csv" if self._path.is_dir() else self._path
        self.name = task_name(self._table.parent)

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels or tags in alphabetical order."""
        targets = [sound.target for sound in self._sounds]
        return tuple(sorted({tag for tags in targets for tag in tags} if self.target == "tags" else set(targets)))

    @property
    def folds(self) -> tuple[int, ...]:
        """The different numbers in the column `fold`. Empty if the table has no column `fold`."""
        return tuple(sorted(set(self._fold_numbers or ())))

    @property
    def score_range(self) -> ScoreRange:
        """The score range, which contains a chance score but no reference score."""
        if self.target == "tags":
            return ScoreRange("macro_auc", 0.5, None, NO_SCORE_RANGE)
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the sounds of one split in the order of the table.

        Raises:
            InputError: The table or folder does not have the layout that the class describes. Reading a sound from a
                damaged file also raises an InputError.
        """
        return from_files(select_part(self._sounds, self._parts, name), read_audio)

    @cached_property
    def sha256(self) -> str:
        """The hash of all readable sounds, and of the table if there is one."""
        table = hash_each({"table": self._table}) if self._table.exists() else {}
        return hash_all(table | self._hashes)

    @property
    def copies(self) -> int:
        """The number of val and test sounds whose files are exact copies of train files."""
        return count_copies(list(self._hashes.values()), self._parts)

    @cached_property
    def _hashes(self) -> dict[str, str]:
        """The hash of each sound. The keys are the file names in the table."""
        return hash_each({row.cells["file"]: self._sound_path(row) for row in self._rows}, unreadable=UNREADABLE_MARK)

    @cached_property
    def _rows(self) -> list[TableRow]:
        if self._path.is_dir():
            return self._rows_of_folder()
        rows = read_labels_table(self._table, ("file", "label"))
        if not rows:
            raise InputError(f"{self._table} has a header but no rows: add one row per sound")
        if not self._allow_outside:
            self._check_inside(rows)
        files = [os.path.normpath(row.cells["file"]) for row in rows]
        check_no_leak(f"{self._table}:", files, [f"line {row.line}" for row in rows])
        return rows

    def _check_inside(self, rows: Sequence[TableRow]) -> None:
        """Raise InputError if a row names a file outside the table's folder."""
        for row in rows:
            if leads_outside(self._table.parent, row.cells["file"]):
                raise InputError(
                    f"{self._table}, line {row.line}: {row.cells['file']!r} is outside the folder of the table: move "
                    "the file into the folder, or give allow_outside=true if you trust the table"
                )

    def _rows_of_folder(self) -> list[TableRow]:
        """Return one row for each sound in the folder, as if a table listed the sounds."""
        if self.target == "tags":
            raise InputError(f"target=tags: {self._path} is a folder without tags: list its sounds and tags in a table")
        by_folder = files_by_class(self._path, AUDIO_SUFFIXES, "sounds", "dog/1.wav", allow_outside=self._allow_outside)
        sounds = [sound for part in by_folder.values() for sound in part]
        files = [sound.path.relative_to(self._path).as_posix() for sound in sounds]
        if self._fold is not None or self._table.exists():
            rows = read_folds_table(self._table, files)
        else:
            parts = split_folders(self._path, by_folder)
            rows = [TableRow(0, {"file": file, "split": part}) for file, part in zip(files, parts, strict=True)]
        return [
            TableRow(row.line, row.cells | {"label": sound.target}) for row, sound in zip(rows, sounds, strict=True)
        ]

    def _sound_path(self, row: TableRow) -> Path:
        return self._table.parent / row.cells["file"]

    @cached_property
    def _sounds(self) -> list[LabeledFile]:
        if self.target == "tags":
            tags = [
                [tag.strip() and self._parse_label(row, tag) for tag in row.cells["label"].split(";")]
                for row in self._rows
            ]
            single = all(len(cell) == 1 for cell in tags)
            if single and (with_comma := next((tag for (tag,) in tags if "," in tag), None)):
                warnings.warn(
                    f"{self._table}: {with_comma!r} is read as one tag; separate tags by semicolons", stacklevel=2
                )
            return [
                LabeledFile(self._sound_path(row), tuple(filter(None, cell)))
                for row, cell in zip(self._rows, tags, strict=True)
            ]
        return [LabeledFile(self._sound_path(row), self._parse_label(row, row.cells["label"])) for row in self._rows]

    def _parse_label(self, row: TableRow, cell: str) -> str:
        return parse_label(cell, f"{self._table}, line {row.line}")

    @property
    def _strata(self) -> list[str]:
        """The label of each row. Random draws are stratified by label.

        With tags, every row has an empty label, because few sounds have exactly equal tags.
        """
        return ["" if self.target == "tags" else sound.target for sound in self._sounds]

    @cached_property
    def _groups(self) -> list[str] | None:
        return read_groups(self._rows)

    @cached_property
    def _fold_numbers(self) -> list[int] | None:
        """The fold of each row, or None if the table has no column `fold`."""
        if "fold" not in self._rows[0].cells:
            return None
        return [parse_integer(row.cells["fold"], f"{self._table}, line {row.line}") for row in self._rows]

    @cached_property
    def _parts(self) -> list[SplitName]:
        """The split of each row."""
        if self._fold is None and "split" in self._rows[0].cells:
            return self._given_parts()
        if self._fold_numbers is not None:
            folds = self._fold_numbers
            return rotate_folds(str(self._table), folds, self._fold, groups=self._groups, labels=self._strata)
        if self._fold is not None:
            columns = ", ".join([*self._rows[0].cells][:MAX_LISTED_COLUMNS])
            raise InputError(
                f"fold={self._fold}: {self._table} has no column fold, only {columns}: add the column or give no fold"
            )
        return self._hold_out_missing(["train"] * len(self._sounds))

    def _given_parts(self) -> list[SplitName]:
        """Read the split of each row from the column `split`. Hold out train rows for each missing split."""
        parts: list[SplitName] = [
            check_choice(f"split ({self._table}, line {row.line})", row.cells["split"], SPLITS) for row in self._rows
        ]
        if "train" not in parts:
            raise InputError(f"{self._table}: no row has split=train, but training needs at least one train row")
        if self._groups is not None:
            check_no_leak(f"{self._table}: group", self._groups, [f"split {part}" for part in parts])
        check_trained_labels(str(self._path), self._strata, parts)
        return self._hold_out_missing(parts)

    def _hold_out_missing(self, parts: list[SplitName]) -> list[SplitName]:
        """Hold out train rows for each split without rows, and return the split of each row."""
        missing: list[SplitName] = [part for part in SPLITS if part not in parts]
        if not missing:
            return parts
        groups = None if self._groups is None else select_part(self._groups, parts, "train")
        drawn = iter(hold_out(str(self._path), select_part(self._strata, parts, "train"), missing, groups=groups))
        return [next(drawn) if part == "train" else part for part in parts]
