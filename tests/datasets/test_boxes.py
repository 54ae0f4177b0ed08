"""Pictures with boxes: blood cells, tables of one's own, generated pictures, and the recipe of detection."""

import csv
import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.datasets.test_mnist import fashion_mnist
from unifier.cli import main
from unifier.data.source import SPLITS
from unifier.datasets import BCCD, BoxTable, ScatteredClothes, create_box_dataset
from unifier_tokenizers import InputError

HEADER = "file,split,label,x0,y0,x1,y1\n"


def cells(folder: Path) -> BCCD:
    """Write nine pictures of 16 x 8 pixels, each with the boxes of all three kinds as shares."""
    folder.mkdir(parents=True)
    rows = ""
    with zipfile.ZipFile(folder / "images.zip", "w") as images:
        for k in range(9):
            file = io.BytesIO()
            Image.fromarray(np.full((8, 16, 3), 20 * k, np.uint8)).save(file, "JPEG")
            images.writestr(zipfile.ZipInfo(f"{k}.jpg"), file.getvalue())
            for label in BCCD.labels:
                rows += f"{k}.jpg,{SPLITS[k // 3]},{label},0.25,0.5,0.75,1\n"
    (folder / "boxes.csv").write_text(HEADER + rows)
    return BCCD(data=folder)


def table(folder: Path, rows: str = "", size: tuple[int, int] = (8, 12)) -> Path:
    """Write 12 pictures with a bright box each, the last without a box."""
    for k in range(12):
        pixels = np.zeros((*size, 3), np.uint8)
        if k < 11:
            pixels[2:6, 3:9] = 255
            rows += f"{k}.png,,cell,3,2,9,6\n"
        Image.fromarray(pixels).save(folder / f"{k}.png")
    (folder / "boxes.csv").write_text(HEADER.replace("split", "note") + rows + "11.png,,,,,,\n")
    return folder / "boxes.csv"


def test_cells_keep_contract(check_source: Callable[..., None]) -> None:
    check_source(cells, named=True)


def test_shares_become_pixels(tmp_path: Path) -> None:
    picture, boxes = cells(tmp_path / "cells").split("train")[0]
    assert picture.shape == (8, 16, 3)
    assert boxes.corners.tolist() == [[4, 4, 12, 8]] * 3
    assert boxes.labels.tolist() == [0, 1, 2]


def test_own_table_is_split_and_read_in_pixels(tmp_path: Path) -> None:
    source = create_box_dataset(str(table(tmp_path)))
    assert source.labels == ("cell",)
    targets = [target for part in SPLITS for _, target in source.split(part)]
    assert [len(source.split(part)) for part in SPLITS] == [10, 1, 1]
    assert sorted(len(target.labels) for target in targets) == [0] + [1] * 11
    assert next(target for target in targets if len(target.labels)).corners.tolist() == [[3, 2, 9, 6]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0.png,,cell,3,2,13,6\n", "not inside"),
        ("0.png,,cell,3,2,x,6\n", "line 2, x1"),
        ("0.png,,,3,2,5,6\n", "line 2: the box has no label"),
        ("9.jpg,,cell,3,2,5,6\n", "9.jpg"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, row: str, message: str) -> None:
    source = BoxTable(table(tmp_path, row))
    with pytest.raises(InputError, match=message):
        assert not [*source.split("train"), *source.split("val"), *source.split("test")]


def test_table_without_boxes_and_wrong_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text(HEADER + "1.png,,,,,,\n")
    with pytest.raises(InputError, match="no boxes"):
        BoxTable(tmp_path / "empty.csv").split("train")
    (tmp_path / "two.csv").write_text(HEADER + "1.png,train,cell,1,1,3,3\n1.png,val,cell,4,4,6,6\n")
    with pytest.raises(InputError, match=r"line 3.*two splits"):
        BoxTable(tmp_path / "two.csv").split("train")
    with pytest.raises(InputError, match="scattered_clothes"):
        create_box_dataset("cups")


def test_scattered_clothes_have_tight_boxes_and_do_not_change(tmp_path: Path) -> None:
    fashion_mnist(tmp_path / "clothes")
    for stem, count in (("train", 240), ("t10k", 20)):  # Each piece is a bright area of 20 x 24 pixels.
        piece = np.zeros((28, 28), np.uint8)
        piece[4:24, 2:26] = 200
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + piece.tobytes() * count
        (tmp_path / "clothes" / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, 1, mtime=0))
    source = ScatteredClothes(data=tmp_path / "clothes")
    first, again = (ScatteredClothes(data=tmp_path / "clothes").split("val")[3] for _ in range(2))
    assert np.array_equal(first.input, again.input)
    counts = set[int]()
    for index in range(20):
        picture, boxes = source.split("train")[index]
        counts.add(len(boxes.labels))
        covered = np.zeros_like(picture, bool)
        for x0, y0, x1, y1 in boxes.corners.astype(int).tolist():
            covered[y0:y1, x0:x1] = True
            assert (picture[y0:y1, x0:x1] >= 16).any(1)[[0, -1]].all()
        assert not (picture[~covered] >= 16).any()
    assert counts == {1, 2, 3, 4}


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("head", ["tokens", "queries"])
def test_recipe_trains_predicts_and_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str) -> None:
    path = table(tmp_path)
    settings = [f"data={path}", f"head={head}", "patch=4", "dim=16", "depth=1", "steps=3", "num_validations=1"]
    options = ["--out", str(tmp_path / "runs"), "--track", "off"]
    assert main(["run", "detection", *settings, *options]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    assert 0 <= json.loads((run / "result.json").read_text())["metrics"]["test/boxes/ap50"] <= 100
    assert "data:image" in (run / "report.html").read_text()
    assert main(["predict", str(run), str(tmp_path / "0.png")]) == 0
    assert next(csv.DictReader(io.StringIO(capsys.readouterr().out))).keys() == {"input", "objects"}
    assert main(["evaluate", str(run), str(path), "--out", str(tmp_path / "scores")]) == 0
    evaluation = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    assert evaluation["examples"] == 12
    assert 0 <= evaluation["scores"]["ap50"]["score"] <= 100
    tabs = path.with_suffix(".tsv")
    rows = path.read_text().replace("note", "split").splitlines()
    rows = [row.replace(",,", f",{'test' if k < 5 else 'train'},", 1) for k, row in enumerate(rows)]
    tabs.write_text("\n".join(rows).replace(",", "\t"))
    assert main(["evaluate", str(run), str(tabs), "--out", str(tmp_path / "scores")]) == 0
    assert json.loads((tmp_path / "scores" / "evaluation.json").read_text())["examples"] == 4
    assert main(["run", "detection", f"data={path}", "queries=9", *options]) == 2
    path.write_text(path.read_text().splitlines()[0] + "\n11.png,,,,,,\n")
    assert main(["evaluate", str(run), str(path), "--out", str(tmp_path / "scores")]) == 2
    assert "no boxes" in capsys.readouterr().err
