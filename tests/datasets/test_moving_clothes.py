"""Clips of moving clothing, files with clips, and the recipe that classifies clips."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

import unifier as uf
from tests.datasets.test_mnist import fashion_mnist
from unifier.cli import main
from unifier.data.source import SPLITS
from unifier.data.video_files import read_clip
from unifier.datasets import MovingClothes
from unifier.datasets.moving_clothes import DIRECTIONS
from unifier_tokenizers import InputError


def clothes(folder: Path, label: Literal["direction", "kind"] = "direction", seed: int = 0) -> MovingClothes:
    fashion_mnist(folder)
    return MovingClothes(label, seed=seed, data=folder)


@pytest.mark.slow
def test_clips_keep_contract(check_source: Callable[..., None]) -> None:
    check_source(clothes)


def test_piece_moves_inside_the_frame_in_the_direction_of_the_label(tmp_path: Path) -> None:
    source = clothes(tmp_path / "clothes")
    kinds = MovingClothes("kind", data=tmp_path / "clothes")
    found = set[str]()
    for name in SPLITS:
        for index, (clip, direction) in enumerate(source.split(name)):
            assert (clip.shape, clip.dtype) == ((8, 28, 28), np.uint8)
            same, kind = kinds.split(name)[index]
            assert np.array_equal(clip, same)
            if not clip.any():  # The first kind of the small data set is black.
                continue
            corners = np.array([np.argwhere(frame)[0] for frame in clip])
            assert (clip > 0).sum((1, 2)).tolist() == [14 * 14] * 8
            assert clip.max() == kinds.labels.index(kind)
            (step,) = np.unique(np.diff(corners, axis=0), axis=0)
            assert (np.sign(step) == DIRECTIONS[direction]).all()
            found.add(direction)
    assert found == {*source.labels}


def test_motions_depend_on_the_seed_and_the_split(tmp_path: Path) -> None:
    source = clothes(tmp_path / "clothes")
    again, other = (MovingClothes(seed=seed, data=tmp_path / "clothes") for seed in (0, 1))
    targets = [[example.target for example in each.split("val")] for each in (source, again, other)]
    assert targets[0] == targets[1] != targets[2]
    assert source.sha256 == again.sha256 != other.sha256
    assert targets[0] != [example.target for example in source.split("test")]
    with pytest.raises(InputError, match="colour"):
        MovingClothes("colour")  # pyright: ignore[reportArgumentType]


def write_gif(path: Path, clip: np.ndarray) -> Path:
    frames = [Image.fromarray(frame) for frame in clip]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    return path


def test_clips_of_files_equal_the_arrays(tmp_path: Path) -> None:
    clip = np.random.default_rng(0).integers(0, 256, (4, 6, 9)).astype(np.uint8)
    np.save(tmp_path / "clip.npy", clip)
    for path in (tmp_path / "clip.npy", write_gif(tmp_path / "clip.gif", clip)):
        assert np.array_equal(read_clip(path, 1)[..., 0], clip)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.npy", b"\x93NUMPY\x01\x00"), ("b.gif", b"GIF89a"), ("c.mp4", b"x"), ("d.npy", b""), ("e.gif", b"x" * 99)],
)
def test_damaged_clips_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name) as error:
        read_clip(tmp_path / name, 1)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_recipe_trains_predicts_and_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    source = clothes(data / "fashion_mnist")
    settings = ["label=kind", "dim=16", "depth=1", "heads=2", "steps=3", "num_validations=1", "frames=4"]
    options = ["--data", str(data), "--out", str(tmp_path / "runs"), "--track", "off"]
    assert main(["run", "video", *settings, *options]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    assert 0 <= json.loads((run / "result.json").read_text())["metrics"]["test/moving_clothes/accuracy"] <= 100
    assert "data:image" in (run / "report.html").read_text()
    clip = source.split("test")[7].input
    np.save(tmp_path / "clip.npy", clip)
    files = [str(tmp_path / "clip.npy"), str(write_gif(tmp_path / "clip.gif", clip))]
    assert main(["predict", str(run), *files]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert rows[0] | {"input": ""} == rows[1] | {"input": ""}
    model = uf.load(run / "model")
    assert model.predict([clip])[0] == model.predict([files[0]])[0]
