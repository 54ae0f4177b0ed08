"""Pictures of your own, one folder per class."""

from functools import cached_property, partial
from pathlib import Path
from typing import Literal, final

from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.readers import IMAGE_SUFFIXES, TableRow, hash_all, hash_each, parse_integer, read_groups, read_image
from unifier.data.source import NO_SCORE_RANGE, UNREADABLE_MARK, ScoreRange, SplitName, accuracy_range
from unifier.data.splits import count_copies, rotate_folds, select_part
from unifier.datasets.class_folders import files_by_class, folds_of, split_folders
from unifier_tokenizers import InputError


@final
class ImageFolder:
    """Pictures in folder/train/<class>/, folder/val/<class>/ and folder/test/<class>/, or all in folder/<class>/.

    What there is no folder for, val or test or both, is held out of the rest: a tenth of every class, the same
    pictures every time. Or the folder holds folds.csv, a table with the columns file (from the folder) and fold
    (numbers) that has a row for each picture: then `fold`, by default the first, is the test, the next one validates,
    the others train. Its column group, where there is one, keeps each group in one fold; a fold that cuts one is
    refused, and an empty cell is a group of its own.

    The input is uint8 H x W x `channels`, of any size, or shrunk so that no side is above `size` pixels; the target is
    the name of the class, in whose folder pictures may lie in others. Files with other endings than a picture's are
    left out with a warning, hidden ones without; a class without a picture is refused, as is one that a folder val or
    test has and train lacks.
    """

    name = "image_folder"

    def __init__(
        self,
        folder: str | Path,
        *,
        channels: Literal[1, 3] = 3,
        size: int | None = None,
        fold: int | None = None,
    ) -> None:
        """`channels` is 3 for color, 1 for gray, whatever the files hold."""
        if size is not None and size < 1:
            raise InputError(f"size={size}: at least 1 pixel is needed")
        self._folder, self._channels, self._size, self._fold = Path(folder), channels, size, fold

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in the order of the alphabet."""
        return tuple(sorted({picture.target for picture in self._pictures}))

    @property
    def folds(self) -> tuple[int, ...]:
        """The numbers in folds.csv; none where there is no such table."""
        return tuple(sorted(set(self._numbers)))

    @property
    def score_range(self) -> ScoreRange:
        """Chance alone: of your own pictures no reference is known."""
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """The pictures of one split, by class and file name. A picture that cannot be read raises InputError."""
        read = partial(read_image, channels=self._channels, size=self._size)
        return from_files(select_part(self._pictures, self._parts, name), read)

    @cached_property
    def sha256(self) -> str:
        """The hash of every picture that can be read and its place in the folder, and of the table of folds if any."""
        table = {} if self._rows is None else hash_each({self._table.name: self._table})
        return hash_all(table | self._hashes)

    @property
    def copies(self) -> int:
        """How many pictures of val and test are in train too, byte for byte."""
        return count_copies(list(self._hashes.values()), self._parts)

    @cached_property
    def _hashes(self) -> dict[str, str]:
        """Each picture's own, in their order."""
        files = {self._inside(picture.path): picture.path for picture in self._pictures}
        return hash_each(files, unreadable=UNREADABLE_MARK)

    @cached_property
    def _found(self) -> dict[SplitName, list[LabeledFile]]:
        """The pictures by the split whose folder they are in; they train where there are no such folders."""
        return files_by_class(self._folder, IMAGE_SUFFIXES, "pictures", "cat/1.png")

    @cached_property
    def _pictures(self) -> list[LabeledFile]:
        return [picture for found in self._found.values() for picture in found]

    @cached_property
    def _parts(self) -> list[SplitName]:
        """The split of each picture."""
        if self._rows is not None:
            labels = [picture.target for picture in self._pictures]
            return rotate_folds(str(self._table), self._numbers, self._fold, groups=self._groups, labels=labels)
        return split_folders(self._folder, self._found)

    @cached_property
    def _numbers(self) -> list[int]:
        """The fold of each picture."""
        return [parse_integer(row.cells["fold"], f"{self._table}, line {row.line}") for row in self._rows or ()]

    @cached_property
    def _rows(self) -> list[TableRow] | None:
        """The row of each picture in the table of folds, where there is one."""
        files = [self._inside(picture.path) for picture in self._pictures]
        if self._fold is None and not self._table.exists():
            return None
        return folds_of(self._table, files)

    @cached_property
    def _groups(self) -> list[str] | None:
        return read_groups(self._rows or ())

    @property
    def _table(self) -> Path:
        return self._folder / "folds.csv"

    def _inside(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()
