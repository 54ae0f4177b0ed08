"""Your own images: a folder with one folder per class."""

from functools import cached_property
from pathlib import Path
from typing import Literal, final

from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.image_files import IMAGE_SUFFIXES
from unifier.data.inputs import ImageReader
from unifier.data.readers import TableRow, hash_all, hash_each, parse_integer, read_groups
from unifier.data.source import NO_SCORE_RANGE, UNREADABLE_MARK, ScoreRange, SplitName, accuracy_range
from unifier.data.splits import count_copies, rotate_folds, select_part
from unifier.datasets.class_folders import files_by_class, read_folds_table, split_folders, task_name
from unifier_tokenizers import InputError


@final
class ImageFolder:
    """Images of a folder: in train/<class>/, val/<class>/ and test/<class>/, or only in <class>/.

    The input is an image (H, W, C) uint8. The target is the name of the class folder. Images may be in subfolders of
    the class folder. A tenth of every train class is held out for each missing split, val or test. The held-out images
    are chosen with a fixed seed.

    Instead of split folders, the folder may contain a table folds.csv with one row per image. The columns of the table
    are `file` (relative to the folder) and `fold` (an integer). One fold is the test split, the next fold is the val
    split, and all other folds are the train split. The table may have a column `group`. All images of a group must be
    in the same fold. An image without a group name forms its own group.

    Files that are not images are left out with a warning. Hidden files are left out without a warning. Every class must
    have images, and a class of val or test must also have images in train.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        channels: Literal[1, 3] = 3,
        size: int | None = None,
        fold: int | None = None,
        allow_outside: bool = False,
    ) -> None:
        """Store the path of the folder. The images are read later.

        Args:
            path: The folder.
            channels: 3 for color, 1 for gray. All images are converted.
            size: Maximum length of the longer side in pixels. Larger images are reduced. None means no limit.
            fold: The fold in folds.csv to test on. None means the first fold.
            allow_outside: True if links may lead outside the folder. A folder from an unknown source could link any
                file of the machine.
        """
        if size is not None and size < 1:
            raise InputError(f"size={size}: give at least 1 pixel")
        self._folder, self._fold = Path(path), fold
        self.reader = ImageReader(channels, size)
        self._allow_outside = allow_outside
        self.name = task_name(self._folder)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes in alphabetical order."""
        return tuple(sorted({image.target for image in self._images}))

    @property
    def folds(self) -> tuple[int, ...]:
        """The numbers of the folds in folds.csv. Empty if folds.csv does not exist."""
        return tuple(sorted(set(self._fold_numbers)))

    @property
    def score_range(self) -> ScoreRange:
        """The score range, which contains a chance score but no reference score."""
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the images of one split, sorted by class and file name.

        Raises:
            InputError: The folder does not have the layout that the class describes. Reading an image from a damaged
                file also raises an InputError.
        """
        return from_files(select_part(self._images, self._parts, name), self.reader)

    @cached_property
    def sha256(self) -> str:
        """The hash of all readable images, of their paths in the folder, and of folds.csv if it exists."""
        table = {} if self._rows is None else hash_each({self._table.name: self._table})
        return hash_all(table | self._hashes)

    @property
    def copies(self) -> int:
        """The number of val and test images whose files are exact copies of train files."""
        return count_copies(list(self._hashes.values()), self._parts)

    @cached_property
    def _hashes(self) -> dict[str, str]:
        """The hash of each image. The keys are image paths relative to the folder."""
        files = {self._relative(image.path): image.path for image in self._images}
        return hash_each(files, unreadable=UNREADABLE_MARK)

    @cached_property
    def _by_folder(self) -> dict[SplitName, list[LabeledFile]]:
        """The images of each split folder. If there are no split folders, all images are in train."""
        return files_by_class(self._folder, IMAGE_SUFFIXES, "pictures", "cat/1.png", allow_outside=self._allow_outside)

    @cached_property
    def _images(self) -> list[LabeledFile]:
        return [image for images in self._by_folder.values() for image in images]

    @cached_property
    def _parts(self) -> list[SplitName]:
        """The split of each image."""
        if self._rows is not None:
            labels, groups = [image.target for image in self._images], read_groups(self._rows)
            return rotate_folds(str(self._table), self._fold_numbers, self._fold, groups=groups, labels=labels)
        return split_folders(self._folder, self._by_folder)

    @cached_property
    def _fold_numbers(self) -> list[int]:
        """The fold of each image."""
        return [parse_integer(row.cells["fold"], f"{self._table}, line {row.line}") for row in self._rows or ()]

    @cached_property
    def _rows(self) -> list[TableRow] | None:
        """The row of each image in folds.csv, or None if folds.csv does not exist."""
        files = [self._relative(image.path) for image in self._images]
        if self._fold is None and not self._table.exists():
            return None
        return read_folds_table(self._table, files)

    @property
    def _table(self) -> Path:
        return self._folder / "folds.csv"

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()
