"""Images of your own, in one folder per class."""

from functools import cached_property, partial
from pathlib import Path
from typing import Literal, final

from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.readers import IMAGE_SUFFIXES, TableRow, hash_all, hash_each, parse_integer, read_groups, read_image
from unifier.data.source import NO_SCORE_RANGE, UNREADABLE_MARK, ScoreRange, SplitName, accuracy_range
from unifier.data.splits import count_copies, rotate_folds, select_part
from unifier.datasets.class_folders import files_by_class, read_folds_table, split_folders, task_name
from unifier_tokenizers import InputError


@final
class ImageFolder:
    """Images in train/<class>/, val/<class>/ and test/<class>/ of a folder, or in <class>/ alone.

    The input is an image (H, W, C) uint8 and the target is the name of its class folder, in which images may lie at any
    depth. If val or test has no folder, a tenth of every class is held out for it, the same every time.

    The folder may hold folds.csv instead, with the columns file (relative to the folder) and fold (an integer) and one
    row per image. One fold is tested, the next one validates and the others train. An optional column group keeps each
    group in one fold, or the folds are refused; an empty cell is a group of its own.

    Files that are not images are left out with a warning, and hidden files without one. A class without an image is an
    error, as is a class of val or test that train lacks.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        channels: Literal[1, 3] = 3,
        size: int | None = None,
        fold: int | None = None,
    ) -> None:
        """Name the folder; its images are read later.

        Args:
            path: The folder.
            channels: 3 for color and 1 for gray; images are converted.
            size: Longest side in pixels to which larger images are shrunk; None keeps their size.
            fold: The fold of folds.csv to test on; None takes the first.
        """
        if size is not None and size < 1:
            raise InputError(f"size={size}: at least 1 pixel is needed")
        self._folder, self._channels, self._size, self._fold = Path(path), channels, size, fold
        self.name = task_name(self._folder)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes in alphabetical order."""
        return tuple(sorted({image.target for image in self._images}))

    @property
    def folds(self) -> tuple[int, ...]:
        """The folds in folds.csv; empty if there is no such table."""
        return tuple(sorted(set(self._fold_numbers)))

    @property
    def score_range(self) -> ScoreRange:
        """The range from guessing each class equally often; no reference is known."""
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the images of one split by class and file name.

        Raises:
            InputError: If the folder is not as described. Reading an image raises it if the file is damaged.
        """
        read = partial(read_image, channels=self._channels, size=self._size)
        return from_files(select_part(self._images, self._parts, name), read)

    @cached_property
    def sha256(self) -> str:
        """The hash of every readable image, its path in the folder, and folds.csv if there is one."""
        table = {} if self._rows is None else hash_each({self._table.name: self._table})
        return hash_all(table | self._hashes)

    @property
    def copies(self) -> int:
        """The number of images of val and test that are also in train, byte for byte."""
        return count_copies(list(self._hashes.values()), self._parts)

    @cached_property
    def _hashes(self) -> dict[str, str]:
        """The hash of each image, by its path in the folder."""
        files = {self._relative(image.path): image.path for image in self._images}
        return hash_each(files, unreadable=UNREADABLE_MARK)

    @cached_property
    def _by_folder(self) -> dict[SplitName, list[LabeledFile]]:
        """The images by split folder; all in train if there are no split folders."""
        return files_by_class(self._folder, IMAGE_SUFFIXES, "pictures", "cat/1.png")

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
        """The row of each image in folds.csv; None if there is no such table."""
        files = [self._relative(image.path) for image in self._images]
        if self._fold is None and not self._table.exists():
            return None
        return read_folds_table(self._table, files)

    @property
    def _table(self) -> Path:
        return self._folder / "folds.csv"

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()
