"""Rows, runs and comparisons as the files of a run hold them, for reports of every kind."""

import base64
import copy
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import soundfile
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from unifier.report.conditions import Condition, group_conditions
from unifier.report.plot_style import FIGURE_STYLE, FigureWriter, SavedFigure, task_colors
from unifier.report.read_results import read_results

SCORE_RANGES = {
    "digits": {"metric": "accuracy", "chance": 10.0, "reference": 98.0, "origin": "a support vector machine"},
    "en-fr": {"metric": "bleu", "chance": 0.0, "reference": 96.0, "origin": "the grammar's own translation"},
    "music": {"metric": "accuracy", "chance": 20.0, "reference": 90.0, "origin": "listeners"},
}
"""The score range of each task."""

EXPERIMENT_TASKS = {"pictures": "digits", "translation": "en-fr", "genres": "music"}
"""The task of each experiment."""

JOINT: dict[str, Any] = {"mode": "joint", "experiment": "joint"}
FROZEN: dict[str, Any] = {"mode": "transfer", "trainable": "none"}

Row = dict[str, Any]


def make_row(task: str = "digits", score: float = 90.0, seed: int = 0, **facts: Any) -> Row:
    """Return a row of comparison.json.

    Args:
        task: A key of `SCORE_RANGES`.
        score: The score on the test split.
        seed: The seed of the run.
        facts: Other keys of the row. Those of its budget are under "budget".
    """
    budget = {"steps": 300, "examples": 4000, "tokens": 64_000, "flops": 10**12, "seconds": 10.0}
    budget |= {"peak_memory_bytes": 10**9, **facts.pop("budget", {})}
    experiment = next(name for name, trained in EXPERIMENT_TASKS.items() if trained == task)
    status, error = facts.pop("status", "finished"), facts.pop("error", "")
    row = {"experiment": experiment, "task": task, "seed": seed, "mode": "solo", "start": None, "shuffled": False}
    row |= {"trainable": "all", "varied": {}, "folder": "", **facts}
    metric, sizes = SCORE_RANGES[task]["metric"], {"sha256": "ab" * 32, "train": 4000, "val": 200, "test": 300}
    result: Row = {"name": row["experiment"], "seed": seed, "status": status, "error": error, "speed": {}}
    result["tasks"] = list(SCORE_RANGES) if row["mode"] == "joint" else [task]
    result["metrics"] = {f"val/{task}/{metric}": score + 1, f"test/{task}/{metric}": score, f"test/{task}/other": 1.0}
    result["signatures"] = {f"test/{task}/{metric}": "case:mixed"}
    result["parameters"] = {"tokenizer": 1000, "trunk": 40_000, "head": 500, "total": 41_500}
    result |= {"budget": budget, "task_budgets": {task: budget}, "commit": "0123456789" * 4}
    result |= {"settings": {"dim": 128, "tokens": 64_000, "seeds": [0, 1]}, "machine": "two cores", "threads": 2}
    result["data"] = {task: {**sizes, "name": task, "score_range": dict(SCORE_RANGES[task]), "max_score": 100.0}}
    result["lineage"] = {}
    result["versions"] = {"python": "3.11", "torch": "2.11.0", "unifier": "0.1.0"}
    return row | {"result": result}


def make_seeds(task: str, *scores: float, **facts: Any) -> list[Row]:
    """Return one row for each score, with seeds 0, 1, ..."""
    return [make_row(task, score, seed, **facts) for seed, score in enumerate(scores)]


def make_gains(task: str, *gains: float) -> list[Row]:
    """Return solo and joint rows of one task, joint better by one gain per seed."""
    solo = make_seeds(task, *(60.0 + seed for seed in range(len(gains))))
    return solo + make_seeds(task, *(60.0 + seed + gain for seed, gain in enumerate(gains)), **JOINT)


def with_metric(row: Row, metric: str, max_score: float | None = None) -> Row:
    """Return the row with its score under another metric that has no score range."""
    scores = row["result"]["metrics"]
    row["result"]["metrics"] = {name.replace("accuracy", metric): score for name, score in scores.items()}
    row["result"]["data"][row["task"]] |= {"score_range": None, "max_score": max_score}
    return row


def as_errors(rows: list[Row]) -> list[Row]:
    """Return the rows with the error 100 - score in place of each score, so that lower is better."""
    rows = copy.deepcopy(rows)
    for row in rows:
        task = row["task"]
        metric = SCORE_RANGES[task]["metric"]
        scores, data = row["result"]["metrics"], row["result"]["data"][task]
        row["result"]["metrics"] = {
            name.replace(metric, "error"): 100 - score if name.endswith(metric) else score
            for name, score in scores.items()
        }
        data |= {"lower_is_better": ["error"], "max_score": None}
        if data["score_range"]:
            ends = {name: 100 - data["score_range"][name] for name in ("chance", "reference")}
            data["score_range"] = {"metric": "error", **ends, "origin": "the same"}
    return rows


