"""Running and recording of the trials of a comparison. Finished trials are not run again."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any, final

from unifier.comparison import Comparison
from unifier.distributed import PeerError, from_main, is_main
from unifier.files import print_status, read_json
from unifier.folders import RUN_ID, TRIALS_FOLDER, find_run_folder
from unifier.report.read_results import find_changed_data
from unifier.training.checkpoint import load_resume_checkpoint
from unifier.training.fit import fit
from unifier.training.result import Interrupted, Result
from unifier.training.run_context import RunContext
from unifier.trials.executor import Executor, Lost, Outcome, SerialExecutor
from unifier.trials.fitting import FitFn, Job, TrialFitter
from unifier.trials.plan import (
    Trial,
    comparison_terms,
    count_trials,
    describe_trial,
    experiment_settings,
    first_varied,
    plan_trials,
    trial_key,
    trial_rows,
)
from unifier_tokenizers import InputError

MAX_RESTARTS = 3
"""Number of restarts of a trial whose process dies."""


@final
@dataclass
class EarlierTrials:
    """Trials from an earlier execution of a comparison. All mappings are keyed by `Trial.key`."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    results: dict[str, Result] = field(default_factory=dict[str, Result])
    unfinished: dict[str, Path] = field(default_factory=dict[str, Path])
    """The folders of stopped runs that can resume from a checkpoint."""
    problems: list[str] = field(default_factory=list[str])
    """One line for each trial that must run again."""

    def finished(self, key: str) -> Result | None:
        """Return the result of a trial that has finished, or None."""
        result = self.results.get(key)
        return result if result is not None and result.status == "finished" else None

    def finished_rows(self) -> list[dict[str, Any]]:
        """Return the rows of all finished trials."""
        return [row for key, rows in self.rows.items() if self.finished(key) for row in rows]


def read_earlier_trials(folder: Path, comparison: Comparison) -> EarlierTrials:
    """Read the earlier trials from the folder of a resumed comparison.

    If the result of a trial is missing or broken, the trial runs again, and a line is added to `problems`.

    Raises:
        InputError: The folder belongs to another comparison, or the comparison was started with other settings.
    """
    content = read_json(folder / "comparison.json", name=str, rows=list)
    if content["name"] != comparison.name:
        raise InputError(f'{folder} is the comparison "{content["name"]}", and cannot resume as "{comparison.name}"')
    for name, value in comparison_terms(comparison).items():
        if (started := content.get(name, value)) != value:
            raise InputError(
                f"{folder} was started with {name}={started}, so it cannot resume with {name}={value}: start a new one"
            )
    earlier = EarlierTrials()
    for row in content["rows"]:
        try:
            key, path, status = trial_key(row), folder / row["folder"], row["result"]["status"]
        except (KeyError, TypeError) as error:
            fault = f"lacks {error}" if isinstance(error, KeyError) else "is not an object"
            earlier.problems.append(f"{folder / 'comparison.json'}: broken (a row {fault}); run again")
            continue
        earlier.rows.setdefault(key, []).append(row)
        path = find_run_folder(row["folder"], folder) or path
        try:
            earlier.results[key] = Result.read(path)
        except InputError as error:
            if status != "running":  # A killed run has no finished result.
                earlier.problems.append(f"{error}; run again")
                continue
        if status in ("running", "interrupted"):
            earlier.unfinished[key] = path
    return earlier


