"""The README holds what it promises: its snippets run, its tree is the repository's."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import unifier
from unifier.comparison import Comparison
from unifier.config import list_experiments, load_experiment
from unifier.experiment import Experiment

pytestmark = pytest.mark.usefixtures("undrawn")

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the snippets define, one after the other."""
    module = sys.modules["readme"] = ModuleType("readme")  # a real one, so that what it defines can be pickled
    for snippet in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(compile(snippet, "README.md", "exec"), vars(module))
    return vars(module)


def test_the_experiment_runs_and_is_as_short_as_it_says(names: dict[str, Any], tmp_path: Path) -> None:
    (result,) = unifier.run(names["digits"], dim=16, tokens=4000, out=tmp_path, track="off")
    assert result.status == "finished"
    assert 0 <= result.metrics["test/digits/accuracy"] <= 100
    first = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 25


def test_a_run_of_it_is_used_as_it_says(names: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "pictures_of_digits.py"
    file.write_text(re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0])
    (result,) = unifier.run(load_experiment(str(file)), dim=16, tokens=4000, out=tmp_path, track="off")
    test = names["Digits"]().split("test")
    said = names["labels"](result.folder, [example.input for example in test])
    right = [answer.split()[0] == example.target for answer, example in zip(said, test, strict=True)]
    assert 100 * sum(right) / len(right) == pytest.approx(result.metrics["test/digits/accuracy"], abs=0.5)


def test_the_comparison_compares(names: dict[str, Any], tmp_path: Path) -> None:
    results = unifier.run(names["sharing"], tokens=2000, seeds=(0,), out=tmp_path, track="off")
    assert len(results) == 2 + 1 + 2 * (1 + 2)
    assert all(result.status == "finished" for result in results)


def test_the_added_modality_task_and_data_train_together_from_one_file(tmp_path: Path) -> None:
    own = README.partition("## Your own modality")[2].partition("## The tree")[0]
    file = tmp_path / "own_series.py"
    file.write_text("\n\n".join(re.findall(r"```python\n(.*?)```", own, flags=re.DOTALL)))
    (result,) = unifier.run(load_experiment(f"{file}:series"), steps=60, out=tmp_path, track="off")
    assert result.metrics["test/ramps/r2"] > 50  # half the error of always saying the mean


def listed(tree: str) -> list[str]:
    """The paths that a tree names: a name of a file or a folder begins a line, two spaces deeper for each folder."""
    folders, paths = dict[int, str](), list[str]()
    for indent, name in re.findall(r"^( *)([\w./-]+/|[\w./-]+\.\w+|Makefile|\.ci/run)(?=\s)", tree, flags=re.MULTILINE):
        depth = len(indent) // 2
        path = (folders[depth - 1] if depth else "") + name
        if name.endswith("/"):
            folders[depth] = path
        else:
            paths.append(path)
    return paths


def test_the_tree_has_a_line_for_every_file() -> None:
    names = listed(README.partition("## The tree")[2].split("```")[1])
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    code = {
        name
        for name in tracked
        if name.endswith((".py", ".html")) and not name.startswith("tests/") and not name.endswith("__init__.py")
    }
    there = {name for name in code if (ROOT / name).exists()}
    assert {name for name in names if name.endswith((".py", ".html"))} == there
    assert [name for name in names if not (ROOT / name).is_file()] == []
    assert len(names) == len(set(names))


def test_a_name_stands_for_the_file_in_its_own_folder_alone() -> None:
    tree = "a/       one\n  b/\n    c.py   two\n  d/e.py   three\nf/\n  c.py     four, c.py\nMakefile   five\n"
    assert listed(tree) == ["a/b/c.py", "a/d/e.py", "f/c.py", "Makefile"]


def test_every_experiment_of_the_repository_is_one() -> None:
    for file in sorted((ROOT / "experiments").glob("*.py")):
        for function in list_experiments(file).values():
            assert function.__doc__, f"{file.name}: {function.__name__} has no docstring"
            assert function.__annotations__["return"] in (Experiment, Comparison)
