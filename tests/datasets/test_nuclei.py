"""Pictures with masks: nuclei, and folders of one's own."""

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unifier.data.source import SPLITS
from unifier.datasets import MaskFolder, Nuclei, create_mask_dataset
from unifier.datasets.nuclei import read_mask
from unifier_tokenizers import InputError

SIZES = ((6, 8), (6, 6), (9, 6))


def nuclei(folder: Path) -> Nuclei:
    """Write nine pictures; the masks have one number per nucleus, with 16 bits in one picture."""
    folder.mkdir(parents=True)
    rows = ["name,split,kind"]
    with zipfile.ZipFile(folder / "images.zip", "w") as images, zipfile.ZipFile(folder / "labels.zip", "w") as labels:
        for k in range(9):
            height, width = SIZES[k % 3]
            mask = np.zeros((height, width), np.uint16 if k == 2 else np.uint8)
            mask[1:3, 1:3], mask[4:, 4:] = 1, 300 if k == 2 else 2
            picture = Image.fromarray(np.full((height, width), 20 * k, np.uint8))
            for archive, image, name in ((images, picture, f"{k}.jpg"), (labels, Image.fromarray(mask), f"{k}.png")):
                file = io.BytesIO()
                image.save(file, "JPEG" if name.endswith("jpg") else "PNG")
                archive.writestr(zipfile.ZipInfo(name), file.getvalue())
            rows.append(f"{k},{SPLITS[k // 3]},dark")
    (folder / "index.csv").write_text("\n".join(rows) + "\n")
    return Nuclei(data=folder)


def masked_folder(folder: Path, *, mask_size: Sequence[int] = (6, 6), value: int = 255) -> Path:
    for k in range(20):
        for part, size, color in (("images", (6, 6), k), ("masks", mask_size, value)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full(size, color, np.uint8)).save(folder / part / f"{k}.png")
    return folder


def test_nuclei_keep_contract(check_source: Callable[..., None]) -> None:
    check_source(nuclei, named=True)


def test_masks_have_the_size_of_their_pictures(tmp_path: Path) -> None:
    source = nuclei(tmp_path / "files")
    for name in SPLITS:
        for index, (picture, mask) in enumerate(source.split(name)):
            assert (picture.shape, mask.shape) == ((*SIZES[index], 3), SIZES[index])
            assert mask.sum() == 4 + (SIZES[index][0] - 4) * (SIZES[index][1] - 4)


def test_own_folder_is_split_and_read(tmp_path: Path) -> None:
    source = create_mask_dataset(str(masked_folder(tmp_path / "cells")))
    assert [len(source.split(name)) for name in SPLITS] == [16, 2, 2]
    assert (source.name, set(np.unique(source.split("test")[0].target))) == ("cells", {1})
    three = MaskFolder(masked_folder(tmp_path / "three", value=2), labels=("no", "a", "b"))
    assert set(np.unique(three.split("val")[0].target)) == {2}


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    wrong = MaskFolder(masked_folder(tmp_path / "small", mask_size=(5, 6)))
    with pytest.raises(InputError, match=r"masks.*png has 6 x 5 pixels, but its picture has 6 x 6"):
        list(wrong.split("train"))
    with pytest.raises(InputError, match=r"value 255.*index of a class is 2"):
        list(MaskFolder(tmp_path / "small", labels=("a", "b", "c")).split("train"))
    (tmp_path / "small" / "masks" / "3.png").unlink()
    with pytest.raises(InputError, match=r"3\.png has no mask"):
        MaskFolder(tmp_path / "small").split("train")
    with pytest.raises(InputError, match="images and masks"):
        MaskFolder(tmp_path).split("train")
    with pytest.raises(InputError, match="labels"):
        create_mask_dataset("nuclei", labels=("a", "b"))
    Image.new("RGB", (6, 6)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"a\.png.*one channel"):
        read_mask(tmp_path / "a.png", 2)
