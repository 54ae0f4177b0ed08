"""Comparisons whose runs are not trained: a fake `fit` writes their results, so that any interruption can be tested."""

import errno
import json
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import pytest

from unifier import ClassificationHead, Comparison, Experiment, Result, Task, Training, Transformer, run
from unifier.comparison import Mode
from unifier.data.dataset import Subset
from unifier.datasets import Digits
from unifier.files import read_json
from unifier.folders import lock_folder
from unifier.training import trackers
from unifier.training.result import Interrupted, RunFailed
from unifier.training.run_context import RunContext
from unifier.trials import runner, trials
from unifier.trials.executor import Lost, OnStart, Outcome
from unifier.trials.fitting import Job, TrialFitter
from unifier.trials.plan import Trial, count_trials, describe_trial
from unifier.trials.runner import compare
from unifier.trials.search import plan_search, validation_score
from unifier_tokenizers import InputError, PatchTokenizer

texts = dict.fromkeys(("commit", "machine", "error"), "")
facts = {"name": "made", "tasks": ["digits"], "seed": 0, "status": "finished", "threads": 1, "folder": Path()}
RESULT = Result(**dict[str, Any]({part.name: {} for part in fields(Result)} | texts | facts))


@dataclass
class FakeFit:
    """Stands in for `fit`: it writes the folder and the result of a run instead of training."""

    errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """How the run of a call ends, by the number of the call from 1; other runs finish."""
    sha256: str = "data"
    calls: list[tuple[str, int, Path | None]] = field(default_factory=list[tuple[str, int, Path | None]])

    def __call__(
        self,
        build: object,
        settings: Any,
        seed: int,
        context: RunContext,
        resume: Path | None = None,
        encoded_tasks: object = None,
        on_start: Callable[[Result], object] = lambda _: None,
        *,
        start: object = None,
    ) -> Result:
        assert context.trial
        name: str = context.trial.row["experiment"]
        self.calls.append((name, seed, resume))
        tasks = list(settings) if name == "joint" else [name]
        data = {task: {"sha256": self.sha256} for task in tasks}
        with ExitStack() as lock:
            folder = resume or lock.enter_context(context.run_folder(name, seed))
        facts = {"tasks": tasks, "seed": seed, "settings": settings, "data": data, "folder": folder}
        result = replace(RESULT, name=name, status="running", **facts)
        on_start(result)
        (result.folder / "checkpoints").mkdir(exist_ok=True)
        (result.folder / "checkpoints" / "last.ckpt").touch()
        match self.errors.get(len(self.calls)):
            case "Ctrl-C":
                replace(result, status="interrupted").write()
                raise Interrupted(result.folder)
            case "diverges":
                result = replace(result, status="failed", error="diverged")
                result.write()
                raise RunFailed(result)
            case "bad input":
                raise InputError("a batch that cannot be used")
            case "full disk":
                raise OSError(errno.ENOSPC, "No space left on device")
            case _:
                result = replace(result, status="finished")
                result.write()
                return result


def study(name: str) -> Experiment:
    task = Task(Subset(Digits(), 0.02), PatchTokenizer(8, channels=1), ClassificationHead(Digits.labels, 8))
    return Experiment(Transformer(8, 1, 2, 8), {name: task}, Training(steps=4))


def fine() -> Experiment:
    return study("fine")


def coarse() -> Experiment:
    return study("coarse")


def pair(*, seeds: tuple[int, ...] = (0,), modes: tuple[Mode, ...] = ("solo", "joint")) -> Comparison:
    return Comparison("pair", [fine, coarse], seeds=seeds, modes=modes, budget_unit="steps")


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(runner, "write_report", lambda *_: None)
    monkeypatch.setattr(runner, "compare_representations", lambda *_: ([], []))
    monkeypatch.setattr(trials, "load_resume_checkpoint", lambda _: {})