def remove_leftovers(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Remove the folders of stopped runs that no row names, such as the earlier run of a repeated trial.

    A folder with a checkpoint is kept, unless its result.json contains the status "failed" or "interrupted".

    Args:
        folder: The comparison's folder, which this process has locked.
        rows: All rows of the comparison.
    """
    named = {Path(str(row.get("folder"))).name for row in rows}
    for run in (folder / TRIALS_FOLDER).glob("*/"):
        is_run = RUN_ID.fullmatch(run.name) and not run.is_symlink()
        if is_run and run.name not in named and not (any(run.glob("checkpoints/*.ckpt")) and _may_be_finished(run)):
            rmtree(run, ignore_errors=True)


def _may_be_finished(run: Path) -> bool:
    try:
        return Result.read(run).status not in ("failed", "interrupted")
    except InputError:
        return True


@final
class TrialRunner:
    """Runner of a comparison's trials, which keeps their results and rows."""

    def __init__(
        self, comparison: Comparison, context: RunContext, resume: Path | None = None, fit: FitFn = fit
    ) -> None:
        """Prepare to run a comparison.

        Args:
            comparison: The comparison whose trials are run.
            context: The context of all runs, with an empty field `trial`.
            resume: The folder of a stopped comparison that is resumed.
            fit: The function that trains an experiment.
        """
        self.comparison = comparison
        self.fitter = TrialFitter(comparison, context, fit)
        self.executor: Executor = SerialExecutor(self.fitter)
        self._start_time = time.monotonic()
        self._earlier = (
            EarlierTrials() if resume is None else from_main(lambda: read_earlier_trials(resume, comparison))
        )
        self.problems = self._earlier.problems
        self._planned: dict[str, Trial] = {}
        """All trials so far, keyed by `Trial.key`, in the order of the plan."""
        self._running: dict[str, Job] = {}
        self._results: dict[str, Result] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        """The rows of each finished, failed or running trial, keyed by `Trial.key`."""
        if resume is not None and is_main():
            remove_leftovers(resume, self.all_rows())
        self._num_reused = 0
        self._num_restarts = Counter[str]()
        self._num_planned = count_trials(comparison)
        for make in comparison.experiments:
            experiment_settings(comparison, make, first_varied(comparison))

    @property
    def results(self) -> list[Result]:
        """The results so far, in the order of the plan."""
        return [self._results[key] for key in self._planned if key in self._results]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the trials in `results`, in the order of `results`."""
        return [row for key in self._planned if key in self._results for row in self._rows[key]]

    def all_rows(self) -> list[dict[str, Any]]:
        """Return all rows so far, followed by earlier rows of trials that will run later."""
        planned = {key: self._rows[key] for key in self._planned if key in self._rows}
        return [row for rows in ({**self._earlier.rows, **planned}).values() for row in rows]

    def result(self, trial: Trial) -> Result | None:
        """Return the result of a trial, or None if the trial has not been run."""
        return self._results.get(trial.key)

    def check(self) -> None:
        """Build the first trial of each experiment, to detect errors before training.

        Raises:
            InputError: Two experiments have different budgets, or cannot be trained together.
        """
        count = len(self.comparison.experiments) + (self.comparison.showcase is not None)
        for trial in islice(plan_trials(self.comparison), count + 1 if count > 1 else 0):
            if trial.mode != "transfer" and trial.seed == self.comparison.seeds[0]:
                self.fitter.build(trial)

    def run(self, planned: Iterable[Trial | None], folder: Path, write: Callable[[], object] = lambda: None) -> None:
        """Run all trials that have not been run. A failure in training is recorded in the trial's rows.

        A trial that starts from the trunk of another trial waits for the end of that trial.

        Args:
            planned: The trials. None means that the next trial depends on the end of a running trial.
            folder: The comparison's folder.
            write: A function that writes all rows. The function is called when a trial starts and when it ends, because
                a killed run can resume only from written rows.

        Raises:
            InputError: The data have changed since the earlier trials, or a trial could never start.
            Interrupted, OSError: Training was interrupted, or the disk is full.
        """
        plan, waiting, lost = iter(planned), list[Trial](), list[str]()

        def on_start(trial: Trial, result: Result) -> None:
            rows = trial_rows(trial, result)
            known = [row for key, earlier in self._rows.items() if key != trial.key for row in earlier]
            if changed := find_changed_data([*self._earlier.finished_rows(), *known, *rows]):
                raise InputError(f"{changed[0]}: this comparison cannot continue, so start a new one")
            self._rows[trial.key] = rows
            write()

        while True:
            while len(self._running) < self.executor.slots and (trial := self._next(plan, waiting)) is not None:
                self._submit(trial, folder)
            if not self._running:
                break
            trial, outcome = self.executor.wait(on_start)
            del self._running[trial.key]
            if isinstance(outcome, Lost):
                lost += self._restart(trial, outcome, folder)
            else:
                self._end(trial, outcome)
            write()
        if lost:
            raise InputError("; ".join(lost))
        if is_main():
            remove_leftovers(folder, self.all_rows())

    def _next(self, plan: Iterator[Trial | None], waiting: list[Trial]) -> Trial | None:
        """Return the next trial that can start, or None. Trials that must wait for another trial join `waiting`."""
        for trial in [*waiting]:
            if self._is_ready(trial):
                waiting.remove(trial)
                if self._is_startable(trial):
                    return trial
        for trial in plan:
            if trial is None:
                return None
            if trial.key in self._planned:
                continue
            self._planned[trial.key] = trial
            if finished := self._earlier.finished(trial.key):
                self._num_reused += 1
                self._record(trial, finished)
            elif not self._is_ready(trial):
                waiting.append(trial)
            elif self._is_startable(trial):
                return trial
        return None

    def _is_ready(self, trial: Trial) -> bool:
        """Return True if the trial that trains the initial trunk has ended."""
        start = trial.start_trial()
        return start is None or start.key in self._results

    def _is_startable(self, trial: Trial) -> bool:
        """Return True if the initial trunk was fully trained. Otherwise, the trial is left out."""
        start = trial.start_trial()
        if start is None or self._results[start.key].status == "finished":
            return True
        self.problems.append(f"{describe_trial(trial)}: left out, because its initial trunk was not fully trained")
        return False

    def _submit(self, trial: Trial, folder: Path) -> None:
        number = len(self._results) + len(self._running) + 1
        print_status(f"run {number} of {self._num_planned}: {describe_trial(trial)}{self._remaining_time()}")
        self._start(trial, folder, self._earlier.unfinished.get(trial.key))

    def _start(self, trial: Trial, folder: Path, stopped: Path | None) -> None:
        """Submit a trial. `stopped` is the folder of its stopped run, or None."""
        start = trial.start_trial()
        trained = None if start is None else self._results[start.key].folder
        self._running[trial.key] = Job(trial=trial, folder=folder, resume=self._resumable(stopped), start=trained)
        self.executor.submit(self._running[trial.key])

    def _restart(self, trial: Trial, lost: Lost, folder: Path) -> list[str]:
        """Run a trial again whose process has died, from its last checkpoint.

        After `MAX_RESTARTS`, the trial has failed. Returns one line if a failed trial has no folder for its result.
        """
        self._num_restarts[trial.key] += 1
        rows = self._rows.get(trial.key, [])
        run = folder / rows[0]["folder"] if rows else None
        if self._num_restarts[trial.key] <= MAX_RESTARTS:
            print_status(f"restarting {describe_trial(trial)}: {lost.reason}")
            self._start(trial, folder, run)
            return []
        message = f"{describe_trial(trial)}: its process ended {self._num_restarts[trial.key]} times: {lost.reason}"
        if run is None:
            return [message]
        content: dict[str, Any] = {**rows[0]["result"], "status": "failed", "error": message}
        result = Result(**content, folder=run)
        result.write()
        self._record(trial, result)
        return []

    def _end(self, trial: Trial, outcome: Outcome) -> None:
        """Record the result of a trial, or raise the error that ends the comparison."""
        if isinstance(outcome, Result):
            self._record(trial, outcome)
            return
        if isinstance(outcome, InputError):  # The run cannot resume, because the user must change the data.
            self._rows.pop(trial.key, None)
        if isinstance(outcome, Interrupted):
            with suppress(InputError):  # On a full disk, the run has no result.json.
                self._record(trial, Result.read(outcome.folder))
        raise outcome

    def _record(self, trial: Trial, result: Result) -> None:
        self._results[trial.key], self._rows[trial.key] = result, trial_rows(trial, result)

    def _remaining_time(self) -> str:
        """Return the remaining time as text, or "" if the time is unknown or under one minute."""
        num_run = len(self._results) - self._num_reused
        if not num_run:
            return ""
        seconds_per_run = (time.monotonic() - self._start_time) / num_run
        minutes = seconds_per_run * (self._num_planned - len(self._results)) / 60
        return f"; about {minutes:.0f} min left" if minutes >= 1 else ""

    def _resumable(self, folder: Path | None) -> Path | None:
        """Return the folder of a stopped run, or None if the run has no valid checkpoint and starts again."""
        if folder is None or not any(folder.glob("checkpoints/*.ckpt")):
            return None
        try:
            from_main(lambda: load_resume_checkpoint(folder) and None)
        except (InputError, PeerError) as error:
            self.problems.append(f"{error}; run again")
            return None
        return folder
