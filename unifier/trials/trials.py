"""Building, running and recording of the trials of a comparison. Finished trials are not run again."""

import json
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol, final

from unifier.comparison import SHARE, Comparison, ExperimentFn
from unifier.config import build_described, check_settings
from unifier.data.dataset import Subset
from unifier.data.prepare import EncodedTask
from unifier.experiment import Experiment
from unifier.files import print_status, read_json
from unifier.folders import RUN_ID, TRIALS_FOLDER, find_run_folder
from unifier.report.read_results import find_changed_data
from unifier.training.checkpoint import load_resume_checkpoint
from unifier.training.fit import RunContext, StartFn, TrialContext, fit
from unifier.training.result import Interrupted, Result, RunFailed
from unifier.training.start import load_start, part_classes
from unifier.trials.joint import budget_per_task, merge_experiments, shuffle, subtract_pretraining, with_budget
from unifier.trials.plan import (
    Trial,
    comparison_terms,
    count_trials,
    describe_trial,
    experiment_settings,
    first_varied,
    job_type,
    plan_trials,
    recorded_settings,
    trial_key,
    trial_reference,
    trial_rows,
    varied_settings,
)
from unifier_tokenizers import InputError


class FitFn(Protocol):
    """A function that trains one experiment, such as `unifier.training.fit.fit`."""

    def __call__(
        self,
        build: Callable[[], Experiment],
        settings: Mapping[str, Any],
        seed: int,
        context: RunContext,
        resume: Path | None = None,
        encoded_tasks: MutableMapping[str, EncodedTask] | None = None,
        on_start: Callable[[Result], object] = ...,
        *,
        start: StartFn = ...,
    ) -> Result:
        """Train the experiment and return its result. See `unifier.training.fit.fit` for the arguments."""
        ...


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
    """Runner of a comparison's trials. Results, rows and encoded data are stored for later trials."""

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
        self.comparison, self.context, self.fit = comparison, context, fit
        self._start_time = time.monotonic()
        self._earlier = EarlierTrials() if resume is None else read_earlier_trials(resume, comparison)
        self.problems = self._earlier.problems
        self._results: dict[str, Result] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        """The rows of each finished, failed or running trial, keyed by `Trial.key`."""
        if resume is not None:
            remove_leftovers(resume, self.all_rows())
        self._num_reused = 0
        self._num_planned = count_trials(comparison)
        self._encoded: dict[tuple[tuple[str, str], ...], dict[str, EncodedTask]] = {}
        self._budgets: dict[Any, tuple[str, float]] = {}
        self._classes: set[type] = set()
        """The classes of all experiments so far, with which the models of the trials are read."""
        for make in comparison.experiments:
            experiment_settings(comparison, make, first_varied(comparison))

    @property
    def results(self) -> list[Result]:
        """The results so far, in the order of the plan."""
        return list(self._results.values())

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the trials in `results`, in the order of `results`."""
        return [row for key in self._results for row in self._rows[key]]

    def all_rows(self) -> list[dict[str, Any]]:
        """Return all rows so far, followed by earlier rows of trials that will run later."""
        return [row for rows in (self._earlier.rows | self._rows).values() for row in rows]

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
                self.build(trial)

    def run(self, trial: Trial, folder: Path, on_start: Callable[[], object] = lambda: None) -> None:
        """Run a trial that has not been run. A failure in training is recorded in the trial's rows.

        Args:
            trial: The trial.
            folder: The comparison's folder.
            on_start: A function that is called when the rows contain the run's folder. The function must write the
                rows, because a killed run can resume only from written rows.

        Raises:
            InputError: The data have changed since the earlier trials. The data are checked before training.
            Interrupted, OSError: Training was interrupted, or the disk is full.
        """
        if trial.key in self._results:
            return
        if finished := self._earlier.finished(trial.key):
            self._num_reused += 1
            self._record(trial, finished)
            return
        start = trial.start_trial()
        if start is not None and self._results[start.key].status != "finished":
            self.problems.append(f"{describe_trial(trial)}: left out, because its initial trunk was not fully trained")
            return
        number = len(self._results) + 1
        print_status(f"run {number} of {self._num_planned}: {describe_trial(trial)}{self._remaining_time()}")

        def record_start(result: Result) -> None:
            rows = trial_rows(trial, result)
            if changed := find_changed_data([*self._earlier.finished_rows(), *rows]):
                raise InputError(f"{changed[0]}: this comparison cannot continue, so start a new one")
            self._rows[trial.key] = rows
            on_start()
            remove_leftovers(folder, self.all_rows())

        row = {**trial.row(), **comparison_terms(self.comparison)}
        context = replace(
            self.context,
            job_type=job_type(self.comparison, trial),
            origin=trial_reference(trial),
            trial=TrialContext(self.comparison.name, folder, row),
            name=None,
        )
        try:
            result = self.fit(
                lambda: self.build(trial),
                recorded_settings(self.comparison, trial),
                trial.seed,
                context,
                resume=self._resume_folder(trial),
                encoded_tasks=self._encoded_tasks(trial),
                on_start=record_start,
                start=lambda experiment: self._load_start(experiment, trial),
            )
        except RunFailed as failure:
            result = failure.result
        except InputError:  # The run cannot resume, because the user must change the data.
            self._rows.pop(trial.key, None)
            raise
        except Interrupted as interruption:
            with suppress(InputError):  # On a full disk, the run has no result.json.
                self._record(trial, Result.read(interruption.folder))
            raise
        self._record(trial, result)

    def build(self, trial: Trial) -> Experiment:
        """Build the experiment of a trial.

        Raises:
            InputError: The parts of the experiment are incompatible.
        """
        if trial.mode == "showcase":
            (make,) = trial.experiments
            return replace(build_described(make, check_settings(make, {}), Experiment), name=make.__name__)
        parts = [self._build_part(make, trial) for make in trial.experiments]
        if trial.mode == "joint":
            joint = merge_experiments(parts)
            training = replace(
                joint.training,
                sampling_temperature=self.comparison.sampling_temperature,
                loss_weighting=self.comparison.loss_weighting,
            )
            experiment = replace(joint, training=training)
        else:
            experiment = parts[0]
        if trial.mode == "transfer":
            return replace(experiment, training=replace(experiment.training, trainable=trial.trainable))
        if self.comparison.count_pretraining:
            return subtract_pretraining(experiment, self.comparison.budget_unit)
        return experiment

    def _load_start(self, experiment: Experiment, trial: Trial) -> dict[str, Any]:
        """Load the initial weights of a trial, and return the lineage of its run.

        The entry `counted` of the lineage is True if the budget counts the cost of the earlier training.
        """
        if (start := trial.start_trial()) is not None:
            folder, tokenizers = str(self._results[start.key].folder), self.comparison.start_tokenizers
            training = replace(experiment.training, start=folder, start_tokenizers=tokenizers)
            lineage = load_start(replace(experiment, training=training), self._classes)
        else:
            lineage = load_start(experiment)
        if trial.shuffled:
            shuffle(experiment.trunk, trial.seed)
        is_counted = self.comparison.count_pretraining and trial.mode != "transfer"
        return {**lineage, "counted": is_counted} if lineage else {}

    def _build_part(self, make: ExperimentFn, trial: Trial) -> Experiment:
        """Build one experiment, named after its function, with the budget of the comparison."""
        settings = experiment_settings(self.comparison, make, trial.varied)
        experiment = replace(build_described(make, settings, Experiment), name=make.__name__)
        if "transfer" in self.comparison.modes and experiment.trunk.pretrained:
            raise InputError(
                f"transfer: the trunk of {make.__name__} is pretrained, but the controls need random trunks"
            )
        if "transfer" in self.comparison.modes and (start := experiment.training.start) is not None:
            raise InputError(f"transfer: {make.__name__} starts from {start}, but the controls need random trunks")
        self._classes |= part_classes(experiment)
        if self.comparison.search is not None and experiment.training.refit:
            raise InputError(f"search={self.comparison.search}: a search needs validation scores: give refit=false")
        if SHARE in trial.varied:
            tasks = {
                name: replace(task, source=Subset(task.source, trial.varied[SHARE], trial.seed))
                for name, task in experiment.tasks.items()
            }
            experiment = replace(experiment, tasks=tasks)
        unit, budget = self.comparison.budget_unit, self.comparison.budget
        if budget is None:
            budget = budget_per_task(experiment, unit)
            # Folds may differ in size, so budgets are compared only within one fold and one value of a varied budget.
            group = trial.varied.get(unit), trial.varied.get("fold")
            first, expected = self._budgets.setdefault(group, (make.__name__, budget))
            if budget != expected:
                raise InputError(
                    f"{first} trains for {expected:,.0f} {unit} per task, but {make.__name__} for {budget:,.0f}: "
                    f"give all experiments the same budget"
                )
        return with_budget(experiment, unit, budget)

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

    def _resume_folder(self, trial: Trial) -> Path | None:
        """Return the folder of the stopped run that a trial resumes, or None if the trial starts from the beginning."""
        folder = self._earlier.unfinished.get(trial.key)
        if folder is None or not any(folder.glob("checkpoints/*.ckpt")):
            return None
        try:
            load_resume_checkpoint(folder)
        except InputError as error:
            self.problems.append(f"{error}; run again")
            return None
        return folder

    def _encoded_tasks(self, trial: Trial) -> MutableMapping[str, EncodedTask]:
        """Return the encoded tasks of an earlier trial with the same settings.

        Encoded tasks with other settings are deleted to save memory.
        """
        seed = {"seed": trial.seed} if SHARE in trial.varied else {}
        keys = tuple(
            (make.__name__, json.dumps({**varied_settings(trial.varied, make), **seed}, default=str))
            for make in trial.experiments
        )
        alone = [(key,) for key in keys]
        unused = [cached for cached in self._encoded if cached not in (keys, *alone)]
        for cached in unused[: -len(self.comparison.experiments)]:
            del self._encoded[cached]
        return ChainMap(self._encoded.setdefault(keys, {}), *(self._encoded.get(key, {}) for key in alone))
