"""Loading a run without its data, and the answers of the loaded model."""

import json
import math
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import torch

from unifier import TranslationHead, Translator, launch, load
from unifier.config import load_experiment
from unifier.data.source import use_data_folder
from unifier.files import read_json
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")


def test_loaded_model_has_the_weights_and_answers_of_the_run(run: Path, translator: Translator) -> None:
    model = load(run)
    assert not model.network.training
    assert model.experiment.name == "translation"
    head = model.tasks["en-de"].head
    assert isinstance(head, TranslationHead)
    assert head.vocabulary.codec.to_str() == translator.head.vocabulary.codec.to_str()
    weights = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.network.state_dict().items())
    samples = json.loads((run / "samples.json").read_text())["en-de"]
    raws = [sample["input"] for sample in samples]
    assert model.predict(raws) == model.predict(raws, "en-de") == [sample["prediction"] for sample in samples]
    with pytest.raises(InputError, match="'moods'"):
        model.predict(raws, "moods")


def test_model_needs_nothing_but_its_folder(run: Path, tmp_path: Path) -> None:
    raws = ["one two", "six"]
    copy = copytree(run, tmp_path / "run")
    stored = read_json(copy / "settings.json")
    (copy / "settings.json").write_text(json.dumps({**stored, "study": "/gone.py:translation"}))
    (copy / "checkpoints" / "best.ckpt").unlink()
    model = load(copytree(run / "model", tmp_path / "alone"))
    assert model.predict(raws) == load(copy).predict(raws) == load(run).predict(raws)
    with pytest.raises(InputError, match="alone"):
        _ = model.experiment
    with pytest.raises(InputError, match=r"/gone\.py") as lost:
        _ = load(copy).experiment
    (copy / "experiment.py").unlink()  # A run of a notebook has no copy of its cell.
    with pytest.raises(InputError, match="notebook"):
        _ = load(copy).experiment
    assert "notebook" not in str(lost.value)


def test_changed_experiment_file_is_named(run: Path, tmp_path: Path) -> None:
    copy = copytree(run, tmp_path / "copy")
    stored = read_json(copy / "settings.json")
    assert stored["experiment"].keys() == {"experiment.py"}
    (copy / "settings.json").write_text(json.dumps({**stored, "experiment": {"experiment.py": "0"}}))
    with pytest.warns(UserWarning, match=r"translation\.py"):
        _ = load(copy).experiment


def test_folder_without_a_model_is_named(run: Path, tmp_path: Path) -> None:
    copy = copytree(run, tmp_path / "copy")
    rmtree(copy / "model")
    for folder in (copy, tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match=folder.name):
            load(folder)


@pytest.mark.slow
def test_relative_paths_hold_in_another_folder(
    experiment_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    for name in ("train", "val", "test"):
        Path(f"{name}.tsv").write_text("".join(f"one {k}\teins {k}\n" for k in range(30)))
    settings: dict[str, Any] = {
        "data": "train.tsv",
        "val": "val.tsv",
        "test": "test.tsv",
        "vocabulary": 270,
        "dim": 16,
        "depth": 1,
    }
    settings |= {"decoder_depth": 1, "heads": 2, "ffn_dim": 16, "target": "de", "steps": 4}
    translation = load_experiment(str(experiment_file))
    with use_data_folder("."):
        (result,) = launch.run(translation, out="runs", track="off", **settings)
    folder, metrics = result.folder.absolute(), result.metrics
    (folder / "result.json").unlink()  # As after a kill.
    monkeypatch.chdir(tmp_path / "second")
    assert load(folder).predict(["one 1"])
    assert launch.run(translation, resume=folder, track="off")[0].metrics == metrics
    assert Path.cwd() == tmp_path / "second"
    stored = read_json(folder / "settings.json")
    assert stored["started_in"] == stored["data_folder"] == str(tmp_path / "first")


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("settings.json", "study", [5, "", {"a": 1}, [5], ["gone.py:a"]]),
        ("settings.json", "name", ["another"]),
        ("settings.json", "settings", [{"trunk": "\0"}, {"dim": -1}]),
        ("settings.json", "fitted", [{"vocabularies/en-de.json": "0"}, {"gone.json": "0"}]),
        ("numbers.json", "value", ["text", [1], None, True, 1e10, math.inf, math.nan]),
    ],
)
def test_broken_file_of_a_runs_experiment_is_named(
    name: str, key: str, values: list[Any], run: Path, tmp_path: Path
) -> None:
    copy = copytree(run, tmp_path / "copy")
    path = copy / name
    stored = read_json(path) if path.exists() else {}
    for value in values:
        path.write_text(json.dumps({**stored, key: value}))
        with pytest.raises(InputError, match=f"copy|{key}"):
            _ = load(copy).experiment


def test_flipped_bit_of_a_vocabulary_is_found(run: Path, tmp_path: Path) -> None:
    copy = copytree(run, tmp_path / "copy")
    (path,) = (copy / "vocabularies").iterdir()
    path.write_text(path.read_text().replace("e", "d", 1))
    with pytest.raises(InputError, match=path.name):
        _ = load(copy).experiment
