"""The comparison of photographs and noises, from the sets' own files to its table."""

import io
import json
import tarfile
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from unifier.cli import main
from unifier.datasets.cifar10 import CIFAR10
from unifier.datasets.esc import ESC_FOLDERS

pytestmark = pytest.mark.usefixtures("undrawn")

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "pictures_and_sound.py"


def data(root: Path) -> Path:
    """Write a CIFAR-10 of JPEG copies and an ESC-10. Brightness or pitch gives the class away."""
    (root / "cifar10_jpg").mkdir()
    for split, count in (("train", 24), ("test", 2)):
        with tarfile.open(root / "cifar10_jpg" / f"{split}.tar.xz", "w:xz") as archive:
            for index, label in enumerate(CIFAR10.labels):
                for number in range(count):
                    picture = io.BytesIO()
                    Image.new("RGB", (32, 32), (20 * index, number, 0)).save(picture, "JPEG")
                    member = tarfile.TarInfo(f"{split}/{label}/{number:04}.jpg")
                    member.size = picture.tell()
                    archive.addfile(member, io.BytesIO(picture.getvalue()))
    for index, label in enumerate(ESC_FOLDERS):
        (root / "esc10" / label).mkdir(parents=True)
        for fold, take in product(range(1, 6), "AB"):
            tone = 0.5 * np.sin(np.arange(8000) * (0.1 + 0.1 * index))
            soundfile.write(root / "esc10" / label / f"{fold}-{100 * fold + index}-{take}.ogg", tone, 16000)
    return root


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_trunk_goes_both_ways_beside_its_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["dim=16", "depth=1", "tokens=512", "batch_tokens=256", "seeds=0"]
    places = ["--data", str(data(tmp_path)), "--out", str(tmp_path / "runs"), "--track", "off"]
    assert main(["run", str(EXPERIMENT), *settings, *places]) == 0
    found = json.loads((Path(capsys.readouterr().out.splitlines()[-1]) / "comparison.json").read_text())
    assert found["status"] == "finished"
    assert found["problems"] == []
    rows = {(row["experiment"], row["start"], row["shuffled"], row["trainable"]) for row in found["rows"]}
    expected: set[tuple[object, ...]] = set()
    for name, other in (("photographs", "noises"), ("noises", "photographs")):
        starts = (
            (None, False),
            (other, False),
            (other, True),
        )  # The first is solo or a random trunk.
        expected |= {(name, *start, tuned) for start, tuned in product(starts, ("none", "norms", "all"))}
    assert (len(found["rows"]), rows) == (len(expected), expected)