def start(out: Path, fit: FakeFit, comparison: Comparison | None = None, resume: Path | None = None) -> Path:
    """Run a comparison with a fake `fit`, and return its folder."""
    context = RunContext(out, "study", wandb="off", origin=f"{__file__}:pair")
    return compare(comparison or pair(), {}, context, resume, fit=fit)[1]


def stop(out: Path, errors: Mapping[int, str], comparison: Comparison | None = None) -> Path:
    """Run a comparison that ends early, and return its folder."""
    with pytest.raises((Interrupted, OSError, InputError)) as stopped:
        start(out, FakeFit(errors), comparison)
    (folder,) = (out / "pair").iterdir()
    if isinstance(stopped.value, Interrupted):
        assert stopped.value.folder == folder
    return folder


def content(folder: Path) -> dict[str, Any]:
    return read_json(folder / "comparison.json")


def change(folder: Path, **parts: Any) -> None:
    """Overwrite parts of comparison.json."""
    (folder / "comparison.json").write_text(json.dumps({**content(folder), **parts}))


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """Return the folder of a comparison whose three runs, fine, coarse and joint, have finished."""
    return start(tmp_path, FakeFit())


def test_runs_lie_in_the_comparisons_folder(finished: Path) -> None:
    rows = content(finished)["rows"]
    assert [row["task"] for row in rows] == ["fine", "coarse", "fine", "coarse"]
    assert {row["folder"] for row in rows} == {f"trials/{path.name}" for path in (finished / "trials").iterdir()}
    assert all((finished / row["folder"] / "result.json").exists() for row in rows)


def test_finished_trials_are_not_run_again(tmp_path: Path) -> None:
    folder = stop(tmp_path, {3: "Ctrl-C"}, pair(seeds=(0, 1)))
    before = content(folder)
    assert (before["status"], len(before["rows"])) == ("interrupted", 4)
    again = FakeFit()
    start(tmp_path, again, pair(seeds=(0, 1)), folder)
    after = content(folder)
    stopped = folder / before["rows"][2]["folder"]
    assert again.calls == [("joint", 0, stopped), ("fine", 1, None), ("coarse", 1, None), ("joint", 1, None)]
    assert (after["status"], after["rows"][:2], len(after["rows"])) == ("finished", before["rows"][:2], 8)


def test_ctrl_c_after_the_last_run_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "log_comparison", Mock(side_effect=KeyboardInterrupt))
    assert content(stop(tmp_path, {}))["status"] == "finished"


@pytest.mark.parametrize("result_written", [True, False])
@pytest.mark.parametrize("ending", ["full disk", "Ctrl-C"])
def test_stopped_run_resumes_in_its_folder(ending: str, result_written: bool, tmp_path: Path) -> None:
    folder = stop(tmp_path, {1: ending})
    (run_folder,) = (folder / "trials").iterdir()
    (row,) = content(folder)["rows"]
    assert row["result"]["status"] == ("interrupted" if ending == "Ctrl-C" else "running")
    if result_written:
        replace(RESULT, name="fine", tasks=["fine"], status="failed", folder=run_folder).write()
    elif ending == "Ctrl-C":
        change(folder, rows=[{**row, "result": {**row["result"], "status": "running"}}])
        (run_folder / "result.json").unlink()
    again = FakeFit()
    start(tmp_path, again, resume=folder)
    assert again.calls == [("fine", 0, run_folder), ("coarse", 0, None), ("joint", 0, None)]
    assert content(folder)["problems"] == []


