"""The trials of a comparison: each one's experiment built from its parts, run, and kept as rows."""

import json
import time
from collections import ChainMap
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, final

from unifier.comparison import SHARE, Comparison, ExperimentFn, to_python
from unifier.config import build_described, check_settings, experiment_reference
from unifier.data.dataset import Subset
from unifier.data.prepare import EncodedTask
from unifier.experiment import Experiment
from unifier.files import print_status, read_json, to_json
from unifier.report.conditions import condition_label
from unifier.report.read_results import COMPARISON_TERMS, find_changed_data, run_folder
from unifier.training.checkpoint import load_resume_checkpoint, read_checkpoint
from unifier.training.fit import RunContext, fit
from unifier.training.result import Interrupted, Result, RunFailed
from unifier.trials.joint import budget_per_task, load_trunk, merge_experiments, shuffle, with_budget, with_trainable
from unifier.trials.plan import (
    Trial,
    count_trials,
    first_varied,
    plan_trials,
    trial_key,
    trial_settings,
    varied_settings,
)
from unifier_tokenizers import InputError


def describe_trial(trial: Trial) -> str:
    """What is trained, how, in the words of the report's tables, and its seed."""
    names = " + ".join(make.__name__ for make in trial.experiments)
    return f"{names} ({condition_label(trial.row())}), seed {trial.seed}"


def comparison_terms(comparison: Comparison) -> dict[str, Any]:
    """What all tasks are held to, as comparison.json says it."""
    return to_json({name: to_python(getattr(comparison, name)) for name in COMPARISON_TERMS})


def trial_rows(trial: Trial, result: Result) -> list[dict[str, Any]]:
    """A trial's rows of comparison.json, one for each task."""
    about = {"folder": str(result.folder), "result": result.content()}
    return [{**trial.row(), "task": task, **about} for task in result.tasks]


