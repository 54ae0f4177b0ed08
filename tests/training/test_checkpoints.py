"""Which weights a run keeps: the best of its validations and the latest, wherever its folder lies."""

import errno
import json
import math
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from unifier import Experiment, run
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training.callbacks import AtomicCheckpointIO
from unifier.training.checkpoint import read_checkpoint
from unifier.training.result import Interrupted
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

STEPS = 7


def fading(*, validations: int = 3) -> Experiment:
    """Pictures, whose score is the worse the more often it is asked for."""
    source = Digits(val=20, test=20)
    task = Task(source, PatchTokenizer(8, channels=1), ClassificationHead(source.labels, 8))
    training = Training(steps=STEPS, batch_tokens=128, num_validations=validations, num_workers=0)
    return Experiment(Transformer(8, 1, 2, 8), {"digits": task}, training, name="fading")


@pytest.fixture(autouse=True)
def stop_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The scorings in place of which Ctrl-C is heard, from 0."""
    wanted, asked = list[int](), count()

    def worse(*_: Any) -> dict[str, float]:
        if (number := next(asked)) in wanted:
            raise Interrupted(next(tmp_path.rglob("checkpoints")).parent)
        return {"accuracy": 90.0 - number, "macro_f1": 50.0}

    monkeypatch.setattr(ClassificationHead, "metrics", worse)
    return wanted


def steps(folder: Path) -> list[int]:
    """After which step the best and the last weights were."""
    kept = [folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")]
    return [torch.load(path, weights_only=True)["global_step"] for path in kept]


@pytest.mark.parametrize(("num_validations", "first"), [(8, 1), (4, 2), (3, 3), (1, STEPS)])
def test_the_best_weights_are_kept_however_often_they_are_scored_and_the_last_ones_are(
    validations: int, first: int, tmp_path: Path
) -> None:
    (result,) = run(fading, num_validations=validations, out=tmp_path, track="off")
    assert steps(result.folder) == [first, STEPS]
    assert result.metrics["test/digits/accuracy"] == 90 - math.ceil(STEPS / first) - 1


@pytest.mark.parametrize("at", [2, 3], ids=["with validations to come", "with none"])
def test_a_run_that_was_moved_still_knows_its_best_weights(at: int, tmp_path: Path, stop_at: list[int]) -> None:
    stop_at.append(at)
    with pytest.raises(Interrupted):
        run(fading, num_validations=3, out=tmp_path / "here", track="off")
    (tmp_path / "here").rename(tmp_path / "there")
    (folder,) = (tmp_path / "there" / "fading").iterdir()
    run(fading, resume=folder, track="off")
    assert steps(folder) == [3, STEPS]


def test_the_last_weights_are_the_best_where_no_score_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClassificationHead, "metrics", lambda *_: {"accuracy": math.nan})
    (result,) = run(fading, out=tmp_path, track="off")
    assert steps(result.folder) == [STEPS, STEPS]


def test_a_score_that_comes_later_is_better_than_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([math.nan, 50.0, math.nan, 50.0, 50.0])
    monkeypatch.setattr(ClassificationHead, "metrics", lambda *_: {"accuracy": next(scores)})
    (result,) = run(fading, out=tmp_path, track="off")
    assert steps(result.folder) == [6, STEPS]


def test_of_equal_scores_the_latest_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([40.0, 50.0, 50.0, 49.0, 50.0, 50.0])
    monkeypatch.setattr(ClassificationHead, "metrics", lambda *_: {"accuracy": next(scores)})
    (result,) = run(fading, num_validations=4, out=tmp_path, track="off")
    assert steps(result.folder) == [6, STEPS]


def test_a_run_does_not_go_on_with_other_data(
    tmp_path: Path, stop_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at.append(1)
    with pytest.raises(Interrupted):
        run(fading, out=tmp_path, track="off")
    (folder,) = (tmp_path / "fading").iterdir()
    monkeypatch.setattr(Digits, "sha256", "of others", raising=False)
    before = (folder / "settings.json").read_text()
    with pytest.raises(InputError, match=r"its data have changed since \(digits\), so it cannot resume: start a "):
        run(fading, resume=folder, track="off")
    monkeypatch.undo()
    monkeypatch.setattr(ClassificationHead, "metrics", lambda *_: {"accuracy": 50.0})
    assert (folder / "settings.json").read_text() == before
    assert run(fading, resume=folder, track="off")[0].status == "finished"


def test_a_run_does_not_go_on_beyond_its_end(tmp_path: Path, stop_at: list[int]) -> None:
    stop_at.append(1)
    with pytest.raises(Interrupted):
        run(fading, out=tmp_path, track="off")
    (folder,) = (tmp_path / "fading").iterdir()
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=False)
    torch.save(checkpoint | {"global_step": STEPS + 1}, folder / "checkpoints" / "last.ckpt")
    with pytest.raises(InputError, match=f"it is at step {STEPS + 1}, and fading now ends at {STEPS}: start a new run"):
        run(fading, resume=folder, track="off")


def unbuilt(*, validations: int = 3) -> Experiment:
    raise AssertionError("it was built, which may read data")


def test_a_run_that_cannot_go_on_is_refused_before_its_experiment_is_built(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_text("torn")
    (tmp_path / "settings.json").write_text(json.dumps({"name": "fading", "seed": 0, "settings": {}}))
    with pytest.raises(InputError, match=r"last\.ckpt: broken .*: it cannot resume; start a new run"):
        run(unbuilt, resume=tmp_path, track="off")


def test_a_file_that_is_no_checkpoint_of_a_run_is_said_to_lack_what_one_has(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "best.ckpt")
    with pytest.raises(InputError, match=r"best\.ckpt: broken \(it lacks global_step, callbacks\)"):
        read_checkpoint(tmp_path / "best.ckpt")


def test_a_save_that_fails_half_way_leaves_the_checkpoint_before_it_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, saved = tmp_path / "checkpoints" / "last.ckpt", AtomicCheckpointIO()
    saved.save_checkpoint({"global_step": 1}, path)
    written = Path.write_bytes

    def half(to: Path, content: bytes) -> None:
        written(to, content[: len(content) // 2])
        raise stop

    monkeypatch.setattr(Path, "write_bytes", half)
    for stop in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(stop)):
            saved.save_checkpoint({"global_step": 2}, path)
        assert [torch.load(one, weights_only=True) for one in path.parent.iterdir()] == [{"global_step": 1}]


def test_checkpoints_are_written_in_the_run_s_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(*_: Any, **__: Any) -> None:
        raise AssertionError("a file that is to be moved, perhaps from another file system")

    monkeypatch.setattr(tempfile, "mkstemp", elsewhere)
    (result,) = run(fading, out=tmp_path, track="off")
    kept = [path.name for path in (result.folder / "checkpoints").iterdir()]
    assert sorted(kept) == ["best.ckpt", "last.ckpt"]