@pytest.mark.parametrize("checkpoint", ["none", "broken"])
def test_run_without_checkpoint_starts_again(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stop(tmp_path, {1: "Ctrl-C"})
    (path,) = folder.glob("trials/*/checkpoints/last.ckpt")
    if checkpoint == "none":
        path.unlink()

    monkeypatch.setattr(trials, "load_resume_checkpoint", Mock(side_effect=InputError("last.ckpt: broken")))
    again = FakeFit()
    start(tmp_path, again, resume=folder)
    assert again.calls[0] == ("fine", 0, None)
    assert content(folder)["problems"] == (["last.ckpt: broken; run again"] if checkpoint == "broken" else [])


class ThreeAtATime:
    """Stands in for a cluster: the last of three submitted trials ends first, and some processes die."""

    slots = 3

    def __init__(self, fitter: TrialFitter, deaths: Mapping[str, int]) -> None:
        self.fitter, self.deaths, self.jobs = fitter, dict(deaths), list[Job]()

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def wait(self, on_start: OnStart) -> tuple[Trial, Outcome | Lost]:
        job = self.jobs.pop()
        result = self.fitter.run(job, lambda result: on_start(job.trial, result))
        name = job.trial.name
        self.deaths[name] = self.deaths.get(name, 0) - 1
        return job.trial, Lost("killed") if self.deaths[name] >= 0 else result

    def stop(self) -> None: ...


def start_parallel(out: Path, fit: FakeFit, deaths: Mapping[str, int]) -> dict[str, Any]:
    """Run a comparison with three trials at a time, and return the content of its comparison.json."""
    both = replace(pair(seeds=(0, 1), modes=("solo", "transfer")), trainable=("all",), controls=())
    context = RunContext(out, "study", wandb="off", origin=f"{__file__}:pair")
    create = cast(Any, lambda fitter: nullcontext(ThreeAtATime(fitter, deaths)))
    return content(compare(both, {}, context, fit=fit, executor=create)[1])


def test_order_of_ends_does_not_change_the_rows(tmp_path: Path) -> None:
    both = replace(pair(seeds=(0, 1), modes=("solo", "transfer")), trainable=("all",), controls=())
    serial = content(start(tmp_path / "serial", FakeFit(), both))["rows"]
    parallel = start_parallel(tmp_path / "parallel", fit := FakeFit(), {"fine": 1})
    assert [row | {"folder": ""} for row in parallel["rows"]] == [row | {"folder": ""} for row in serial]
    assert [name for name, _, _ in fit.calls[:3]] != ["fine", "coarse", "fine"]
    assert len(fit.calls) == len(serial) + 1
    (again,) = [folder for _, _, folder in fit.calls if folder is not None]
    assert again.name in {Path(row["folder"]).name for row in parallel["rows"]}


def test_trial_whose_process_always_dies_has_failed(tmp_path: Path) -> None:
    found = start_parallel(tmp_path, FakeFit(), {"fine": 100})
    ends = {(row["experiment"], row["result"]["status"]) for row in found["rows"]}
    assert (found["status"], ends) == ("failed", {("fine", "failed"), ("coarse", "finished")})
    assert "killed" in next(row["result"]["error"] for row in found["rows"] if row["experiment"] == "fine")


def test_run_with_bad_input_leaves_no_row(tmp_path: Path) -> None:
    folder = stop(tmp_path, {2: "bad input"})
    assert (content(folder)["status"], [row["task"] for row in content(folder)["rows"]]) == ("failed", ["fine"])
    with pytest.raises(InputError, match="cannot be used"):
        start(tmp_path / "first", FakeFit({1: "bad input"}))
    assert not list((tmp_path / "first" / "pair").iterdir())


def test_folders_that_no_row_names_are_removed(tmp_path: Path) -> None:
    folder = stop(tmp_path, {2: "Ctrl-C"})
    left = [folder / "trials" / name for name in ("20260101-000000-fine-seed0-abcd", "20260101-000000-fine-seed0-dcba")]
    for path in left:  # As after a kill before the row, or before the first checkpoint.
        path.mkdir()
    (left[1] / "settings.json").touch()
    own = folder / "trials" / "notes"
    own.mkdir()
    start(tmp_path, FakeFit(), resume=folder)
    named = {Path(row["folder"]).name for row in content(folder)["rows"]}
    assert {path.name for path in (folder / "trials").iterdir()} == {*named, "notes"}


def test_repeated_trial_replaces_its_folder(tmp_path: Path) -> None:
    folder = start(tmp_path, FakeFit({1: "diverges"}))
    start(tmp_path, FakeFit(), resume=folder)
    assert {row["result"]["status"] for row in content(folder)["rows"]} == {"finished"}
    named = {Path(row["folder"]).name for row in content(folder)["rows"]}
    assert {path.name for path in (folder / "trials").iterdir()} == named


def test_comparison_that_cannot_be_written_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(runner, "write_sealed_json", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space"):
        start(tmp_path, FakeFit())
    assert not list((tmp_path / "pair").iterdir())


def test_second_resume_is_refused(tmp_path: Path) -> None:
    folder = stop(tmp_path, {2: "Ctrl-C"})
    before = content(folder)
    with lock_folder(folder), pytest.raises(InputError, match="another process"):
        start(tmp_path, FakeFit(), resume=folder)
    assert content(folder) == before


def test_transfers_of_a_failed_run_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = replace(pair(modes=("solo", "transfer")), trainable=("none",))
    fit = FakeFit({1: "diverges"})
    folder = start(tmp_path, fit, both)
    found = content(folder)
    assert found["status"] == "failed"
    done = [(row["experiment"], row["mode"], row["start"], row["shuffled"]) for row in found["rows"]]
    starts = ((None, False), ("coarse", False), ("coarse", True))
    into_fine = [("fine", "transfer", start, shuffled) for start, shuffled in starts]
    solo = [(name, "solo", None, False) for name in ("fine", "coarse")]
    assert done == [*solo, *into_fine, ("coarse", "transfer", None, False)]
    frozen = Trial(experiments=(coarse,), seed=0, mode="transfer", start=fine, trainable="none")
    left_out = [describe_trial(replace(frozen, shuffled=shuffled)) for shuffled in (False, True)]
    assert [line.split(": ")[0] for line in found["problems"]] == left_out
    assert capsys.readouterr().out.count("run ") == len(fit.calls) == 6


@pytest.mark.slow
def test_changed_data_end_a_resumed_comparison(tmp_path: Path) -> None:
    folder = stop(tmp_path, {3: "Ctrl-C"})
    before = content(folder)["rows"]
    with pytest.raises(InputError, match=r"fine, fine: .* different data"):
        start(tmp_path, FakeFit(sha256="other"), resume=folder)
    assert content(folder)["rows"][:2] == before[:2]
    start(tmp_path, FakeFit(), resume=folder)
    assert content(folder)["status"] == "finished"


@pytest.mark.parametrize(
    ("method", "error"), [("run", KeyboardInterrupt), ("check", KeyboardInterrupt), ("check", InputError)]
)
def test_rows_not_reached_again_are_kept(
    method: str, error: type[BaseException], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(finished)["rows"]
    monkeypatch.setattr(trials.TrialRunner, method, Mock(side_effect=error("stop")))
    with pytest.raises((Interrupted, InputError)):
        start(tmp_path, FakeFit(), resume=finished)
    assert content(finished)["rows"] == before


def test_moved_comparison_resumes_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stop(tmp_path / "first", {2: "Ctrl-C"})
    moved = folder.rename(tmp_path / "moved")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    again = FakeFit()
    start(Path("runs"), again, resume=moved)
    assert [name for name, _, _ in again.calls] == ["coarse", "joint"]
    assert (content(moved)["status"], content(moved)["problems"]) == ("finished", [])
    assert len(list((moved / "trials").iterdir())) == 3
    assert not list(elsewhere.iterdir())


def test_broken_result_is_named_and_run_again(finished: Path, tmp_path: Path) -> None:
    broken = finished / content(finished)["rows"][0]["folder"] / "result.json"
    broken.write_text("{")
    again = FakeFit()
    start(tmp_path, again, resume=finished)
    assert again.calls == [("fine", 0, None)]
    (problem,) = content(finished)["problems"]
    assert str(broken) in problem
    assert len(content(finished)["rows"]) == 4


@pytest.mark.parametrize("key", ["folder", "experiment", "result"])
def test_row_without_a_key_is_named_and_run_again(key: str, finished: Path, tmp_path: Path) -> None:
    first, *rest = content(finished)["rows"]
    change(finished, rows=[{name: value for name, value in first.items() if name != key}, *rest])
    again = FakeFit()
    start(tmp_path, again, resume=finished)
    assert again.calls == [("fine", 0, None)]
    (problem,) = content(finished)["problems"]
    assert f"lacks '{key}'" in problem
    assert all(key in row for row in content(finished)["rows"])


@pytest.mark.parametrize(
    "row", ["none", {**Trial(experiments=(fine,), seed=0).row(), "folder": "gone", "result": "none"}]
)
def test_row_that_is_not_an_object_is_named(row: Any, finished: Path) -> None:
    change(finished, rows=[row])
    (problem,) = trials.read_earlier_trials(finished, pair()).problems
    assert str(finished / "comparison.json") in problem


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"budget": 8}, "budget=None, .* budget=8"),
        ({"budget_unit": "tokens", "budget": 8}, "budget_unit=steps, .* budget_unit=tokens"),
        ({"sampling_temperature": 2.0}, "sampling_temperature=inf, .* sampling_temperature=2.0"),
        ({"loss_weighting": "uncertainty"}, "loss_weighting=fixed, .* loss_weighting=uncertainty"),
        ({"name": "other"}, '"pair", .* "other"'),
    ],
)
def test_resuming_under_other_terms_is_refused(changed: dict[str, Any], message: str, finished: Path) -> None:
    before = content(finished)
    with pytest.raises(InputError, match=message):
        trials.read_earlier_trials(finished, replace(pair(), **changed))
    assert content(finished) == before


