"""Experiments are found in files; what is broken is named."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unifier.config import list_experiments, load_experiment
from unifier_tokenizers import InputError

ROOT = Path(__file__).parents[1]

ONE = '''
from unifier import Experiment

def {name}(*, dim: int = 4) -> Experiment:
    """The one."""
    raise NotImplementedError

def helper() -> int:
    return 1
'''


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """What a test loads is loaded for it alone."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in set(sys.modules) - before:
        if not hasattr(sys.modules[name], "__path__") and "." not in name:
            del sys.modules[name]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_an_experiment_is_a_function_that_says_it_returns_one(tmp_path: Path) -> None:
    path = written(tmp_path, "study_alone.py", ONE.format(name="alone"))
    assert list(list_experiments(path)) == ["alone"]
    assert load_experiment(str(path)).__name__ == "alone"
    assert load_experiment(f"{path}:alone").__name__ == "alone"
    with pytest.raises(InputError, match=r"no experiment 'helper'; take .*study_alone\.py:alone"):
        load_experiment(f"{path}:helper")


@pytest.mark.parametrize("name", ["random", "torch"])
def test_a_file_takes_no_name_that_python_needs(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, f"{name}.py", ONE.format(name="alone"))
    with pytest.raises(InputError, match=f"{name}.py: a Python module or package has that name already"):
        load_experiment(str(path))


def test_a_path_may_have_colons(tmp_path: Path) -> None:
    (tmp_path / "12:30").mkdir()
    path = written(tmp_path / "12:30", "study_timed.py", ONE.format(name="timed"))
    assert load_experiment(str(path)).__name__ == "timed"
    assert load_experiment(f"{path}:timed").__name__ == "timed"


def test_what_is_imported_for_type_checkers_alone_is_no_trouble_but_to_experiments(tmp_path: Path) -> None:
    helper = "def helper(x: 'Nowhere') -> 'Nowhere': ...\n"
    path = written(tmp_path, "study_typed.py", ONE.format(name="typed") + helper)
    assert list(list_experiments(path)) == ["typed"]
    later = "from __future__ import annotations\ndef unread(*, x: Nowhere = None) -> Experiment: ...\n"
    quoted = "from unifier import Experiment\ndef unread(*, x: 'Nowhere' = None) -> Experiment: ...\n"
    for name, unread in (("study_unread.py", later), ("study_quoted.py", quoted)):
        path = written(tmp_path, name, unread)
        with pytest.raises(InputError, match="the annotations of unread cannot be read: name 'Nowhere' is not defined"):
            list_experiments(path)


def test_of_several_the_one_called_as_its_file_or_the_one_that_is_named(tmp_path: Path) -> None:
    text = ONE.format(name="first") + ONE.format(name="study_several")
    path = written(tmp_path, "study_several.py", text)
    assert sorted(list_experiments(path)) == ["first", "study_several"]
    assert load_experiment(str(path)).__name__ == "study_several"
    assert load_experiment(f"{path}:first").__name__ == "first"
    path = written(tmp_path, "study_others.py", text)
    with pytest.raises(InputError, match=r"no experiment 'study_others'; take .*:first or .*:study_several"):
        load_experiment(str(path))


def test_studies_import_each_other_as_neighbors_and_keep_their_own_experiments(tmp_path: Path) -> None:
    written(tmp_path, "study_below.py", ONE.format(name="below"))
    above = "from study_below import below\nfrom unifier import Comparison\n"
    above += "def above() -> Comparison:\n    return Comparison('above', [below])\n"
    path = written(tmp_path, "study_above.py", above)
    assert list(list_experiments(path)) == ["above"]
    assert list_experiments(path) == list_experiments(path)


def test_two_files_of_one_name_are_two_studies(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in ("a", "b"):
        path = written(tmp_path / folder, "study_twin.py", ONE.format(name=f"in_{folder}"))
        assert list(list_experiments(path)) == [f"in_{folder}"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("notes.txt", "hello", r"notes\.txt: an experiment is a Python file"),
        ("study_empty.py", "", r"study_empty\.py: no experiment in it"),
        ("study_syntax.py", "x = 1\ndef f(:\n", r"study_syntax\.py, line 2: not Python"),
    ],
)
def test_files_that_hold_none(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = written(tmp_path, name, text)
    for _ in range(2):  # what could not be loaded is not remembered as if it were
        with pytest.raises(InputError, match=said) as error:
            list_experiments(path)
        assert "\n" not in str(error.value)


def test_a_syntax_error_in_a_neighbor_is_named_by_its_own_file(tmp_path: Path) -> None:
    written(tmp_path, "study_broken.py", "\n\ndef f(:\n")
    path = written(tmp_path, "study_whole.py", "import study_broken\n")
    with pytest.raises(InputError, match=r"study_broken\.py, line 3: not Python"):
        list_experiments(path)


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.py: no such file; an experiment is a Python file"):
        list_experiments(tmp_path / "none.py")
    with pytest.raises(InputError, match="and this is none"):
        list_experiments(tmp_path)
    path = tmp_path / "study_bytes.py"
    path.write_bytes(b"x = '\xff\xfe'\n")
    with pytest.raises(InputError, match=r"study_bytes\.py"):
        list_experiments(path)


def test_a_broken_study_keeps_its_own_error(tmp_path: Path) -> None:
    path = written(tmp_path, "study_wrong.py", "1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            list_experiments(path)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.py")), ids=lambda path: path.stem)
def test_our_own_studies_are_found_under_the_name_of_their_file(path: Path) -> None:
    function = load_experiment(str(path))
    assert function.__name__ == path.stem
    assert function.__doc__
