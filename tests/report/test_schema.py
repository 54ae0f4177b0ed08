"""Damaged result files, and files from unknown sources: each fault is named in one line, and the rest is shown."""

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import JOINT, make_comparison, make_representation, make_row, make_seeds
from unifier.files import write_json
from unifier.report.page import report_on
from unifier.report.read_results import read_results
from unifier.report.schema import AttentionEntry, parse_entry
from unifier.training.artifacts import hash_run_files
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")

SEED, NUM_MUTATIONS = 0, 5

URL = "https://example.org/a.png"

ODD_VALUES: list[Any] = [None, True, -1, 0, 10**30, 1e308, float("nan"), float("inf"), [], [1, "a"], {}, {"a": 1}, [[]]]
ODD_TEXTS = ["", "a\x1b[31m\x00\ud800", "x" * 5000, "../../etc", URL, "<script>alert(1)</script>"]

ODD_CELLS = (["x"], ["nan"], ["-1e400"], ["9" * 400], [], ["1", "2"], ["a\x1b"])

FILES = ("comparison.json", "result.json", "settings.json", "metrics.csv", "samples.json", "attention.json")
MORE_FILES = ("lengths.json", "predictions.csv", "confusions.json", "interference.csv")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small comparison with every kind of file."""
    rows = [*make_seeds("digits", 80.0, 81.0), *make_seeds("en-fr", 70.0, 72.0)]
    rows += [make_row(task, 75.0, **JOINT) for task in ("digits", "en-fr")]
    folder = make_comparison(tmp_path_factory.mktemp("whole"), rows, representation=make_representation()[:9])
    for run in (path.parent for path in folder.rglob("result.json")):
        (task,) = json.loads((run / "samples.json").read_text())
        counts = {"labels": ["a", "b"], "counts": [[3, 1], [0, 2]]}
        buckets = [{"words": 2.5, "from": 1, "to": 4, "examples": 3, "bleu": 20.0}] * 2
        write_json(run / "confusions.json", {task: counts})
        write_json(run / "lengths.json", {task: buckets})
        with (run / "predictions.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["task", "index", "example_id", "target", "prediction", "score"])
            writer.writerows([task, k, k, "a b", "a", 100.0 * (k % 2)] for k in range(6))
    return folder


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each entry of nested JSON content."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, entry in entries for place in [(*path, key), *places(entry, (*path, key))]]


def mutate(path: Path, generator: random.Random) -> None:
    """Change a file at a random place: a value, a key, a cell, a byte, or the end of the file."""
    data = path.read_bytes()
    kind = generator.choice(("value", "value", "value", "key", "byte", "cut"))
    if path.suffix == ".json" and kind in ("value", "key"):
        content = json.loads(data)
        *parents, key = generator.choice(places(content))
        inner = content
        for parent in parents:
            inner = inner[parent]
        if kind == "key":
            del inner[key]
        else:
            inner[key] = generator.choice([*ODD_VALUES, *ODD_TEXTS])
        path.write_text(json.dumps(content))
    elif path.suffix == ".csv" and kind in ("value", "key"):
        rows = list(csv.reader(data.decode().splitlines()))
        row = generator.choice(rows[: 1 if kind == "key" else None])
        column = generator.randrange(len(row))
        row[column : column + 1] = generator.choice(ODD_CELLS)
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    elif kind == "cut":
        path.write_bytes(data[: generator.randrange(len(data))])
    else:
        index = generator.randrange(len(data))
        path.write_bytes(data[:index] + bytes([generator.randrange(256)]) + data[index + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, *MORE_FILES])
def test_mutated_files_are_named_or_read(name: str, whole: Path, tmp_path: Path) -> None:
    generator = random.Random(f"{SEED} {name}")
    folder = shutil.copytree(whole, tmp_path / "copy")
    if name in ("result.json", "settings.json"):
        (folder / "comparison.json").unlink()
    whole_files = {path: path.read_bytes() for path in sorted(folder.rglob(name))[:2]}
    for _ in range(NUM_MUTATIONS):
        for path in whole_files:
            mutate(path, generator)
        try:
            text = report_on(folder)[0].read_text()
            assert "<script>" not in text
            assert f'src="{URL}' not in text
        except InputError:
            pass
        except Exception as error:
            raise AssertionError(f"{name}: {[path.read_bytes() for path in whole_files]}") from error
        for path, content in whole_files.items():
            path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"", b'{"a": ', b"\xff"])
def test_missing_and_torn_files_are_named(content: bytes | None, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "copy")
    run = min((folder / "translation").iterdir())
    write_json(run / "hashes.json", hash_run_files(run))
    names = ("metrics.csv", "samples.json", "attention.json", "lengths.json", "confusions.json")
    for name in names:
        (run / name).unlink() if content is None else (run / name).write_bytes(content)
    page, problems = report_on(folder)
    for name in names:
        assert [line for line in problems if line.startswith(f"{name} of {run.name}")], name
        assert f"{name} of {run.name}" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.csv", "attention-digits-0.svg"])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_changed_file_is_named(name: str, is_deleted: bool, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "copy")
    path = min((folder / "pictures").rglob(name))
    run = min(parent for parent in path.parents if (parent / "result.json").exists())
    write_json(run / "hashes.json", hash_run_files(run))
    path.unlink() if is_deleted else path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    (problem,) = report_on(folder)[1]
    assert name in problem
    assert is_deleted or "SHA-256" in problem


@pytest.mark.slow
def test_missing_settings_and_comparison_are_named(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "copy")
    run = min(folder.rglob("result.json")).parent
    (run / "settings.json").unlink()
    assert [line for line in report_on(run)[1] if str(run / "settings.json") in line]
    (folder / "comparison.json").unlink()
    run.parent.rename(folder / "trials")
    assert [line for line in report_on(folder)[1] if str(folder / "comparison.json") in line]


@pytest.mark.slow
def test_files_outside_the_folder_are_not_read(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "copy")
    content = json.loads((folder / "comparison.json").read_text())
    outside = shutil.copytree(min(whole.rglob("result.json")).parent, tmp_path / "secret" / "run")
    (folder / "link").symlink_to(outside)
    for row, place in zip(
        content["rows"], (str(outside), "../secret/run", "link", "a\0b", "x" * 5000, ""), strict=True
    ):
        row["folder"] = place
    write_json(folder / "comparison.json", content)
    assert {row["folder"] for row in read_results(folder).rows} == {None}
    shutil.copytree(whole, tmp_path / "other")
    samples = min((tmp_path / "other" / "pictures").rglob("samples.json"))
    samples.unlink()
    samples.symlink_to(outside / "samples.json")
    _, problems = report_on(tmp_path / "other")
    assert [line for line in problems if line.startswith("samples.json") and "link" in line]


@pytest.mark.slow
def test_remote_pictures_are_refused(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "copy")
    texts, picture = {"input": "a", "target": "b", "prediction": "c"}, "data:image/png;base64,AAAA"
    urls = (URL, "data:text/html;base64,AAAA", "file:///a.png", "//example.org/a.png", picture)
    for path in folder.glob("pictures/*/samples.json"):
        write_json(path, {"digits": [{**texts, "image": url} for url in urls]})
    page, problems = report_on(folder)
    sources = [part.partition('"')[0] for part in page.read_text().split('src="')[1:]]
    assert [source for source in sources if not source.startswith("data:image/svg")] == [picture]
    assert [line for line in problems if line.startswith("samples.json")]


@pytest.mark.parametrize("heads", [[], [[[1.0, 0.0]]], [[[1.0], [1.0]]]])
def test_heads_of_another_shape_are_left_out(heads: list[Any]) -> None:
    layer = {"name": "trunk 1", "queries": ["a", "b"], "keys": ["a", "b"], "heads": [[[1.0, 0.0], [0.0, 1.0]]]}
    entry = {"unit": "words", "layers": [], "heads": [layer, {**layer, "heads": heads}]}
    content, problems = parse_entry(AttentionEntry, entry, "text")
    assert len(problems) == 1
    assert not content.get("heads")
    assert parse_entry(AttentionEntry, {**entry, "heads": [layer]}, "text") == ({**entry, "heads": [layer]}, [])