def without_ranges(rows: list[Row]) -> list[Row]:
    """Return the rows without score ranges, so that scores are not normalized."""
    for row in rows:
        row["result"]["data"][row["task"]]["score_range"] = None
    return rows


def encode_picture() -> str:
    """Return a small gray PNG as a data URL."""
    data = io.BytesIO()
    Image.fromarray((np.arange(64, dtype=np.uint8) * 4).reshape(8, 8)).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def encode_tone() -> str:
    """Return a fifth of a second of sound as a data URL."""
    data = io.BytesIO()
    soundfile.write(data, np.sin(np.arange(1600) * 0.3) * 0.5, 8000, format="WAV", subtype="PCM_16")
    return "data:audio/wav;base64," + base64.b64encode(data.getvalue()).decode()


def write_run(folder: Path, row: Row) -> Row:
    """Write the files of the row's run into a folder, and return the row with that folder."""
    result, task = row["result"], row["task"]
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    _write_metrics(folder / "metrics.csv", row)
    media = {"digits": {"image": encode_picture()}, "music": {"audio": encode_tone()}, "en-fr": {}}[task]
    texts = {
        "input": "the small dog sleeps <here> & now",
        "target": "le petit chien dort",
        "prediction": "le chien dort",
    }
    (folder / "samples.json").write_text(json.dumps({task: [{**texts, **media}] * 4}))
    every = {"uniform_distance": 4.0, "agreement": 0.4}
    layers = [every | {"entropy": 0.8 - 0.1 * k, "distance": 3.1 - k} for k in (0, 1)]
    unit = {"digits": "pixels", "en-fr": "words", "music": "seconds"}[task]
    (folder / "attention.json").write_text(json.dumps({task: {"unit": unit, "layers": layers}}))
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="120"><rect width="90" height="60"/></svg>'
    (folder / "figures" / f"attention-{task}-0.svg").write_text(drawing)
    if row["mode"] == "joint":
        _write_interference(folder / "interference.csv")
    (folder / "settings.json").write_text(json.dumps({"name": result["name"], "seed": row["seed"], "settings": {}}))
    (folder / "result.json").write_text(json.dumps(result))
    return {**row, "folder": str(folder)}


def _write_metrics(path: Path, row: Row) -> None:
    """Write twenty steps of a falling loss, and of validation scores that rise from chance to the row's score."""
    result, task = row["result"], row["task"]
    metric, chance = SCORE_RANGES[task]["metric"], SCORE_RANGES[task]["chance"]
    score = result["metrics"][f"test/{task}/{metric}"]
    names = ["step", "budget/tokens", "budget/flops", "budget/seconds"]
    names += [f"train/{name}/loss" for name in result["tasks"]]
    names += [f"val/{name}/{SCORE_RANGES[name]['metric']}" for name in result["tasks"]]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for part in np.linspace(0.05, 1, 20):
            cost = {f"budget/{name}": result["budget"][name] * part for name in ("tokens", "flops", "seconds")}
            step = {"step": round(300 * part), **cost}
            writer.writerow(step | {f"train/{name}/loss": 2 * np.exp(-4 * part) for name in result["tasks"]})
            reached = chance + (score - chance) * (1 - np.exp(-5 * part))
            writer.writerow(step | {f"val/{name}/{SCORE_RANGES[name]['metric']}": reached for name in result["tasks"]})


def _write_interference(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "tokens", "layer", "task_a", "task_b", "cosine"])
        for step in range(0, 300, 30):
            for layer in ("blocks.0", "blocks.1"):
                for k, a in enumerate(SCORE_RANGES):
                    for b in list(SCORE_RANGES)[k:]:
                        cosine = 0.7 - step / 1000 if a == b else 0.1 * (k - 1)
                        writer.writerow([step, step * 200, layer, a, b, cosine])


