"""Maps of examples and subwords: their places, and the pictures, sounds and texts of their marks."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

from tests.training.test_probe import PAIRS, Digits, model_of, picture, sound, text, transformer
from unifier.report.schema import MapsEntry, parse_entry
from unifier.training.maps import project_to_plane, write_maps
from unifier.training.probe import probe


@pytest.mark.slow
def test_near_vectors_are_near_on_the_map() -> None:
    labels = np.arange(120) % 6
    centers = np.random.default_rng(0).normal(0, 1, (6, 20))
    vectors = centers[labels] + np.random.default_rng(1).normal(0, 0.2, (120, 20))
    method, places = project_to_plane(vectors.astype(np.float32))
    plane = np.array([(place["x"], place["y"]) for place in places])
    assert method == "t-SNE"
    assert KNeighborsClassifier(3).fit(plane[:60], labels[:60]).score(plane[60:], labels[60:]) == 1
    np.testing.assert_allclose([*plane.min(0), plane.max()], [0, 0, 1])


def test_few_vectors_have_the_distances_of_pca() -> None:
    vectors = np.random.default_rng(0).normal(0, 1, (9, 5))
    method, places = project_to_plane(vectors)
    plane, expected = np.array([(p["x"], p["y"]) for p in places]), PCA(2).fit_transform(vectors)
    assert method == "PCA"
    distances, own = (np.linalg.norm(each[:, None] - each[None], axis=2) for each in (expected, plane))
    np.testing.assert_allclose(own, distances / np.ptp(expected, 0).max(), atol=1e-3)
    assert project_to_plane(np.ones((40, 3)))[1][7] == {"x": 0, "y": 0}
    assert project_to_plane(np.ones((1, 3)))[1] == [{"x": 0, "y": 0}]


@pytest.mark.slow
def test_every_mark_has_its_picture_sound_or_text(tmp_path: Path) -> None:
    tasks = {"words": text("word"), "digits": picture(), "music": sound(stack=4)}
    model, splits = model_of(transformer(), **tasks)
    probe(model, splits, tmp_path)
    write_maps(tasks, splits, tmp_path)
    maps = json.loads((tmp_path / "maps.json").read_text())
    for name, count in {"words": 12, "digits": 200, "music": 6}.items():
        entry, problems = parse_entry(MapsEntry, maps[name], name)
        assert problems == []
        assert len(entry["examples"]["points"]) == count
    pairs = [(point["input"], point["label"]) for point in maps["words"]["examples"]["points"]]
    assert pairs == list(map(tuple, PAIRS.split("val")))
    labels = [point["label"] for point in maps["digits"]["examples"]["points"]]
    assert labels == [Digits.labels[int(example.target)] for example in Digits().split("val")]
    assert all(point["image"] for point in maps["digits"]["examples"]["points"])
    assert all(point["audio"] for point in maps["music"]["examples"]["points"])
    tokens = maps["words"]["tokens"]["points"]
    inputs = " ".join(pair.input for pair in PAIRS.split("val"))
    assert tokens
    assert all(point["input"] in inputs for point in tokens)
    assert [point["count"] for point in tokens] == sorted((point["count"] for point in tokens), reverse=True)
    assert (tmp_path / "maps.json").stat().st_size < 200_000