def other(*, seeds: tuple[int, ...] = (0,)) -> Experiment:
    return fine()


def test_resuming_another_function_is_refused(finished: Path, tmp_path: Path) -> None:
    for experiment in (other, fine):
        with pytest.raises(InputError, match=f'"pair", .* "{experiment.__name__}"'):
            run(experiment, out=tmp_path, track="off", resume=finished)
    part = finished / content(finished)["rows"][0]["folder"]
    (part / "settings.json").write_text(json.dumps({"settings": {}, "comparison": "pair"}))
    with pytest.raises(InputError, match=f'{part} is a run of the comparison "pair"'):
        run(fine, out=tmp_path, track="off", resume=part)
    (part / "settings.json").write_text(json.dumps({"settings": {}, "study": f"{__file__}:fine"}))
    with pytest.raises(InputError, match=f'{part} is a run of "fine", .* "pair"'):
        run(pair, out=tmp_path, track="off", resume=part)
    with pytest.raises(InputError, match="leave out seeds"):
        run(pair, out=tmp_path, track="off", resume=finished, seeds=(1,))
    (finished / "comparison.json").unlink()
    with pytest.raises(InputError, match=r"comparison\.json: no such file"):
        run(pair, out=tmp_path, track="off", resume=finished)


def test_wandb_group_is_the_comparisons_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "WeightsAndBiases", opened := MagicMock())
    context = RunContext(tmp_path, "study", wandb="offline", origin=f"{__file__}:pair")
    _, folder = compare(pair(), {"depth": 1}, context, fit=FakeFit())
    tracked = opened.call_args.args[0]
    opened.assert_called_once()
    assert (tracked.project, tracked.group, tracked.job_type) == ("study", folder.name, "evaluate")
    assert tracked.config["depth"] == 1
    assert set(tracked.config["runs"]) == {path.name for path in (folder / "trials").iterdir()}


