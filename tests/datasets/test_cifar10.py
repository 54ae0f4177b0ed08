"""CIFAR-10: the planes of the binary version, the JPEG copy, and damaged archives."""

import gzip
import io
import lzma
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unifier.data.source import SPLITS
from unifier.datasets.cifar10 import CIFAR10
from unifier_tokenizers import InputError


def binary_records(count: int, seed: int) -> bytes:
    """Return records whose labels take turns and whose planes depend on label and channel."""
    records = bytearray()
    for number in range(count):
        planes = (bytes([(10 * seed + number % 10 + 80 * channel) % 256]) * 1024 for channel in range(3))
        records += bytes([number % 10]) + b"".join(planes)
    return bytes(records)


def write_archive(path: Path, contents: Mapping[str, bytes]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    content = buffer.getvalue()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else gzip.compress(content, mtime=0))


def binary_source(folder: Path) -> CIFAR10:
    folder.mkdir(parents=True)
    contents = {f"data_batch_{number}.bin": binary_records(20, number) for number in range(5, 0, -1)}
    contents |= {"test_batch.bin": binary_records(10, 6), "readme.html": b"x"}
    in_folder = {f"cifar-10-batches-bin/{name}": content for name, content in contents.items()}
    write_archive(folder / "cifar-10-binary.tar.gz", in_folder)
    return CIFAR10(data=folder)


def jpeg_source(folder: Path) -> CIFAR10:
    folder.mkdir(parents=True)
    for split, count in (("train", 12), ("test", 2)):
        contents: dict[str, bytes] = {}
        for index, label in enumerate(CIFAR10.labels):
            for number in range(count):
                image = io.BytesIO()
                Image.new("RGB", (32, 32), (number, 0, index)).save(image, "JPEG")
                contents[f"{split}/{label}/{number:04}.jpg"] = image.getvalue()
        write_archive(folder / f"{split}.tar.xz", contents)
    return CIFAR10(jpeg=True, data=folder)


@pytest.mark.slow
@pytest.mark.parametrize("make", [binary_source, jpeg_source])
def test_cifar10_keeps_contract(make: Callable[[Path], CIFAR10], check_source: Callable[..., None]) -> None:
    check_source(make, named=make is binary_source)


def test_binary_planes_become_pixels(tmp_path: Path) -> None:
    source = binary_source(tmp_path / "data")
    assert {name: len(source.split(name)) for name in SPLITS} == {"train": 90, "val": 10, "test": 10}
    assert Counter(example.target for example in source.split("val")) == dict.fromkeys(source.labels, 1)
    for number, (image, target) in enumerate(source.split("test")):
        assert (image.shape, image.dtype, target) == ((32, 32, 3), np.uint8, source.labels[number])
        assert (image == [60 + number, 140 + number, 220 + number]).all()
    batches = [example.input[0, 0, 0] // 10 for example in source.split("train")]
    assert batches == sorted(batches), "batches are read by number, not by their order in the archive"


def test_jpeg_copy_is_read_by_class(tmp_path: Path) -> None:
    source = jpeg_source(tmp_path / "data")
    assert source.name == "cifar10_jpg"
    assert {name: len(source.split(name)) for name in SPLITS} == {"train": 110, "val": 10, "test": 20}
    for image, target in source.split("test"):
        assert (image.shape, image.dtype) == ((32, 32, 3), np.uint8)
        assert abs(int(image[0, 0, 2]) - source.labels.index(target)) <= 2
    write_archive(tmp_path / "data" / "test.tar.xz", {"test/fish/1.jpg": b""})
    with pytest.raises(InputError, match=r"fish/1\.jpg.*'fish'.*airplane"):
        CIFAR10(jpeg=True, data=tmp_path / "data").split("test")


@pytest.mark.parametrize(
    ("contents", "message"),
    [({"data_batch_1.bin": b"\0" * 3072}, "3073"), ({"data_batch_1.bin": b"\x0a" * 3073}, "10"), ({"x": b""}, "3073")],
)
def test_binary_archive_is_refused(tmp_path: Path, contents: dict[str, bytes], message: str) -> None:
    write_archive(tmp_path / "cifar-10-binary.tar.gz", contents)
    with pytest.raises(InputError, match=f"cifar-10-binary.*{message}"):
        CIFAR10(data=tmp_path).split("train")
