"""The tables of runs and comparisons in a terminal."""

import math
from dataclasses import fields
from pathlib import Path

import pytest

from tests.report.conftest import JOINT, make_comparison, make_row
from unifier.console import print_comparison, print_results
from unifier.report.read_results import read_results
from unifier.report.tables import matching_sentence
from unifier.training.result import Result


def test_each_table_has_a_matching_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [make_row(task) for task in ("digits", "en-fr", "music")]
    rows += [make_row(task, **JOINT, budget={"flops": 1.3e12}) for task in ("digits", "en-fr", "music")]
    folder = make_comparison(tmp_path, rows)
    print_comparison(folder)
    sentence = matching_sentence(one for one in read_results(folder).rows if one["task"] == "digits")
    assert "different:" in sentence
    assert " ".join(capsys.readouterr().out.split()).count(f"E{sentence[1:]}.") == 3


def test_names_are_not_read_as_markup(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = ("photos[old]", "x[/y]", "a:cat:")
    print_comparison(make_comparison(tmp_path, [make_row(varied={"data": name}) for name in names]))
    output = capsys.readouterr().out
    assert [name for name in names if name not in output] == []


def test_tables_have_no_terminal_escapes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    print_comparison(make_comparison(tmp_path, [make_row(varied={"data": "\x1b[31m"}), make_row(seed=1)]))
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\\x1b[31m" in output


def test_run_table_keeps_digits_of_small_scores(capsys: pytest.CaptureFixture[str]) -> None:
    content = make_row()["result"]
    content["metrics"] = {"test/digits/negative_mse": -0.00123, "test/digits/loss": math.nan}
    print_results([Result(**{field.name: content.get(field.name) for field in fields(Result)})])
    assert "negative_mse −0.00123, loss nan" in capsys.readouterr().out


def test_run_table_of_a_finished_run_has_whole_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    content = make_row(budget={"tokens": 379_560.0})["result"]  # A result that is read from its file has floats.
    print_results([Result(**{field.name: content.get(field.name) for field in fields(Result)})])
    assert "379,560 " in capsys.readouterr().out
