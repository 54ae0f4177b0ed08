"""The comparison of photographs and noises, from the sets' own files to its table."""

import io
import json
import tarfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

import unifier as uf
from unifier.config import list_experiments
from unifier.datasets.cifar10 import CIFAR10
from unifier.datasets.esc import ESC_FOLDERS
from unifier.experiment import Trainable
from unifier.trials.plan import plan_trials

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


def both_ways(*, trainable: tuple[Trainable, ...] = ("norms",)) -> uf.Comparison:
    """Compare small models with one seed."""
    recipe = list_experiments(EXPERIMENT)["pictures_and_sound"]
    trunk, training = (recipe.__globals__[name] for name in ("TRUNK", "TRAINING"))
    small = replace(training, tokens=512, batch_tokens=256)
    comparison = recipe(trunk=replace(trunk, dim=16, depth=1), training=small, seeds=(0,))
    assert isinstance(comparison, uf.Comparison)
    return replace(comparison, trainable=trainable)


def conditions(*trainable: Trainable) -> set[tuple[object, ...]]:
    """Return the conditions of both experiments: solo, and a random, a trained and a shuffled trunk."""
    found: set[tuple[object, ...]] = {("photographs", None, False, "all"), ("noises", None, False, "all")}
    for name, other in (("photographs", "noises"), ("noises", "photographs")):
        starts = ((None, False), (other, False), (other, True))
        found |= {(name, *start, tuned) for start, tuned in product(starts, trainable)}
    return found


def condition(row: dict[str, Any]) -> tuple[object, ...]:
    return row["experiment"], row["start"], row["shuffled"], row["trainable"]


def test_every_condition_is_planned() -> None:
    recipe = list_experiments(EXPERIMENT)["pictures_and_sound"](seeds=(0,))
    assert isinstance(recipe, uf.Comparison)
    planned = [condition(trial.row()) for trial in plan_trials(recipe)]
    assert (len(planned), set(planned)) == (18, conditions("none", "norms", "all"))


@pytest.mark.slow
def test_trunk_goes_both_ways_beside_its_controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIER_DATA", str(data(tmp_path)))
    uf.run(both_ways, out=tmp_path / "runs", track="off")
    (path,) = tmp_path.rglob("comparison.json")
    found = json.loads(path.read_text())
    assert (found["status"], found["problems"]) == ("finished", [])
    assert {condition(row) for row in found["rows"]} == conditions("norms")