def make_comparison(runs: Path, rows: list[Row], **more: Any) -> Path:
    """Write a comparison and its runs below `runs`, and return the comparison's folder.

    Args:
        runs: The folder that holds all runs.
        rows: The rows, one run each.
        more: Other keys of comparison.json.
    """
    names = [f"20260101-0000{k:02}-seed{row['seed']}-{k:04x}" for k, row in enumerate(rows)]
    folder = runs / "study" / "20260101-000000"
    written = [write_run(folder / row["experiment"] / name, row) for name, row in zip(names, rows, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    content = {"name": "study", "status": "finished", "question": "", "settings": {"dim": 128}, "seeds": [0, 1, 2]}
    content |= {"study": str(Path.cwd() / "experiments" / "study.py") + ":study"}
    content |= {"budget_unit": "tokens", "problems": [], "representation": [], **more, "rows": written}
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


def full_rows() -> list[Row]:
    """Return rows of three tasks and three seeds: solo, joint, transfer and its controls."""
    generator = np.random.default_rng(0)
    solo = {"digits": 95.0, "en-fr": 80.0, "music": 75.0}
    joint = {"digits": -0.6, "en-fr": -3.5, "music": 1.6}
    worth = {"pictures": 0.90, "translation": 0.83, "genres": 0.94}
    rows: list[Row] = []
    for seed in range(3):
        for task, score in solo.items():

            def add(factor: float, task: str = task, score: float = score, seed: int = seed, **facts: Any) -> None:
                rows.append(make_row(task, score * factor + generator.normal(0, 0.4), seed, **facts))

            add(1.0, budget={"seconds": 12.0 + seed})
            add(1 + joint[task] / 100, **JOINT, budget={"seconds": 31.0, "flops": 1.3e12})
            for trainable, factor in (("none", 0.62), ("norms", 0.8)):
                add(factor, mode="transfer", trainable=trainable)
            for start, factor in worth.items():
                if EXPERIMENT_TASKS[start] != task:
                    for trainable, bonus in (("none", 0.0), ("norms", 0.05), ("all", 0.08)):
                        add(factor + bonus, mode="transfer", start=start, trainable=trainable)
                    add(0.58, **FROZEN, start=start, shuffled=True)
    return rows


def make_representation() -> list[Row]:
    """Return the similarity of solo's trunk to three others, by layer."""
    pairs: list[Row] = []
    solo = {"mode": "solo", "start": None, "shuffled": False, "trainable": "all", "varied": {}}
    trained, random = solo | {"mode": "transfer", "start": "translation"}, solo | FROZEN
    others = ((solo | {"mode": "joint"}, 0.8), (trained, 0.6), (random, 0.2))
    for seed in range(3):
        for task in SCORE_RANGES:
            for k, layer in enumerate(("columns", "blocks.0", "blocks.1")):
                for other, cka in others:
                    pair = {"task": task, "seed": seed, "layer": layer, "a": solo, "b": other}
                    pair |= {"cka": cka, "cka_chance": 0.15, "cka_calibrated": cka - 0.15 - 0.1 * k, "cka_p": 0.01}
                    pair |= {"neighbors": 0.5, "neighbors_chance": 0.04, "neighbors_calibrated": 0.48 - 0.1 * k}
                    pairs.append({**pair, "neighbors_p": 0.2})
    return pairs


def make_full(runs: Path) -> Path:
    """Write a comparison of every kind with one problem, and return its folder."""
    problems = ["genres, seed 3 (20260101-seed3): diverged: train/music/loss is nan by step 30"]
    question = "What happens when text, pictures and sound share a trunk?"
    more = {"problems": problems, "question": question, "representation": make_representation()}
    return make_comparison(runs, full_rows(), **more)


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a comparison of every kind with one problem; tests that write copy it first."""
    return make_full(tmp_path_factory.mktemp("full") / "runs")


def read_conditions(folder: Path, rows: list[Row]) -> list[Condition]:
    """Write the runs of the rows, and return the conditions that a report reads of them."""
    return group_conditions(read_results(make_comparison(folder, rows)).rows)


def svg_text(path: Path) -> str:
    """Return all text of an SVG in one line."""
    return " ".join(" ".join(ElementTree.parse(path).getroot().itertext()).split())


@pytest.fixture
def figure_style() -> Iterator[None]:
    """Draw figures as a page has them."""
    with mpl.rc_context(FIGURE_STYLE):
        yield


@pytest.fixture
def writer(tmp_path: Path) -> FigureWriter:
    """Return a writer of figures of all tasks below the test's folder."""
    return FigureWriter(tmp_path, task_colors(list(SCORE_RANGES)))


@pytest.fixture
def drawn_axes(monkeypatch: pytest.MonkeyPatch, figure_style: None) -> dict[str, Axes]:
    """Collect the axes of each figure by its name instead of writing it."""
    axes: dict[str, Axes] = {}

    def collect(_: FigureWriter, figure: Figure, name: str, section: str, alt: str, *_more: Any) -> SavedFigure:
        axes[name] = figure.axes[0]
        return SavedFigure(section, Path(name), alt, [])

    monkeypatch.setattr(FigureWriter, "save", collect)
    return axes
