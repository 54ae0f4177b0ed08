"""A comparison that ended early goes on: what has finished is not run again, and nothing is lost on the way."""

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from unifier import Comparison, Experiment, run
from unifier.data.dataset import Subset
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.training import fit
from unifier.training.result import Interrupted
from unifier.trials import runner as compare
from unifier.trials.plan import Trial
from unifier.trials.trials import TrialRunner
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")


def study(name: str, patch: int) -> Experiment:
    task = Task(
        Subset(Digits(), 0.02), PatchTokenizer(8, patch=patch, channels=1), ClassificationHead(Digits.labels, 8)
    )
    training = Training(steps=4, batch_tokens=128, num_validations=1, num_workers=0)
    return Experiment(Transformer(8, 1, 2, 8), {name: task}, training, name=name)


def fine() -> Experiment:
    return study("fine", 2)


def coarse() -> Experiment:
    return study("coarse", 4)


def twice() -> Experiment:
    one = study("twice", 4)
    return replace(one, training=replace(one.training, num_validations=2))


def halved(*, seeds: tuple[int, ...] = (0,)) -> Comparison:
    return Comparison("halved", [twice, fine], seeds=seeds, budget_unit="steps")


def content(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "comparison.json").read_text())


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Trial] = []
    attempt = TrialRunner.run

    def stop(self: TrialRunner, trial: Trial, *told: Any) -> None:
        if len(done) == count:
            raise KeyboardInterrupt
        done.append(trial)
        attempt(self, trial, *told)

    monkeypatch.setattr(TrialRunner, "attempt", stop)


def pair(*, seeds: tuple[int, ...] = (0,)) -> Comparison:
    return Comparison("pair", [fine, coarse], seeds=seeds, modes=("solo", "joint"), budget_unit="steps")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("once")
    run(pair, out=out, track="off")
    return out


