"""Copies of the experiment's files, and the warning for a changed file."""

import warnings
from pathlib import Path

import pytest

from unifier.files import write_sealed_json
from unifier.training.experiment_copy import copy_experiment, read_experiment_files, warn_of_changed_experiment
from unifier.training.fit import read_earlier_settings
from unifier_tokenizers import InputError


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Return the files of two experiments."""
    paths = [tmp_path / "one.py", tmp_path / "two.py"]
    for path in paths:
        path.write_text(f"# {path.name}\n")
    (tmp_path / "run").mkdir()
    return paths


def test_run_has_a_copy_of_each_file_as_it_was_at_the_start(files: list[Path], tmp_path: Path) -> None:
    one, two = files
    origins = [f"{one}:a", f"{one}:b", f"{two}:c", f"{tmp_path / 'notebook'}:d"]
    read_experiment_files(origins)
    two.write_text("edited while the data were encoded")
    hashes = copy_experiment(origins, tmp_path / "run")
    copies = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    assert copies == {"experiment.py": "# one.py\n", "experiment-2.py": "# two.py\n"}
    assert hashes.keys() == copies.keys()
    assert copy_experiment("", tmp_path / "run") == {}


def test_changed_file_is_named(files: list[Path], tmp_path: Path) -> None:
    folder, origins = tmp_path / "run", [f"{file}:a" for file in files]
    content = {"name": "x", "study": origins, "experiment": copy_experiment(origins, folder)}
    write_sealed_json(folder / "settings.json", content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_earlier_settings(folder)
        files[0].unlink()  # Another error names a missing file.
        warn_of_changed_experiment(folder, {"study": "", "name": "an earlier version of unifier"})
        warn_of_changed_experiment(folder, content)
    files[1].write_text("other")
    with pytest.warns(UserWarning, match=r"two\.py.*experiment-2\.py"):
        read_earlier_settings(folder)
    for key, broken in (("experiment", 5), ("study", 0.5), ("study", [5])):
        with pytest.raises(InputError, match=key):
            warn_of_changed_experiment(folder, content | {key: broken})
