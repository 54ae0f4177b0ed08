"""Which class was taken for which: what a run leaves of it, and what the page draws."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch.nn import functional

from unifier.data.source import Example
from unifier.experiment import Task
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.report.page import report_on
from unifier.training.artifacts import confusion_counts
from unifier_tokenizers import PatchTokenizer

D = 8
LABELS = ("dog", "cat", "owl")


def task(head: Any, targets: list[Any]) -> Task:
    source: Any = SimpleNamespace(split=lambda name: [Example(None, target) for target in targets])
    return Task(source, PatchTokenizer(D, channels=1), head)


def test_each_example_is_counted_where_it_is_true_and_where_it_was_said() -> None:
    true = ["cat", "dog", "owl", "cat", "cat", "dog"]
    said = {0: "cat", 1: "owl", 3: "dog", 4: "cat", 5: "dog"}  # the third could not be read
    probabilities = {k: functional.one_hot(torch.tensor(LABELS.index(one)), 3).float() for k, one in said.items()}
    tasks = {
        "animals": task(ClassificationHead(LABELS, D), true),
        "moods": task(TaggingHead(LABELS, D), [(one,) for one in true]),
    }
    found = confusion_counts(tasks, {"animals": probabilities, "moods": probabilities})
    wanted = confusion_matrix([true[k] for k in said], list(said.values()), labels=LABELS)
    assert found == {"animals": {"labels": list(LABELS), "counts": wanted.tolist()}}


def kept(rows: list[dict[str, Any]], counts: list[list[list[int]]], labels: list[str]) -> None:
    for one, own in zip(rows, counts, strict=True):
        told = {"digits": {"labels": labels, "counts": own}}
        (Path(one["folder"]) / "confusions.json").write_text(json.dumps(told))


def test_the_page_draws_all_runs_of_the_condition_that_is_best_on_validation(
    row: Callable[..., dict[str, Any]], comparison: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [row("digits", 60.0, seed, varied={"dim": dim}) for dim in (8, 16) for seed in (0, 1)]
    for one in rows:
        one["result"]["metrics"]["val/digits/accuracy"] = 50.0 + one["varied"]["dim"]
    folder = comparison(tmp_path, rows)
    written = json.loads((folder / "comparison.json").read_text())["rows"]
    kept(written, [[[9, 9], [9, 9]], [[9, 9], [9, 9]], [[3, 1], [0, 2]], [[1, 1], [2, 0]]], ["cat", "dog"])
    page, problems = report_on(folder)
    assert not problems
    with (folder / "figures" / "confusions-digits.csv").open(newline="") as file:
        drawn = [(line["condition"], line["true"], line["predicted"], line["count"]) for line in csv.DictReader(file)]
    assert drawn == [
        ("dim=16", "cat", "cat", "4"), ("dim=16", "cat", "dog", "2"),
        ("dim=16", "dog", "cat", "2"), ("dim=16", "dog", "dog", "2"),
    ]  # fmt: skip
    text = (folder / "figures" / "confusions-digits.svg").read_text()
    assert ">67<" in text
    assert ">50<" in text
    assert "Confusion matrix" in page.read_text()
    assert "would be right of" not in text


def test_what_the_commonest_class_alone_would_score_is_said(
    row: Callable[..., dict[str, Any]], comparison: Callable[..., Path], tmp_path: Path
) -> None:
    folder = comparison(tmp_path, [row("digits", 94.0)])
    kept(json.loads((folder / "comparison.json").read_text())["rows"], [[[80, 0], [5, 0]]], ["ship", "frog"])
    report_on(folder)
    said = re.findall(r">([^<>]+)<", (folder / "figures" / "confusions-digits.svg").read_text())
    assert "Always predicting ship would score 94.1 %" in " ".join(" ".join(said).split())


@pytest.mark.parametrize(("classes", "figure", "numbers"), [(20, True, True), (21, True, False), (61, False, False)])
def test_many_classes_have_no_numbers_and_very_many_no_figure(
    row: Callable[..., dict[str, Any]],
    comparison: Callable[..., Path],
    tmp_path: Path,
    classes: int,
    figure: bool,
    numbers: bool,
) -> None:
    folder = comparison(tmp_path, [row("digits", 60.0)])
    counts = (98 * torch.eye(classes, dtype=torch.long) + torch.eye(classes, dtype=torch.long).roll(1, 1)).tolist()
    kept(json.loads((folder / "comparison.json").read_text())["rows"], [counts], [f"class {k}" for k in range(classes)])
    page, _ = report_on(folder)
    drawn = folder / "figures" / "confusions-digits.svg"
    assert drawn.exists() == figure
    assert (figure and ">99<" in drawn.read_text()) == numbers
    assert ("Confusion matrix" in page.read_text()) == figure


def test_a_class_may_have_any_name(
    row: Callable[..., dict[str, Any]], comparison: Callable[..., Path], tmp_path: Path
) -> None:
    folder = comparison(tmp_path, [row("digits", 60.0)])
    names = ["$\\x$", "a$b$c", "猫"]
    kept(json.loads((folder / "comparison.json").read_text())["rows"], [torch.eye(3).long().tolist()], names)
    report_on(folder)
    drawn = (folder / "figures" / "confusions-digits.svg").read_text()
    assert all(f">{name}<" in drawn for name in names)