GRID = {"dim": (8, 16, 32, 64), "depth": (1, 2, 3), "rate": (0.1, 0.2, 0.3)}


def made(*, dim: int = 8, depth: int = 1, rate: float = 0.1) -> Experiment:
    raise NotImplementedError


def search(number: int, grid: dict[str, Any], seeds: tuple[int, ...] = (0,)) -> list[Trial]:
    """Return the trials of a search in which wider and deeper models score better."""

    def result(trial: Trial) -> Result:
        score = trial.varied["dim"] + 10.0 * trial.varied.get("depth", 0)
        metrics = {"val/digits/accuracy": score, "test/digits/accuracy": -score}
        return replace(RESULT, metrics=metrics, data={"digits": {"max_score": 100.0}})

    comparison = Comparison("made", [made], seeds=seeds, grid=grid, search=number)
    planned = [trial for trial in plan_search(comparison, result) if trial is not None]
    assert count_trials(comparison) == len(planned)
    return planned


@pytest.mark.slow
def test_search_tries_distinct_combinations_per_seed() -> None:
    for number in (1, 12, 30, 36):
        assert len({tuple(trial.varied.values()) for trial in search(number, GRID)}) == number
    planned = sorted((trial.varied["dim"], trial.seed) for trial in search(20, {"dim": (8, 16, 32)}, seeds=(0, 1)))
    assert planned == [(dim, seed) for dim in (8, 16, 32) for seed in (0, 1)]


