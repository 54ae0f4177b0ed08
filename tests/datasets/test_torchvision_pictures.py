"""Pictures of torchvision's data sets, from files in their own format."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import refused
from unifier.datasets import TorchvisionPictures, create_image_dataset


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for stem, count in (("train", 60), ("t10k", 20)):
        pixels = np.arange(count, dtype=np.uint8).repeat(28 * 28)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, shape, content in (("images-idx3", (count, 28, 28), pixels), ("labels-idx1", (count,), labels)):
            header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
            (raw / f"{stem}-{kind}-ubyte").write_bytes(header + content.tobytes())
            (raw / f"{stem}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + content.tobytes()))
    return tmp_path


@pytest.mark.slow
def test_splits_are_those_of_torchvision(folder: Path) -> None:
    source = create_image_dataset("torchvision:FashionMNIST", size=28)
    assert source.labels[-1] == "Ankle boot"
    sizes = {part: len(source.split(part)) for part in ("train", "val", "test")}
    assert sizes == {"train": 50, "val": 10, "test": 20}
    example = source.split("test")[13]
    assert (example.input.shape, int(example.input[0, 0]), example.target) == ((28, 28), 13, source.labels[3])
    numbers = {int(example.input[0, 0]) for part in ("train", "val") for example in source.split(part)}
    assert numbers == set(range(60))


@pytest.mark.parametrize("name", ["FashionMNISTs", "FakeData", "MNIST", "ImageNet"])
def test_missing_class_or_files_are_refused(name: str, folder: Path) -> None:
    with refused(name):
        TorchvisionPictures(name).split("train")