@final
class TrialRunner:
    """What has been run so far, and what later trials need of it: results, trained trunks, encoded data."""

    def __init__(self, comparison: Comparison, place: RunContext, resume: Path | None = None) -> None:
        """`resume` is the folder of the same comparison when it ended early: its rows are looked up there."""
        self.comparison, self.place = comparison, place
        self.terms = comparison_terms(comparison)
        self.problems: list[str] = []
        self.began = time.monotonic()
        self._taken_up = 0
        self._done: dict[str, Result] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {}
        """Those of what is done, by what tells it apart, and of what is under way."""
        self._known: dict[tuple[tuple[str, str], ...], dict[str, EncodedTask]] = {}
        self._budgets: dict[Any, tuple[str, float]] = {}
        self._earlier: dict[str, Result] = {}
        self._earlier_rows: dict[str, list[dict[str, Any]]] = {}
        self._stopped: dict[str, Path] = {}
        if resume is not None:
            self._take_up(resume)
        self._planned = count_trials(comparison)
        for make in comparison.experiments:
            check_settings(make, trial_settings(comparison, make, first_varied(comparison)))

    def _take_up(self, folder: Path) -> None:
        """Read what the runs of a comparison's folder gave; one that is gone or broken is a problem, and run again."""
        earlier = read_json(folder / "comparison.json", name=str, rows=list)
        if earlier["name"] != self.comparison.name:
            raise InputError(
                f'{folder} is a comparison "{earlier["name"]}", and cannot resume as "{self.comparison.name}"'
            )
        for name, now in self.terms.items():
            if (before := earlier.get(name, now)) != now:  # older folders tell less
                raise InputError(
                    f"{folder} was started with {name}={before}, and cannot resume with {name}={now}: start a new one"
                )
        for row in earlier["rows"]:
            try:
                key, place, status = trial_key(row), row["folder"], row["result"]["status"]
            except (KeyError, TypeError) as error:
                said = f"lacks {error}" if isinstance(error, KeyError) else "is no object"
                self.problems.append(f"{folder / 'comparison.json'}: broken (a row {said}); run again")
                continue
            self._earlier_rows.setdefault(key, []).append(row)
            place = run_folder(place, folder) or Path(place)
            try:
                self._earlier[key] = Result.read(place)
            except InputError as error:
                if status != "running":  # which writes it at its end
                    self.problems.append(f"{error}; run again")
                    continue
            if status in ("running", "interrupted"):
                self._stopped[key] = place

    def check(self) -> None:
        """Build what is run first of each of several experiments, before any is trained.

        Raises InputError where two cannot be matched, or not be trained together.
        """
        several = len(self.comparison.experiments)
        for trial in islice(plan_trials(self.comparison), several + 1 if several > 1 else 0):
            if trial.mode != "transfer" and trial.seed == self.comparison.seeds[0]:
                self.build(trial)

    @property
    def results(self) -> list[Result]:
        """Those of what is done, in order."""
        return list(self._done.values())

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Those of what is done, in order."""
        return [row for key in self._done for row in self._rows[key]]

    def result(self, trial: Trial) -> Result | None:
        """What a trial gave, where it has been run."""
        return self._done.get(trial_key(trial.row()))

    def run(self, trial: Trial, began: Callable[[], object] = lambda: None) -> None:
        """Run a trial, unless it has been; a run that fails on its way is a row, all else is raised as by `fit`.

        `began` is called once its rows say where it is, so that it can go on whatever ends the program. Raises
        InputError before it trains where its data are not those of a comparison that goes on.
        """
        key = trial_key(trial.row())
        if key in self._done:
            return
        earlier = self._earlier.get(key)
        if earlier is not None and earlier.status == "finished":
            self._taken_up += 1
            self._keep(trial, earlier)
            return
        if trial.start is not None and self._start_of(trial).status != "finished":
            self.problems.append(f"{describe_trial(trial)}: left out, for the run it begins from did not finish")
            return
        print_status(f"run {len(self._done) + 1} of {self._planned}: {describe_trial(trial)}{self._left()}")
        stopped_at = self._stopped.get(key)
        if stopped_at is not None and not (stopped_at / "checkpoints" / "last.ckpt").exists():
            stopped_at = None  # before its first step
        if stopped_at is not None:
            try:
                load_resume_checkpoint(stopped_at)
            except InputError as error:
                self.problems.append(f"{error}; run again")
                stopped_at = None

        def begin(result: Result) -> None:
            own = trial_rows(trial, result)
            if changed := find_changed_data([*self._finished_before(), *own]):
                raise InputError(f"{changed[0]}: this comparison cannot go on, start a new one")
            self._rows[key] = own
            began()

        try:
            result = fit(
                lambda: self.build(trial),
                self._settings(trial),
                trial.seed,
                replace(
                    self.place,
                    job_type=self._job(trial),
                    origin=self._origin(trial),
                    trial={**trial.row(), **self.terms},
                ),
                resume=stopped_at,
                encoded_tasks=self._data(trial),
                on_start=begin,
            )
        except RunFailed as failure:
            result = failure.result
        except InputError:  # what is bad has to be mended, and is other data then
            self._rows.pop(key, None)
            raise
        except Interrupted as stopped:
            self._keep(trial, Result.read(stopped.folder))
            raise
        self._keep(trial, result)

    def _finished_before(self) -> list[dict[str, Any]]:
        """The rows of a comparison that goes on whose runs need not be run again."""
        finished = [key for key, earlier in self._earlier.items() if earlier.status == "finished"]
        return [row for key in finished for row in self._earlier_rows[key]]

    def all_rows(self) -> list[dict[str, Any]]:
        """The rows so far, and those of a comparison that goes on whose trials have not been reached again."""
        return [row for rows in (self._earlier_rows | self._rows).values() for row in rows]

    def _keep(self, trial: Trial, result: Result) -> None:
        key = trial_key(trial.row())
        self._done[key], self._rows[key] = result, trial_rows(trial, result)

    def _left(self) -> str:
        """How long the rest will take, told by the runs so far."""
        run = len(self._done) - self._taken_up
        if not run:
            return ""
        minutes = (time.monotonic() - self.began) / run * (self._planned - len(self._done)) / 60
        return f"; about {minutes:.0f} min left" if minutes >= 1 else ""

    def build(self, trial: Trial) -> Experiment:
        """What a trial trains; raises InputError where its parts do not fit each other."""
        parts = [self._part(make, trial) for make in trial.experiments]
        if trial.mode == "joint":
            joint = merge_experiments(parts)
            shared = replace(
                joint.training,
                sampling_temperature=self.comparison.sampling_temperature,
                loss_weighting=self.comparison.loss_weighting,
            )
            return replace(joint, training=shared)
        experiment = parts[0]
        if trial.mode == "solo":
            return experiment
        if trial.start is not None:
            best = read_checkpoint(self._start_of(trial).folder / "checkpoints" / "best.ckpt")
            weights = {n.removeprefix("trunk."): w for n, w in best["state_dict"].items() if n.startswith("trunk.")}
            load_trunk(experiment.trunk, weights, start=trial.start.__name__)
        if trial.shuffled:
            shuffle(experiment.trunk, trial.seed)
        return with_trainable(experiment, trial.trainable)

    def _part(self, make: ExperimentFn, trial: Trial) -> Experiment:
        """One experiment with the budget that all tasks have, called as its rows call it."""
        experiment = replace(build_described(make, self._own(make, trial), Experiment), name=make.__name__)
        if "transfer" in self.comparison.modes and experiment.trunk.pretrained:
            raise InputError(f"transfer: the trunk of {make.__name__} is trained before, so its control is not random")
        if self.comparison.search is not None and experiment.training.refit:
            raise InputError(f"search={self.comparison.search}: with refit=true no validation is left to choose by")
        if SHARE in trial.varied:
            share = trial.varied[SHARE]
            chosen = {name: Subset(task.source, share, trial.seed) for name, task in experiment.tasks.items()}
            tasks = {name: replace(task, source=chosen[name]) for name, task in experiment.tasks.items()}
            experiment = replace(experiment, tasks=tasks)
        unit, amount = self.comparison.budget_unit, self.comparison.budget
        if amount is None:
            amount = budget_per_task(experiment, unit)
            # A fold's budget is its own: where folds differ in size, so do as many passes over them.
            alike = trial.varied.get(unit), trial.varied.get("fold")
            name, other = self._budgets.setdefault(alike, (experiment.name, amount))
            if amount != other:
                raise InputError(
                    f"{name} stops at {other:,.0f} {unit} an task and {experiment.name} at {amount:,.0f}: "
                    f"give the comparison one budget for all"
                )
        return with_budget(experiment, unit, amount)

    def _own(self, make: ExperimentFn, trial: Trial) -> dict[str, Any]:
        """An experiment's settings in a trial, defaults filled in."""
        return check_settings(make, trial_settings(self.comparison, make, trial.varied))

    def _settings(self, trial: Trial) -> dict[str, Any]:
        own = {make.__name__: self._own(make, trial) for make in trial.experiments}
        shares = {SHARE: trial.varied[SHARE]} if SHARE in trial.varied else {}
        return {**(own if trial.mode == "joint" else own[trial.name]), **shares}

    def _data(self, trial: Trial) -> MutableMapping[str, EncodedTask]:
        """The encoded tasks of a trial's experiments, as far as a run before it had the same ones."""
        drawn = {"seed": trial.seed} if SHARE in trial.varied else {}
        keys = tuple(
            (make.__name__, json.dumps({**varied_settings(trial.varied, make), **drawn}, default=str))
            for make in trial.experiments
        )
        alone = [(key,) for key in keys]
        for old in [known for known in self._known if known not in (keys, *alone)][: -len(self.comparison.experiments)]:
            del self._known[old]  # one value of what varies is done after the other
        return ChainMap(self._known.setdefault(keys, {}), *(self._known.get(key, {}) for key in alone))

    def _start_of(self, trial: Trial) -> Result:
        assert trial.start is not None
        start = Trial(experiments=(trial.start,), seed=trial.seed, varied=varied_settings(trial.varied, trial.start))
        return self._done[trial_key(start.row())]

    def _origin(self, trial: Trial) -> str | list[str]:
        origins = [experiment_reference(make) for make in trial.experiments]
        return origins if trial.mode == "joint" else origins[0]

    def _job(self, trial: Trial) -> str:
        if trial.mode == "transfer":
            return "transfer"
        return "pretrain" if trial.mode == "solo" and "transfer" in self.comparison.modes else "train"
