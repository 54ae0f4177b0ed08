"""Scores by the length of the input: what a run leaves of them, and what the page draws."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unifier.data.source import Example
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.experiment import Task
from unifier.heads.classification import ClassificationHead
from unifier.heads.rnn_decoders import RecurrentHead
from unifier.heads.text_metrics import text_scores
from unifier.report.page import report_on
from unifier.training.artifacts import LENGTH_BUCKETS, scores_by_length
from unifier_tokenizers import InputError, PatchTokenizer, SubwordTokenizer, Vocabulary
from unifier_tokenizers.text import WORD_START

D = 8
PAIRS = GrammarPairs(train=40, val=5, test=120)


def tasks() -> dict[str, Task]:
    vocabulary = Vocabulary.fit((text for pair in PAIRS.split("train") for text in pair), size=300)
    return {
        "en-fr": Task(PAIRS, SubwordTokenizer(vocabulary, D), RecurrentHead(vocabulary, D, depth=1, language="fr")),
        "digits": Task(Digits(), PatchTokenizer(D, patch=2, channels=1), ClassificationHead(Digits.labels, D)),
    }


def test_a_test_example_that_was_left_out_is_not_read() -> None:
    class Torn(list[Example]):
        def __getitem__(self, index: Any) -> Any:
            if index == 0:
                raise InputError("torn")
            return super().__getitem__(index)

    pairs = PAIRS.split("test")
    parts = tasks()
    source: Any = SimpleNamespace(split=lambda name: Torn(pairs))
    torn = {"en-fr": replace(parts["en-fr"], source=source)}
    (groups,) = scores_by_length(torn, {"en-fr": dict.fromkeys(range(1, len(pairs)), "")}).values()
    assert sum(one["examples"] for one in groups) == len(pairs) - 1


def test_each_text_is_in_the_group_of_its_length_and_scored_there() -> None:
    pairs = list(PAIRS.split("test"))
    lengths = [len(WORD_START.findall(pair.input)) for pair in pairs]
    said = {k: pair.target if lengths[k] < 8 else "rien" for k, pair in enumerate(pairs)}
    (groups,) = scores_by_length(tasks(), {"en-fr": said, "digits": {}}).values()
    assert 3 <= len(groups) <= LENGTH_BUCKETS
    assert sum(one["examples"] for one in groups) == len(pairs)
    for one, other in pairwise(groups):
        assert one["from"] <= one["words"] <= one["to"] < other["from"]
    assert max(one["examples"] for one in groups) < len(pairs) / 2
    for one in groups:
        rows = [k for k, length in enumerate(lengths) if one["from"] <= length <= one["to"]]
        assert one["examples"] == len(rows)
        wanted = text_scores([said[k] for k in rows], [pairs[k].target for k in rows], "fr")["bleu"].score
        assert one["bleu"] == pytest.approx(wanted)
        assert (one["bleu"] > 99) == (one["to"] < 8)


def test_texts_of_one_word_can_be_right() -> None:
    source: Any = SimpleNamespace(split=lambda name: [Example(f"w{k}", f"m{k}") for k in range(20)])
    short = {"en-fr": replace(tasks()["en-fr"], source=source)}
    for said, bleu in ((lambda k: f"m{k}", 100), (lambda k: f"m{k}" if k % 2 else "rien", 50), (lambda k: "rien", 0)):
        (group,) = scores_by_length(short, {"en-fr": {k: said(k) for k in range(20)}})["en-fr"]
        assert group["bleu"] == pytest.approx(bleu, abs=3)


def test_texts_of_one_length_are_one_group() -> None:
    pairs = list(PAIRS.split("test"))
    length = len(WORD_START.findall(pairs[0].input))
    same = {k: pair.target for k, pair in enumerate(pairs) if len(WORD_START.findall(pair.input)) == length}
    assert [(one["from"], one["to"]) for one in scores_by_length(tasks(), {"en-fr": same})["en-fr"]] == [
        (length, length)
    ]


def test_the_page_draws_a_line_for_each_condition_with_its_mean_over_seeds(
    row: Callable[..., dict[str, Any]], comparison: Callable[..., Path], tmp_path: Path
) -> None:
    rungs = ("gru", "transformer")
    rows = [row("en-fr", 60.0, seed, varied={"rung": rung}) for rung in rungs for seed in (0, 1)]
    folder = comparison(tmp_path, rows)
    kept = json.loads((folder / "comparison.json").read_text())["rows"]
    for k, one in enumerate(kept):
        groups = [
            {"words": 4.5, "from": 3, "to": 5, "examples": 20, "bleu": 80.0 + k},
            {"words": 9.0, "from": 6, "to": 12, "examples": 30, "bleu": 20.0 + k},
        ]
        (Path(one["folder"]) / "lengths.json").write_text(json.dumps({"en-fr": groups}))
    page, problems = report_on(folder)
    assert not problems
    with (folder / "figures" / "lengths-en-fr.csv").open(newline="") as file:
        drawn = [(line["condition"], float(line["words"]), float(line["bleu"])) for line in csv.DictReader(file)]
    assert drawn == [
        ("rung=gru", 4.5, 80.5), ("rung=gru", 9.0, 20.5),
        ("rung=transformer", 4.5, 82.5), ("rung=transformer", 9.0, 22.5),
    ]  # fmt: skip
    assert "BLEU by input length" in page.read_text()


def test_the_page_shows_an_alignment_of_each_condition_that_has_one(
    row: Callable[..., dict[str, Any]], comparison: Callable[..., Path], tmp_path: Path
) -> None:
    rungs = ("gru", "additive", "transformer")
    folder = comparison(tmp_path, [row("en-fr", 60.0 + k, varied={"rung": one}) for k, one in enumerate(rungs)])
    for one in json.loads((folder / "comparison.json").read_text())["rows"]:
        rates = {"alignment_error_rate": 0.25, "alignment_error_rate_chance": 0.75}
        known = rates if one["varied"]["rung"] != "gru" else {}
        content = {"en-fr": {"unit": "words", "layers": [], **known}}
        (Path(one["folder"]) / "attention.json").write_text(json.dumps(content))
    text = report_on(folder)[0].read_text()
    for rung in rungs:
        assert (f'<figcaption class="soft">en-fr: rung={rung}, seed 0' in text) == (rung != "gru")
    assert text.count("25 %") == 2
