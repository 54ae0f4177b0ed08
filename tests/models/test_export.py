"""Export of a model: the copy is whole, or nothing is written."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unifier import ClassificationHead, PatchTokenizer, create_trunk
from unifier.cli import main
from unifier.data.inputs import ImageReader
from unifier.models.export import export_model
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier_tokenizers import InputError

D = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a model, in which other programs have left files."""
    task = ModelTask(PatchTokenizer(D), ClassificationHead(["a", "b"], D), ImageReader(3), longest=9)
    write_model(
        tmp_path / "model", StoredModel("small", create_trunk("transformer", D, 1, 2, D), {"a": task}, 256, {}), "card"
    )
    (tmp_path / "model" / "notes.py").write_text("raise SystemExit")
    return tmp_path / "model"


def test_copy_has_only_the_files_of_the_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "copy"
    assert main(["export", str(folder), str(target)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(target)]
    assert {path.name for path in target.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert {path.name for path in target.parent.iterdir()} == {"copy"}
    assert (target / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert read_model(target).name == "small"
    (tmp_path / "empty").mkdir()
    assert export_model(folder, tmp_path / "empty") == tmp_path / "empty"


def lose_weights(folder: Path, target: Path) -> None:
    (folder / "model.safetensors").unlink()


def change_weights(folder: Path, target: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"other")


def fill_target(folder: Path, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "mine").write_text("mine")


def write_target(folder: Path, target: Path) -> None:
    target.parent.mkdir()
    target.write_text("mine")


def write_parent(folder: Path, target: Path) -> None:
    target.parent.write_text("mine")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lose_weights, r"model\.safetensors is missing"),
        (change_weights, r"model\.safetensors has changed"),
        (fill_target, "empty"),
        (write_target, "empty"),
        (write_parent, "copy"),
        (lambda folder, target: shutil.rmtree(folder), r"config\.json is missing"),
    ],
)
def test_bad_copy_is_refused_and_nothing_is_written(
    damage: Callable[[Path, Path], None], named: str, folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "new" / "copy"
    damage(folder, target)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=named):
        export_model(folder, target)
    assert sorted(tmp_path.rglob("*")) == before


def test_folder_has_all_tasks_and_a_missing_package_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="all tasks"):
        export_model(folder, tmp_path / "copy", task="a")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r'pip install "unifier-torch\[onnx\]"'):
        export_model(folder, tmp_path / "copy", "onnx")
    with pytest.raises(InputError, match="there is no task"):
        export_model(folder, tmp_path / "copy", "torch", task="b")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_copy_into_the_model_itself_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="itself"):
        export_model(folder, folder / "copy")
