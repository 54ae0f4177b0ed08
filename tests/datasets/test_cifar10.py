"""CIFAR-10: the binary version's planes, the JPEG copy, and archives that are wrong."""

import gzip
import io
import lzma
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from unifier.data.source import SPLITS
from unifier.datasets.cifar10 import CIFAR10
from unifier_tokenizers import InputError


def cifar_records(count: int, seed: int) -> bytes:
    """Records of CIFAR-10's binary version whose labels take turns, and whose planes tell label and channel."""
    planes = (bytes([(10 * seed + number % 10 + 80 * k) % 256]) * 1024 for number in range(count) for k in range(3))
    return b"".join(
        bytes([number % 10]) + red + green + blue
        for number, (red, green, blue) in enumerate(zip(*[planes] * 3, strict=True))
    )


def packed(path: Path, contents: Mapping[str, bytes]) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    content = whole.getvalue()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else gzip.compress(content, mtime=0))


def cifar10(folder: Path) -> CIFAR10:
    folder.mkdir()
    files = {f"data_batch_{number}": cifar_records(20, number) for number in range(1, 6)}
    contents = {f"cifar-10-batches-bin/{name}.bin": content for name, content in reversed(files.items())}
    contents |= {"cifar-10-batches-bin/test_batch.bin": cifar_records(10, 6), "cifar-10-batches-bin/readme.html": b"x"}
    packed(folder / "cifar-10-binary.tar.gz", contents)
    return CIFAR10(data=folder)


def cifar10_jpg(folder: Path) -> CIFAR10:
    folder.mkdir()
    for split, count in (("train", 12), ("test", 2)):
        contents: dict[str, bytes] = {}
        for label in CIFAR10.labels:
            for number in range(count):
                picture = io.BytesIO()
                Image.new("RGB", (32, 32), (number, 0, CIFAR10.labels.index(label))).save(picture, "JPEG")
                contents[f"{split}/{label}/{number:04}.jpg"] = picture.getvalue()
        packed(folder / f"{split}.tar.xz", contents)
    return CIFAR10(jpeg=True, data=folder)


@pytest.mark.parametrize("make", [cifar10, cifar10_jpg])
def test_the_contract(make: Callable[[Path], Any], keeps_the_contract: Callable[..., None]) -> None:
    keeps_the_contract(make, named=make is cifar10)


def test_cifar10s_planes_become_pixels(tmp_path: Path) -> None:
    source = cifar10(tmp_path / "data")
    assert {name: len(source.split(name)) for name in SPLITS} == {"train": 90, "val": 10, "test": 10}
    assert Counter(example.target for example in source.split("val")) == dict.fromkeys(source.labels, 1)
    for number, (picture, target) in enumerate(source.split("test")):
        assert (picture.shape, picture.dtype, target) == ((32, 32, 3), np.uint8, source.labels[number])
        assert (picture == [60 + number, 140 + number, 220 + number]).all()
    first = [example.input[0, 0, 0] // 10 for example in source.split("train")]
    assert first == sorted(first), "batches are read by number, wherever they lie in the archive"


def test_cifar10s_jpeg_copy(tmp_path: Path) -> None:
    source = cifar10_jpg(tmp_path / "data")
    assert source.name == "cifar10_jpg"
    assert {name: len(source.split(name)) for name in SPLITS} == {"train": 110, "val": 10, "test": 20}
    for picture, target in source.split("test"):
        assert (picture.shape, picture.dtype) == ((32, 32, 3), np.uint8)
        assert abs(int(picture[0, 0, 2]) - source.labels.index(target)) <= 2


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ({"data_batch_1.bin": b"\0" * 3072}, "batches of records of 3073 bytes are expected"),
        ({"data_batch_1.bin": b"\x0a" * 3073}, "holds label 10: there are 10, from 0"),
        ({"other": b""}, "batches of records"),
    ],
)
def test_a_cifar10_that_is_none(tmp_path: Path, contents: dict[str, bytes], said: str) -> None:
    packed(tmp_path / "cifar-10-binary.tar.gz", contents)
    with pytest.raises(InputError, match=said):
        CIFAR10(data=tmp_path).split("train")


def test_cifar10s_copy_with_another_class(tmp_path: Path) -> None:
    cifar10_jpg(tmp_path / "data")
    packed(tmp_path / "data" / "test.tar.xz", {"test/fish/1.jpg": b""})
    with pytest.raises(InputError, match=r"no class \(.*fish/1.jpg\) 'fish': choose one of airplane"):
        CIFAR10(jpeg=True, data=tmp_path / "data").split("test")
