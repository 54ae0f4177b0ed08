"""The experiment on pictures: what it takes from a folder of any sizes, the same in every fold and for good."""

import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from unifier import Experiment, run
from unifier.config import load_experiment
from unifier.data.dataloader import collate
from unifier.data.encoding import encode_split
from unifier.data.source import SPLITS
from unifier.data.statistics import median_side
from unifier.datasets.image_folder import ImageFolder
from unifier.experiment import recording_fitted, save_fitted
from unifier.files import read_json
from unifier.inference.load import load
from unifier_tokenizers import InputError, PatchTokenizer

PICTURES: Any = load_experiment(str(Path(__file__).parents[2] / "experiments" / "pictures.py"))
SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16}


def folder(place: Path, *sides: int) -> Path:
    """Bright pictures a third as wide as high, of these heights, in two classes; three folds."""
    rows = ["file,fold"]
    for k, side in enumerate(sides):
        path = place / "ab"[k % 2] / f"{k:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(k).integers(100, 256, (side, -(-side // 3)), np.uint8)
        Image.fromarray(noise).save(path)
        rows.append(f"{path.relative_to(place)},{k // 2 % 3}")
    (place / "folds.csv").write_text("\n".join(rows) + "\n")
    return place


def built(place: Path, **settings: Any) -> PatchTokenizer:
    return cast(PatchTokenizer, PICTURES(data=str(place), **SMALL, **settings).tasks["image_folder"].tokenizer)


def test_the_patch_is_that_of_most_pictures_in_every_fold_whichever_is_first(tmp_path: Path) -> None:
    small_first = folder(tmp_path / "small", 8, 8, *[64] * 28)
    large_first = folder(tmp_path / "large", 64, 64, *[16] * 28)
    mixed = folder(tmp_path / "mixed", *[8, 16, 64] * 10)
    for fold in range(3):
        assert [built(place, fold=fold).patch for place in (small_first, large_first, mixed)] == [8, 2, 2]
    assert built(mixed, patch=4).patch == 4


def test_of_many_pictures_some_are_looked_at_and_the_same_in_every_fold(tmp_path: Path) -> None:
    sides = np.random.default_rng(0).integers(1, 200, 61).tolist()
    place = folder(tmp_path, *sides)
    found = {most: [median_side(ImageFolder(place, fold=fold), max_examples=most) for fold in range(3)] for most in (10, 100)}
    assert all(len(set(medians)) == 1 for medians in found.values())
    assert found[100][0] == np.median(sides) != found[10][0]


@pytest.mark.parametrize("settings", [{}, {"size": 300}, {"size": 300, "patch": 2}, {"size": 7}])
def test_pictures_of_every_size_have_places_and_none_is_shifted_out_of_sight(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    place = folder(tmp_path, 32, 32, 4, 8, 250, 300, 5, 32, 32, 32, 32, 32)
    (task,) = PICTURES(data=str(place), **SMALL, **settings).tasks.values()
    for name in SPLITS:
        split = task.source.split(name)
        assert max(max(example.input.shape) for example in split) <= settings.get("size", 64)
        encoded, _ = encode_split(split, task.tokenizer, task.head)
        batch = collate(encoded, range(len(split)))
        for seed in range(20):
            changed = task.augment(batch, torch.Generator().manual_seed(seed))
            assert changed.values.flatten(1).any(1).all()


def test_a_run_is_loaded_and_resumed_with_the_patch_that_it_began_with(tmp_path: Path) -> None:
    place = folder(tmp_path / "data", *[16] * 12)
    (result,) = run(
        PICTURES, data=str(place), **SMALL, tokens=200, num_validations=1, out=tmp_path / "runs", track="off"
    )
    assert read_json(result.folder / "numbers.json") == {"image_folder-patch": 2}
    shutil.rmtree(place)
    folder(place, *[64] * 30)
    assert built(place).patch == 8
    tokenizer = load(result.folder).experiment.tasks["image_folder"].tokenizer
    assert isinstance(tokenizer, PatchTokenizer)
    assert tokenizer.patch == 2
    with recording_fitted(result.folder) as learned:
        assert built(place).patch == 2
    (tmp_path / "resumed").mkdir()
    save_fitted(learned, tmp_path / "resumed")
    assert read_json(tmp_path / "resumed" / "numbers.json") == {"image_folder-patch": 2}


def test_the_learning_rate_goes_as_it_is_told() -> None:
    told: Experiment = PICTURES(**SMALL, schedule="constant", warmup_ratio=0.3)
    assert (told.training.schedule, told.training.warmup_ratio) == ("constant", 0.3)
    plain: Experiment = PICTURES(**SMALL)
    assert (plain.training.schedule, plain.training.warmup_ratio) == ("cosine", 0.1)


def test_a_folder_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    place = folder(tmp_path, *[8] * 12)
    for path in place.glob("*/*.png"):
        path.write_text("no picture")
    with pytest.raises(InputError, match="none of the pictures to train on can be read"):
        built(place, bad_examples="skip")
    with pytest.raises(InputError, match="cannot be read as a picture"):
        built(place)


def test_pictures_are_made_normal_by_those_to_train_on(tmp_path: Path) -> None:
    for name, gray in (("train", 51), ("val", 153), ("test", 255)):
        for label in "ab":
            (tmp_path / name / label).mkdir(parents=True)
            Image.new("L", (8, 8), gray).save(tmp_path / name / label / "1.png")
    tokenizer = built(tmp_path)
    torch.testing.assert_close(tokenizer.mean, torch.full((3,), 51 / 255))