@pytest.mark.slow
def test_search_is_deterministic_and_improves() -> None:
    wide = {"dim": tuple(range(100)), "depth": tuple(range(10))}
    planned = search(60, wide)
    assert planned == search(60, wide)
    scores = [trial.varied["dim"] + 10 * trial.varied["depth"] for trial in planned]
    assert mean(scores[-20:]) > mean(scores[:10]) + 10


def test_search_continues_its_stored_study_while_trials_run(tmp_path: Path) -> None:
    comparison = Comparison("made", [made], grid={"dim": (8, 16, 32)}, search=3)
    ended: dict[str, Result] = {}

    def result(trial: Trial) -> Result | None:
        return ended.get(trial.key)

    def end(trial: Trial | None) -> None:
        assert trial
        metrics = {"val/digits/accuracy": float(trial.varied["dim"])}
        ended[trial.key] = replace(RESULT, metrics=metrics, data={"digits": {"max_score": 100.0}})

    plan = plan_search(comparison, result, tmp_path / "search.log")
    first, second = next(plan), next(plan)
    end(second)
    again = plan_search(comparison, result, tmp_path / "search.log")
    assert [next(again), next(again)] == [first, second]
    third = next(again)
    assert third not in (first, second)
    assert next(again) is None, "the trials are still running"
    end(first)
    end(third)
    assert list(again) == []


def test_search_rejects_a_failed_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    told: list[Any] = []
    monkeypatch.setattr(
        optuna.study.Study, "tell", lambda _, number, value=None, state=None: told.append(state or value)
    )

    def result(trial: Trial) -> Result:
        metrics = {"val/digits/accuracy": float(trial.varied["dim"])}
        status = "failed" if trial.varied["dim"] == 32 and trial.seed == 1 else "finished"
        return replace(RESULT, status=status, metrics=metrics, data={"digits": {"max_score": 100.0}})

    list(plan_search(Comparison("made", [made], seeds=(0, 1), grid={"dim": (8, 32)}, search=2), result))
    assert [each for each in told if each != optuna.trial.TrialState.PRUNED] in (
        [8.0, optuna.trial.TrialState.FAIL],
        [optuna.trial.TrialState.FAIL, 8.0],
    )


def test_validation_score_averages_percentages() -> None:
    data = {"digits": {"max_score": 100.0}, "moods": {"max_score": 1.0}}
    both = replace(RESULT, tasks=list(data), data=data)
    metrics = {"test/digits/accuracy": 0.0, "val/digits/accuracy": 60.0, "val/moods/auc": 0.8, "val/moods/map": 0.1}
    assert validation_score(replace(both, metrics=metrics)) == pytest.approx(70)
    assert validation_score(replace(both, metrics={**metrics, "val/moods/auc": math.nan})) == 60
