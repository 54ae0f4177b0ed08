"""Similarity of trunks: the pairs that are compared, their measures, and the rows that are left out."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unifier.trials.trunk_similarity import ANALYSES, NUM_NEIGHBORS, compare_representations

Arrays = dict[str, np.ndarray[Any, Any]]

SOLO = {"experiment": "digits", "mode": "solo", "start": None, "shuffled": False, "trainable": "all", "varied": {}}


def arrays(seed: int = 0, examples: int = 30, layers: tuple[str, ...] = ("columns", "blocks.0")) -> Arrays:
    draw = np.random.default_rng(seed)
    return {f"digits/{layer}": draw.standard_normal((examples, 6)).astype(np.float32) for layer in layers}


def make_row(folder: Path, representations: Arrays | None, **changed: Any) -> dict[str, Any]:
    """Create a run's folder with these representations, and return the run's row."""
    folder.mkdir()
    if representations is not None:
        np.savez(folder / "representations.npz", **representations)  # pyright: ignore[reportArgumentType]
    return {**SOLO, "task": "digits", "seed": 0, "folder": folder.name, **changed}


def test_pairs_are_measured_at_common_layers(tmp_path: Path) -> None:
    first, second = arrays(0), arrays(1, layers=("columns", "blocks.0", "blocks.1"))
    second["digits/columns"] = first["digits/columns"]
    frozen = make_row(tmp_path / "c", arrays(2), mode="transfer", trainable="none")
    rows = [make_row(tmp_path / "a", first), make_row(tmp_path / "b", second, mode="joint"), frozen]
    pairs, problems = compare_representations(tmp_path, rows)
    assert problems == []
    assert all(pair["a"] == SOLO for pair in pairs)
    others = [SOLO | {"mode": "joint"}, SOLO | {"mode": "transfer", "trainable": "none"}]
    assert [pair["b"] for pair in pairs] == others * 2
    equal, different = (pair for pair in pairs if pair["b"]["mode"] == "joint")
    assert (equal["layer"], equal["task"], equal["seed"]) == ("columns", "digits", 0)
    x, y = (torch.from_numpy(each["digits/blocks.0"]) for each in (first, second))
    for name, relation in ANALYSES.items():
        assert equal[name] == pytest.approx(1, abs=1e-6)
        assert equal[f"{name}_calibrated"] == pytest.approx(1, abs=1e-6)
        assert equal[f"{name}_p"] == pytest.approx(1 / 201)
        assert different[f"{name}_p"] > 0.01
        assert different[name] == pytest.approx(float((relation(x) * relation(y)).sum()), abs=1e-6)
        chance = different[f"{name}_chance"]
        assert different[f"{name}_calibrated"] == pytest.approx((different[name] - chance) / (1 - chance))


def test_other_tasks_and_seeds_are_not_compared(tmp_path: Path) -> None:
    both = arrays() | {name.replace("digits", "en-fr"): array for name, array in arrays().items()}
    changes: list[dict[str, Any]] = [{}, {"task": "en-fr"}, {"seed": 1}, {"varied": {"patch": 4}}]
    rows = [make_row(tmp_path / str(k), both, **changed) for k, changed in enumerate(changes)]
    assert compare_representations(tmp_path, rows) == ([], [])
    rows.append(make_row(tmp_path / "e", both, task="en-fr", mode="joint"))
    pairs, _ = compare_representations(tmp_path, rows)
    assert {(pair["task"], pair["a"]["mode"], pair["b"]["mode"]) for pair in pairs} == {("en-fr", "solo", "joint")}


def test_unusable_rows_are_named(tmp_path: Path) -> None:
    rows = [
        make_row(tmp_path / "good", arrays()),
        make_row(tmp_path / "missing", None),
        make_row(tmp_path / "broken", None),
        make_row(tmp_path / "bytes", None),
        make_row(tmp_path / "nan", {"digits/columns": np.full((30, 6), np.nan)}),
        make_row(tmp_path / "flat", {"digits/columns": np.ones(30)}),
        make_row(tmp_path / "few", arrays(examples=NUM_NEIGHBORS)),
        make_row(tmp_path / "another", arrays(), task="music"),
        make_row(tmp_path / "longer", arrays(examples=40), mode="transfer"),
        make_row(tmp_path / "fine", arrays(3), mode="joint"),
        make_row(tmp_path / "changed", arrays(3), mode="joint"),
    ]
    (tmp_path / "changed" / "hashes.json").write_text('{"representations.npz": "of another file"}')
    (tmp_path / "broken" / "representations.npz").write_text("torn")
    with zipfile.ZipFile(tmp_path / "bytes" / "representations.npz", "w") as archive:
        archive.writestr("digits/columns.npy", "not an array")
    pairs, problems = compare_representations(tmp_path, rows)
    assert {(pair["a"]["mode"], pair["b"]["mode"]) for pair in pairs} == {("solo", "joint")}
    expected = dict.fromkeys(("broken", "bytes", "nan", "flat"), "broken")
    expected = {"missing": "no such file", **expected, "few": "10 ex", "another": "0 ex", "longer": "40 ex"}
    expected["changed"] = "SHA-256"
    for line, (folder, message) in zip(problems, expected.items(), strict=True):
        assert str(tmp_path / folder) in line
        assert message in line
        assert "\n" not in line
