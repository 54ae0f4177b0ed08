"""One thread a process, since models this small only wait for more; one seed; what sets keep; folders to report on."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the programs that tests start
os.environ["UNIFIER_CACHE"] = "off"  # or tests would leave what they encode with the user

import base64
import csv
import io
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch
from matplotlib.figure import Figure
from PIL import Image

from unifier.data.source import SPLITS, Source
from unifier_tokenizers import InputError

DATA = {".gz", ".xz", ".zip", ".wav", ".ogg", ".PNG", ".de"}
"""Endings of the files that the tests' data sets are made of."""


@pytest.fixture(autouse=True)
def torch_seed() -> None:
    """The same numbers every time, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture
def keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Check a source that `make` writes into a folder; a `named` one is also found in the command line's --data."""

    def check(make: Callable[[Path], Any], *, named: bool = False) -> None:
        source, moved, changed = (make(tmp_path / name) for name in ("data", "moved", "changed"))
        _splits(source, moved, str(tmp_path / "data"))
        for path in (tmp_path / "changed").rglob("*"):
            if path.suffix in DATA:
                path.write_bytes(path.read_bytes() + b"\0")
        assert source.sha256 == moved.sha256 != changed.sha256
        if named:
            _found(source, tmp_path, monkeypatch)

    return check


def _splits(source: Any, moved: Any, root: str) -> None:
    assert isinstance(cast(object, source), Source)
    splits = {name: source.split(name) for name in SPLITS}
    places = [split.example_id(index) for split in splits.values() for index in range(len(split))]
    assert len(places) == len(set(places)), "an example is in two splits"
    assert all(root in place for place in places)
    for name, split in splits.items():
        assert len(split)
        traveled = pickle.loads(pickle.dumps(split))
        assert repr(traveled[0]) == repr(split[0])
        assert [repr(one) for one in split[:2]] == [repr(split[i]) for i in range(min(2, len(split)))]
        assert split[1:].example_id(0) == split.example_id(1)
        assert [repr(one) for one in moved.split(name)] == [repr(one) for one in split]
        with pytest.raises(IndexError):
            split[len(split)]
    with pytest.raises(InputError, match="no split 'dev'"):
        source.split("dev")
    if labels := getattr(source, "labels", None):
        assert len(set(labels)) == len(labels)
        assert {example.target for split in splits.values() for example in split} <= set(labels)


def _found(made: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "data").rename(root / made.name)
    monkeypatch.setenv("UNIFIER_DATA", str(root))
    assert len(type(made)().split("train"))
    monkeypatch.setenv("UNIFIER_DATA", str(root / made.name))
    with pytest.raises(InputError, match=f"{made.name}.*put") as error:
        type(made)().split("train")
    assert "\n" not in str(error.value)


SCALES = {
    "digits": {"metric": "accuracy", "chance": 10.0, "reference": 98.0, "origin": "a support vector machine"},
    "en-fr": {"metric": "bleu", "chance": 0.0, "reference": 96.0, "origin": "the grammar's own translation"},
    "music": {"metric": "accuracy", "chance": 20.0, "reference": 90.0, "origin": "listeners"},
}
TRAINED_BY = {"pictures": "digits", "translation": "en-fr", "genres": "music"}
"""The task of each experiment."""

Rows = Callable[..., dict[str, Any]]


def make_row(task: str = "digits", score: float = 90.0, seed: int = 0, **facts: Any) -> dict[str, Any]:
    """A row of comparison.json; `facts` are its own, or those of its budget under "budget"."""
    budget = {"steps": 300, "examples": 4000, "tokens": 64_000, "flops": 10**12, "seconds": 10.0}
    budget |= {"peak_memory_bytes": 10**9, **facts.pop("budget", {})}
    experiment = next(name for name, own in TRAINED_BY.items() if own == task)
    status, error = facts.pop("status", "finished"), facts.pop("error", "")
    row = {"experiment": experiment, "task": task, "seed": seed, "mode": "solo", "start": None, "shuffled": False}
    row |= {"trainable": "all", "varied": {}, "folder": "", **facts}
    name, read = SCALES[task]["metric"], {"sha256": "ab" * 32, "train": 4000, "val": 200, "test": 300}
    row["result"] = {
        "name": row["experiment"],
        "tasks": list(SCALES) if row["mode"] == "joint" else [task],
        "seed": seed,
        "status": status,
        "metrics": {f"val/{task}/{name}": score + 1, f"test/{task}/{name}": score, f"test/{task}/other": 1.0},
        "signatures": {f"test/{task}/{name}": "case:mixed"},
        "parameters": {"tokenizer": 1000, "trunk": 40_000, "head": 500, "total": 41_500},
        "budget": budget,
        "task_budgets": {task: budget},
        "speed": {},
        "settings": {"dim": 128, "tokens": 64_000, "seeds": [0, 1]},
        "data": {task: {**read, "name": task, "score_range": dict(SCALES[task]), "max_score": 100.0}},
        "versions": {"python": "3.11", "torch": "2.11.0", "unifier": "0.1.0"},
        "commit": "0123456789" * 4,
        "machine": "two cores",
        "error": error,
    }
    return row


