"""Pictures with boxes around their objects: blood cells (BCCD), and your own table."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from unifier.data.dataset import Examples
from unifier.data.download import require_file
from unifier.data.image_files import read_image
from unifier.data.inputs import ImageReader
from unifier.data.readers import Archive, hash_files, parse_number, read_archive, read_labels_table
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, data_folder
from unifier.data.splits import hold_out_rows
from unifier.data.text_files import remove_compressed_suffix
from unifier.datasets.class_folders import task_name
from unifier.heads.detection import Boxes
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

BORDERS = ("x0", "y0", "x1", "y1")
"""The columns of a table with the left, upper, right and lower border of a box."""


class BoxedPicture(NamedTuple):
    """A picture, and the label and the borders of each of its objects."""

    path: Path
    boxes: tuple[tuple[str, tuple[float, ...]], ...]
    split: str


@final
class BCCD:
    """364 pictures of blood cells (205 for train, 87 for val, 72 for test) with 4,888 boxes of three kinds of cells.

    The input is a picture (240, 320, 3) in uint8. The target is a `Boxes` in pixels. Some red cells at the border and
    in clumps have no box.

    Source: github.com/Shenggan/BCCD_Dataset, reduced to half of the size.
    """

    name = "bccd"
    labels = ("RBC", "WBC", "Platelets")
    license = "MIT"
    reader = ImageReader()
    score_range = ScoreRange("ap50", 0.0, 90.6, "YOLOv7 after COCO on another split: AqsaRasheed/Complete-Blood-Count")

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[BoxedPicture]:
        """Return the pictures of one split in the order of the table."""
        check_choice("split", name, SPLITS)
        rows = [row for row in self._rows if row.split == name]
        return _examples(rows, self.labels, self._archive, shares=True)

    @cached_property
    def sha256(self) -> str:
        """The hash of the table and of the archive."""
        return hash_files({name: self._folder / name for name in ("boxes.csv", "images.zip")})

    @cached_property
    def _rows(self) -> list[BoxedPicture]:
        return read_boxes(self._folder / "boxes.csv", self._folder / "images.zip")

    @cached_property
    def _archive(self) -> Archive:
        return read_archive(self._folder / "images.zip")

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        hint = "it cannot be downloaded: put there the reduced pictures and the table of their boxes"
        require_file(self.name, folder, ("boxes.csv", "images.zip"), hint)
        return folder


@final
class BoxTable:
    """Your own table (.csv or .tsv) with one row per box: file, label, x0, y0, x1 and y1 in pixels.

    File names are relative to the table. A picture without objects has one row with an empty label. The optional column
    `split` contains train, val or test. Without this column, a tenth of the pictures is held out for val, and a tenth
    for test, with a fixed seed.
    """

    reader = ImageReader()

    def __init__(self, table: str | Path) -> None:
        """Store the path of the table. The table is read later."""
        self._table = Path(table)
        self.name = task_name(Path(self._table.name.partition(".")[0]))
        self.score_range = ScoreRange("ap50", 0.0, None, NO_SCORE_RANGE)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in alphabetical order."""
        return tuple(sorted({label for row in self._rows for label, _ in row.boxes}))

    def split(self, name: SplitName) -> Examples[BoxedPicture]:
        """Return the pictures of one split in the order of the table.

        Raises:
            InputError: The table cannot be read, or there are too few pictures. Reading an example raises an InputError
                if the picture cannot be read, or if a box is outside its picture.
        """
        return _examples(self._parts[check_choice("split", name, SPLITS)], self.labels, {})

    @cached_property
    def sha256(self) -> str:
        """The hash of the table and of all pictures."""
        files = {row.path.relative_to(self._table.parent).as_posix(): row.path for row in self._rows}
        return hash_files({self._table.name: self._table, **files})

    @cached_property
    def _rows(self) -> list[BoxedPicture]:
        return read_boxes(self._table, self._table.parent)

    @cached_property
    def _parts(self) -> Mapping[SplitName, list[BoxedPicture]]:
        rows = self._rows
        if any(row.split for row in rows):
            parts = [check_choice(f"split ({row.path})", row.split, SPLITS) for row in rows]
            return {name: [row for row, part in zip(rows, parts, strict=True) if part == name] for name in SPLITS}
        chosen = hold_out_rows(str(self._table), len(rows), SPLITS[1:])
        return {part: [rows[row] for row in indices.tolist()] for part, indices in chosen.items()}


def read_boxes(table: Path, pictures: Path) -> list[BoxedPicture]:
    """Read a table of boxes (see `BoxTable`), in the order of the pictures' first rows.

    Args:
        table: The table.
        pictures: The folder or the archive of the pictures.

    Raises:
        InputError: The table cannot be read, a column is missing, a border is not a finite number, a box has no label,
            or a picture is in two splits.
    """
    found: dict[str, list[tuple[str, tuple[float, ...]]]] = {}
    splits: dict[str, str] = {}
    is_tsv = remove_compressed_suffix(table.name).endswith(".tsv")
    for line, cells in read_labels_table(table, ("file", "label", *BORDERS), tab_separated=is_tsv):
        boxes = found.setdefault(cells["file"], [])
        place, split = f"{table}, line {line}", cells.get("split", "")
        if splits.setdefault(cells["file"], split) != split:
            raise InputError(f"{place}: the boxes of {cells['file']} are in two splits; keep a picture in one split")
        if not cells["label"] and any(cells[name] for name in BORDERS):
            raise InputError(
                f"{place}: the box has no label; add one, or leave all cells of a picture without objects empty"
            )
        if cells["label"]:
            boxes.append((cells["label"], tuple(parse_number(cells[name], f"{place}, {name}") for name in BORDERS)))
    if not any(found.values()):
        raise InputError(f"{table} has no boxes: add one row per box")
    return [BoxedPicture(pictures / file, tuple(boxes), splits[file]) for file, boxes in found.items()]


def _examples(
    rows: Sequence[BoxedPicture], labels: Sequence[str], archive: Archive, *, shares: bool = False
) -> Examples[BoxedPicture]:
    return Examples(rows, partial(read_boxed_picture, tuple(labels), archive, shares=shares), _name_of)


def read_boxed_picture(labels: Sequence[str], archive: Archive, row: BoxedPicture, *, shares: bool = False) -> Example:
    """Read a picture (H, W, 3) with its `Boxes`.

    Args:
        labels: The names of the classes.
        archive: The archive with the picture, or {} for a file.
        row: The picture.
        shares: True if the borders are shares of the width and height.

    Raises:
        InputError: The picture cannot be read, a label is unknown, or a box is outside the picture.
    """
    picture = read_image(row.path, 3, archive)
    height, width = picture.shape[:2]
    corners = np.array([borders for _, borders in row.boxes], float).reshape(-1, 4)
    if shares:
        corners = corners * [width, height, width, height]
    for (label, borders), (x0, y0, x1, y1) in zip(row.boxes, corners.tolist(), strict=True):
        if label not in labels:
            raise InputError(f"{row.path}: the label {label} is not one of {', '.join(labels)}")
        if min(x0, y0) < 0 or x1 > width + 0.5 or y1 > height + 0.5:
            raise InputError(f"{row.path}: the box {borders} is not inside the picture of {width} x {height} pixels")
    return Example(picture, Boxes(corners, np.array([labels.index(label) for label, _ in row.boxes], np.int64)))


def _name_of(row: BoxedPicture) -> str:
    return str(row.path)
