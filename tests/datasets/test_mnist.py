"""MNIST and Fashion-MNIST."""

import gzip
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from unifier.data.source import SPLITS
from unifier.datasets.mnist import MNIST
from unifier_tokenizers import InputError


def mnist(folder: Path, name: Literal["mnist", "fashion_mnist"] = "mnist") -> MNIST:
    folder.mkdir(parents=True)
    for stem, count in (("train", 240), ("t10k", 20)):
        labels = bytes(i % 10 for i in range(count))
        pixels = b"".join(bytes([label]) * 28 * 28 for label in labels)
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + pixels
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, 1, mtime=0))
        packed = gzip.compress(struct.pack(">4BI", 0, 0, 8, 1, count) + labels, mtime=0)
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(packed)
    return MNIST(name, data=folder)


fashion_mnist = partial(mnist, name="fashion_mnist")


@pytest.mark.slow
@pytest.mark.parametrize("make", [mnist, fashion_mnist])
def test_mnist_keeps_contract(make: Callable[[Path], MNIST], check_source: Callable[..., None]) -> None:
    check_source(make, named=make is mnist)


@pytest.mark.parametrize("make", [mnist, fashion_mnist])
def test_mnist_pairs_images_with_labels(make: Callable[[Path], MNIST], tmp_path: Path) -> None:
    source = make(tmp_path / "data")
    for name, count in zip(SPLITS, (22, 2, 2), strict=True):
        targets = [example.target for example in source.split(name)]
        assert {label: targets.count(label) for label in source.labels} == dict.fromkeys(source.labels, count)
    for image, target in source.split("val"):
        assert (image.shape, image.dtype) == ((28, 28), np.uint8)
        assert (image == source.labels.index(target)).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "idx"),
        (struct.pack(">4BI", 0, 0, 8, 1, 9) + b"\0", "9"),
        (struct.pack(">4BI", 0, 0, 8, 1, 1) + b"\0", r"\(1,\)"),
        (struct.pack(">4BI", 0, 0, 8, 1, 240) + b"\x0a" * 240, "10"),
    ],
)
def test_mnist_refuses_damaged_labels(tmp_path: Path, content: bytes, message: str) -> None:
    source = fashion_mnist(tmp_path / "data")
    labels = tmp_path / "data" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match=message) as error:
        source.split("train")
    assert str(labels) in str(error.value)