def picture() -> str:
    """A small gray PNG, as a page can show it."""
    data = io.BytesIO()
    Image.fromarray((np.arange(64, dtype=np.uint8) * 4).reshape(8, 8)).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def tone() -> str:
    """A fifth of a second of sound, as a page can play it."""
    data = io.BytesIO()
    soundfile.write(data, np.sin(np.arange(1600) * 0.3) * 0.5, 8000, format="WAV", subtype="PCM_16")
    return "data:audio/wav;base64," + base64.b64encode(data.getvalue()).decode()


def write_run(folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Write what a run of this row leaves in its folder; returns the row with its folder."""
    result, task = row["result"], row["task"]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    metric, chance = SCALES[task]["metric"], SCALES[task]["chance"]
    score = result["metrics"][f"test/{task}/{metric}"]
    others = [one for one in result["tasks"] if one != task]
    with (folder / "metrics.csv").open("w", newline="") as file:
        names = ["step", "budget/tokens", "budget/flops", "budget/seconds"]
        names += [f"train/{one}/loss" for one in result["tasks"]]
        names += [f"val/{one}/{SCALES[one]['metric']}" for one in result["tasks"]]
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for part in np.linspace(0.05, 1, 20):
            spent = {f"budget/{name}": result["budget"][name] * part for name in ("tokens", "flops", "seconds")}
            step = {"step": round(300 * part), **spent}
            writer.writerow({**step, **{f"train/{one}/loss": 2 * np.exp(-4 * part) for one in result["tasks"]}})
            reached = chance + (score - chance) * (1 - np.exp(-5 * part))
            scores = {
                f"val/{task}/{metric}": reached,
                **{f"val/{one}/{SCALES[one]['metric']}": reached for one in others},
            }
            writer.writerow({**step, **scores})
    sample = {"digits": {"image": picture()}, "music": {"audio": tone()}, "en-fr": {}}[task]
    said = {
        "input": "the small dog sleeps <here> & now",
        "target": "le petit chien dort",
        "prediction": "le chien dort",
    }
    (folder / "samples.json").write_text(json.dumps({task: [{**said, **sample}] * 4}))
    layers = [
        {"entropy": 0.8 - 0.1 * k, "distance": 3.1 - k, "uniform_distance": 4.0, "agreement": 0.4} for k in (0, 1)
    ]
    unit = {"digits": "pixels", "en-fr": "words", "music": "seconds"}[task]
    (folder / "attention.json").write_text(json.dumps({task: {"unit": unit, "layers": layers}}))
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="120"><rect width="90" height="60"/></svg>'
    (folder / "figures" / f"attention-{task}-0.svg").write_text(drawing)
    if row["mode"] == "joint":
        with (folder / "interference.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "tokens", "layer", "task_a", "task_b", "cosine"])
            for step in range(0, 300, 30):
                for layer in ("blocks.0", "blocks.1"):
                    for k, a in enumerate(SCALES):
                        for b in list(SCALES)[k:]:
                            cosine = 0.7 - step / 1000 if a == b else 0.1 * (k - 1)
                            writer.writerow([step, step * 200, layer, a, b, cosine])
    (folder / "settings.json").write_text(json.dumps({"name": result["name"], "seed": row["seed"], "settings": {}}))
    (folder / "result.json").write_text(json.dumps(result))
    return {**row, "folder": str(folder)}


def make_comparison(runs: Path, rows: list[dict[str, Any]], **more: Any) -> Path:
    """Write a comparison's folder and those of its runs below `runs`; returns the comparison's."""
    placed: list[dict[str, Any]] = []
    for k, row in enumerate(rows):
        placed.append(write_run(runs / row["experiment"] / f"20260101-0000{k:02}-seed{row['seed']}-{k:04x}", row))
    folder = runs / "study" / "20260101-000000"
    folder.mkdir(parents=True)
    content = {"name": "study", "status": "finished", "question": "", "settings": {"dim": 128}, "seeds": [0, 1, 2]}
    content |= {"study": str(Path.cwd() / "experiments" / "study.py") + ":study"}
    content |= {"budget_unit": "tokens", "problems": [], "representation": [], **more, "rows": placed}
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


def full_rows() -> list[dict[str, Any]]:
    """Solo, joint, transfer with its controls, three tasks, three seeds."""
    chance = np.random.default_rng(0)
    solo = {"digits": 95.0, "en-fr": 80.0, "music": 75.0}
    joint = {"digits": -0.6, "en-fr": -3.5, "music": 1.6}
    worth = {"pictures": 0.90, "translation": 0.83, "genres": 0.94}
    rows: list[dict[str, Any]] = []
    for seed in range(3):
        for task, score in solo.items():
            draw = lambda much, s=score: s * much + chance.normal(0, 0.4)  # noqa: E731
            rows.append(make_row(task, draw(1.0), seed, budget={"seconds": 12.0 + seed}))
            spent = {"seconds": 31.0, "flops": 1.3e12}
            rows.append(
                make_row(task, draw(1 + joint[task] / 100), seed, mode="joint", experiment="joint", budget=spent)
            )
            for tuned, much in (("none", 0.62), ("norms", 0.8)):
                rows.append(make_row(task, draw(much), seed, mode="transfer", trainable=tuned))
            for start, much in worth.items():
                if TRAINED_BY[start] != task:
                    for tuned, bonus in (("none", 0.0), ("norms", 0.05), ("all", 0.08)):
                        rows.append(
                            make_row(task, draw(much + bonus), seed, mode="transfer", start=start, trainable=tuned)
                        )
                    moved = {"mode": "transfer", "start": start, "trainable": "none", "shuffled": True}
                    rows.append(make_row(task, draw(0.58), seed, **moved))
    return rows


def make_representation() -> list[dict[str, Any]]:
    """Similarity of four trunks with solo's, by layer."""
    found: list[dict[str, Any]] = []
    solo = {"mode": "solo", "start": None, "shuffled": False, "trainable": "all", "varied": {}}
    trained = solo | {"mode": "transfer", "start": "translation"}
    random = solo | {"mode": "transfer", "trainable": "none"}
    others = ((solo | {"mode": "joint"}, 0.8), (trained, 0.6), (random, 0.2))
    for seed in range(3):
        for task in SCALES:
            for k, layer in enumerate(("columns", "blocks.0", "blocks.1")):
                for b, cka in others:
                    near = {"neighbors": 0.5, "neighbors_chance": 0.04, "neighbors_calibrated": 0.48 - 0.1 * k}
                    like = {"cka": cka, "cka_chance": 0.15, "cka_calibrated": cka - 0.15 - 0.1 * k, "cka_p": 0.01}
                    place = {"task": task, "seed": seed, "layer": layer, "a": solo, "b": b}
                    found.append({**place, **like, **near, "neighbors_p": 0.2})
    return found


@pytest.fixture
def row() -> Rows:
    """Makes rows of comparison.json."""
    return make_row


@pytest.fixture(scope="module")
def undrawn() -> Iterator[Callable[..., None]]:
    """Figures are empty: to draw them is most of a small run, and none of what its tests are about.

    What would have drawn them, for a test that looks at one.
    """
    drawn = Figure.savefig

    def empty(_: Figure, file: Path | io.StringIO, **_given: Any) -> None:
        svg = '<svg xmlns="http://www.w3.org/2000/svg"><style></style></svg>'
        file.write(svg) if isinstance(file, io.StringIO) else file.write_text(svg)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", empty)
        yield drawn


@pytest.fixture
def comparison() -> Callable[..., Path]:
    """Writes a comparison with its runs."""
    return make_comparison


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison of every kind, with a problem. To be read; what writes takes a copy."""
    problems = ["genres, seed 3 (20260101-seed3): diverged: train/music/loss is nan by step 30"]
    question = "What happens when text, pictures and sound share a trunk?"
    more = {"problems": problems, "question": question, "representation": make_representation()}
    return make_comparison(tmp_path_factory.mktemp("full") / "runs", full_rows(), **more)