@pytest.fixture
def finished(once: Path, tmp_path: Path) -> Path:
    """The folder of a finished comparison; `tmp_path` holds it and its runs."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    (folder,) = (tmp_path / "pair").iterdir()
    named = folder / "comparison.json"
    named.write_text(named.read_text().replace(str(once), str(tmp_path)))
    return folder


def test_what_has_finished_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(2, patch)
        with pytest.raises(Interrupted) as stop:
            run(pair, out=tmp_path, track="off", seeds=(0, 1))
    (folder,) = (tmp_path / "pair").iterdir()
    assert str(stop.value) == str(folder)
    before = content(folder)
    assert before["status"] == "interrupted"
    assert len(before["rows"]) == 2
    results = run(pair, out=tmp_path, track="off", resume=folder)
    after = content(folder)
    assert after["status"] == "finished"
    assert after["rows"][:2] == before["rows"]
    assert len(results) == 6, "two experiments alone and one together, for both seeds that it began with"
    assert len(list((tmp_path / "fine").iterdir())) == 2


def test_it_does_not_go_on_with_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(2, patch)
        with pytest.raises(Interrupted):
            run(pair, out=tmp_path, track="off")
    (folder,) = (tmp_path / "pair").iterdir()
    before = content(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Digits, "sha256", "other")
        with pytest.raises(InputError, match=r"fine, fine: .* different data, .*: this comparison cannot go on"):
            run(pair, out=tmp_path, track="off", resume=folder)
    assert content(folder)["rows"][: len(before["rows"])] == before["rows"]
    run(pair, out=tmp_path, track="off", resume=folder)
    assert content(folder)["status"] == "finished"


@pytest.mark.parametrize("killed", [True, False])
def test_a_run_that_a_full_disk_or_a_kill_cut_off_goes_on_from_its_checkpoint(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, *_ = run(halved, out=tmp_path / "whole", track="off")
    save = pl.Trainer.save_checkpoint

    def full(trainer: pl.Trainer, path: str, *_: Any) -> None:
        if trainer.global_step > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(trainer, path)

    with monkeypatch.context() as patch:
        patch.setattr(pl.Trainer, "save_checkpoint", full)
        with pytest.raises(OSError, match="No space left"):
            run(halved, out=tmp_path, track="off")
    (folder,) = (tmp_path / "halved").iterdir()
    ((began,), (row,)) = (tmp_path / "twice").iterdir(), content(folder)["rows"]
    assert (row["result"]["status"], Path(row["folder"])) == ("running", began)
    if killed:
        (began / "result.json").unlink()
    steps = list[int]()
    fill = fit.load_weights
    monkeypatch.setattr(fit, "fill", lambda *given: (steps.append(1), fill(*given)))
    result, *_ = run(halved, out=tmp_path, track="off", resume=folder)
    assert (steps, result.folder, content(folder)["problems"]) == ([1], began, [])
    assert (result.metrics, result.budget["steps"]) == (whole.metrics, 4)
    assert {row["result"]["status"] for row in content(folder)["rows"]} == {"finished"}


def test_a_run_that_bad_input_ends_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = fit.train_and_test

    def spoiled(model: Any, training: Training, folder: Path, *given: Any) -> dict[str, float]:
        if folder.parent.name == "coarse":
            raise InputError("a batch that cannot be used")
        return train(model, training, folder, *given)

    with monkeypatch.context() as patch:
        patch.setattr(fit, "train_and_test", spoiled)
        with pytest.raises(InputError, match="cannot be used"):
            run(pair, out=tmp_path, track="off")
    (folder,) = (tmp_path / "pair").iterdir()
    assert [row["task"] for row in content(folder)["rows"]] == ["fine"]


def test_rows_that_a_resumed_comparison_has_not_reached_again_are_kept(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(finished)["rows"]
    for stop in (0, 1):
        with monkeypatch.context() as patch:
            interrupted_after(stop, patch)
            with pytest.raises(Interrupted):
                run(pair, out=tmp_path, track="off", resume=finished)
        assert content(finished)["rows"] == before

    def check(self: TrialRunner) -> None:
        raise InputError("no data")

    with monkeypatch.context() as patch:
        patch.setattr(TrialRunner, "check", check)
        with pytest.raises(InputError, match="no data"):
            run(pair, out=tmp_path, track="off", resume=finished)
    assert content(finished)["rows"] == before


def lone(*, seeds: tuple[int, ...] = (0,)) -> Experiment:
    return fine()


def paired(*, seeds: tuple[int, ...] = (0,)) -> Comparison:
    return Comparison("paired", [fine, coarse], seeds=seeds, budget_unit="steps")


def test_another_comparison_writes_over_nothing(tmp_path: Path, finished: Path) -> None:
    before = content(finished)
    part = Path(before["rows"][0]["folder"])
    with pytest.raises(InputError, match=f'{finished} is a comparison "pair", and cannot resume as "paired"'):
        run(paired, out=tmp_path, track="off", resume=finished)
    for experiment in (lone, fine):
        with pytest.raises(InputError, match=f'is a comparison "pair", and cannot resume as "{experiment.__name__}"'):
            run(experiment, out=tmp_path, track="off", resume=finished)
    with pytest.raises(InputError, match=f'{part} is a run of the comparison "pair": give --resume'):
        run(fine, out=tmp_path, track="off", resume=part)
    assert content(finished) == before
    (alone,) = run(fine, out=tmp_path, track="off")
    with pytest.raises(InputError, match=f'{alone.folder} is a run of "fine", and cannot resume as "pair"'):
        run(pair, out=tmp_path, track="off", resume=alone.folder)


def terms(**given: Any) -> Callable[[], Comparison]:
    def changed() -> Comparison:
        return replace(pair(), **given)

    return changed


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"budget": 8}, "started with budget=None, and cannot resume with budget=8"),
        ({"budget_unit": "tokens", "budget": 8}, "started with match=steps, and cannot resume with match=tokens"),
        (
            {"sampling_temperature": 2.0},
            "started with sampling_temperature=inf, and cannot resume with sampling_temperature=2.0",
        ),
        (
            {"loss_weighting": "uncertainty"},
            "started with loss_weighting=fixed, and cannot resume with loss_weighting=uncertainty",
        ),
    ],
)
def test_one_that_holds_its_tasks_to_other_terms_does_not_go_on(
    changed: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_after(0, monkeypatch)
    with pytest.raises(Interrupted):
        run(terms(), out=tmp_path, track="off")
    (folder,) = (tmp_path / "pair").iterdir()
    before = json.loads((folder / "comparison.json").read_text(), parse_constant=pytest.fail)
    with pytest.raises(InputError, match=said):
        run(terms(**changed), out=tmp_path, track="off", resume=folder)
    assert content(folder) == before
    older = {name: value for name, value in before.items() if name not in changed}
    (folder / "comparison.json").write_text(json.dumps(older))
    with pytest.raises(Interrupted):
        run(terms(**changed), out=tmp_path, track="off", resume=folder)


def test_a_comparison_stopped_after_its_last_run_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "track", stop)
    with pytest.raises(Interrupted):
        run(pair, out=tmp_path, track="off")
    (folder,) = (tmp_path / "pair").iterdir()
    assert content(folder)["status"] == "finished"
    assert content(folder)["representation"]


def test_what_was_moved_is_found_and_goes_on_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        interrupted_after(1, patch)
        with pytest.raises(Interrupted):
            run(pair, out="began", track="off")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (tmp_path / "began").rename(tmp_path / "moved")
    monkeypatch.chdir(elsewhere)
    (folder,) = (tmp_path / "moved" / "pair").iterdir()
    (before,) = content(folder)["rows"]
    run(pair, track="off", resume=folder)
    after = content(folder)
    assert (after["status"], after["problems"], len(after["rows"])) == ("finished", [], 4)
    assert after["rows"][0]["result"] == before["result"]
    runs = [path.parts[-3] for path in (tmp_path / "moved").glob("*/*/result.json")]
    assert sorted(runs) == ["coarse", "fine", "joint"], "one each"
    assert not list(elsewhere.iterdir())


def test_through_a_link_it_goes_on_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupted_after(1, patch)
        with pytest.raises(Interrupted):
            run(pair, out=tmp_path / "runs", track="off")
    (folder,) = (tmp_path / "runs" / "pair").iterdir()
    (links := tmp_path / "some" / "links").mkdir(parents=True)
    (links / "latest").symlink_to(folder)
    run(pair, track="off", resume=links / "latest")
    assert (content(folder)["status"], len(content(folder)["rows"])) == ("finished", 4)
    assert {path.parts[-3] for path in (tmp_path / "runs").glob("*/*/result.json")} == {"coarse", "fine", "joint"}
    assert [*(tmp_path / "some").iterdir()] == [links]
    assert [*links.iterdir()] == [links / "latest"]


def test_a_broken_result_is_named_and_run_again(tmp_path: Path, finished: Path) -> None:
    broken = Path(content(finished)["rows"][0]["folder"]) / "result.json"
    broken.write_text("{")
    run(pair, out=tmp_path, track="off", resume=finished)
    after = content(finished)
    assert [problem for problem in after["problems"] if str(broken) in problem]
    assert len(after["rows"]) == 4
    assert len(list((tmp_path / "fine").iterdir())) == 2
    assert len(list((tmp_path / "coarse").iterdir())) == 1


@pytest.mark.parametrize("lost", ["folder", "experiment", "result"])
def test_a_row_that_lacks_something_is_named_and_run_again(lost: str, tmp_path: Path, finished: Path) -> None:
    spoiled = content(finished)
    first = next(row for row in spoiled["rows"] if row["mode"] == "solo")
    del first[lost]
    (finished / "comparison.json").write_text(json.dumps(spoiled))
    run(pair, out=tmp_path, track="off", resume=finished)
    after = content(finished)
    assert after["problems"] == [f"{finished / 'comparison.json'}: broken (a row lacks '{lost}'); run again"]
    assert [row for row in after["rows"] if lost in row] == after["rows"]


@pytest.mark.parametrize(
    "row", ["none", {**Trial(experiments=(fine,), seed=0).row(), "folder": "gone", "result": "none"}]
)
def test_a_row_that_is_no_object_is_named(row: Any, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(json.dumps({"name": "pair", "rows": [row]}))
    taken_up = TrialRunner(pair(), fit.RunContext(tmp_path, "pair"), tmp_path)
    assert taken_up.problems == [f"{tmp_path / 'comparison.json'}: broken (a row is no object); run again"]


@pytest.mark.parametrize("name", ["best", "last"])
@pytest.mark.parametrize("torn", [True, False])
def test_a_stopped_run_whose_weights_are_gone_is_run_again(
    name: str, torn: bool, tmp_path: Path, finished: Path
) -> None:
    part = Path(content(finished)["rows"][0]["folder"])
    for path in (part / "result.json", finished / "comparison.json"):
        path.write_text(path.read_text().replace('"finished"', '"interrupted"'))
    weights = part / "checkpoints" / f"{name}.ckpt"
    weights.unlink()
    if torn:
        weights.write_text("torn")
    results = run(pair, out=tmp_path, track="off", resume=finished)
    assert [one.status for one in results] == ["finished"] * 3
    assert results[0].folder != part
    problems = content(finished)["problems"]
    if name == "last" and not torn:  # as Ctrl-C before the first step leaves it
        assert problems == []
    else:
        assert len(problems) == 1
        assert problems[0].startswith(f"{weights}: {'broken' if torn else 'no such file'}")
        assert problems[0].endswith("; run again")
