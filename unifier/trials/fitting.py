"""Building and training of one trial of a comparison, in this process or in a process of a cluster."""

import json
from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, final

from unifier.comparison import SHARE, Comparison, ExperimentFn
from unifier.config import build_described, check_settings
from unifier.data.dataset import Subset
from unifier.data.prepare import EncodedTask
from unifier.experiment import Experiment
from unifier.training.fit import StartFn, fit
from unifier.training.result import Result, RunFailed
from unifier.training.run_context import RunContext, TrialContext
from unifier.training.start import load_start, part_classes
from unifier.trials.joint import budget_per_task, merge_experiments, shuffle, subtract_pretraining, with_budget
from unifier.trials.plan import (
    Trial,
    comparison_terms,
    experiment_settings,
    job_type,
    recorded_settings,
    trial_reference,
    varied_settings,
)
from unifier_tokenizers import InputError

BudgetGroup = tuple[Hashable, Hashable]
"""The value of a varied budget and the fold of a trial. Trials with equal values must have equal budgets."""


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
@dataclass(frozen=True, kw_only=True)
class Job:
    """A trial that is ready to run."""

    trial: Trial
    folder: Path
    """The comparison's folder."""
    resume: Path | None = None
    """The folder of the stopped run that the trial resumes, or None to start from the beginning."""
    start: Path | None = None
    """The folder of the run that has trained the initial trunk, or None for a random initial trunk."""


@final
class TrialFitter:
    """Object that builds and trains the trials of a comparison, and keeps their encoded data for later trials."""

    def __init__(self, comparison: Comparison, context: RunContext, fit: FitFn = fit) -> None:
        """Prepare to train trials.

        Args:
            comparison: The comparison.
            context: The context of all runs, with an empty field `trial`.
            fit: The function that trains an experiment.
        """
        self.comparison, self.context, self.fit = comparison, context, fit
        self.budgets: dict[BudgetGroup, tuple[str, float]] = {}
        """The first experiment of each group of comparable trials, and its budget per task."""
        self._encoded: dict[tuple[tuple[str, str], ...], dict[str, EncodedTask]] = {}
        self._classes: set[type] = set()
        """The classes of all experiments so far, with which the models of the trials are read."""
        self._built: set[ExperimentFn] = set()

    def run(self, job: Job, on_start: Callable[[Result], object]) -> Result:
        """Train a trial, and return its result. A failure in training is part of the result.

        Args:
            job: The trial.
            on_start: A function that is called with the unfinished result when the run's folder has been created.

        Raises:
            InputError, Interrupted, OSError: The input is wrong, training was interrupted, or the disk is full.
        """
        trial = job.trial
        row = {**trial.row(), **comparison_terms(self.comparison)}
        context = replace(
            self.context,
            job_type=job_type(self.comparison, trial),
            origin=trial_reference(trial),
            trial=TrialContext(self.comparison.name, job.folder, row),
            name=None,
        )
        try:
            return self.fit(
                lambda: self.build(trial, job.start),
                recorded_settings(self.comparison, trial),
                trial.seed,
                context,
                resume=job.resume,
                encoded_tasks=self._encoded_tasks(trial),
                on_start=on_start,
                start=lambda experiment: self._load_start(experiment, job),
            )
        except RunFailed as failure:
            return failure.result

    def build(self, trial: Trial, start: Path | None = None) -> Experiment:
        """Build the experiment of a trial.

        Args:
            trial: The trial.
            start: The folder of the run that has trained the initial trunk. If tokenizers are handed over, recipes take
                over the vocabularies of this run.

        Raises:
            InputError: The parts of the experiment are incompatible.
        """
        if trial.mode == "showcase":
            (make,) = trial.experiments
            return replace(build_described(make, check_settings(make, {}), Experiment), name=make.__name__)
        parts = [self._build_part(make, trial, start) for make in trial.experiments]
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

    def _load_start(self, experiment: Experiment, job: Job) -> dict[str, Any]:
        """Load the initial weights of a trial, and return the lineage of its run.

        The entry `counted` of the lineage is True if the budget counts the cost of the earlier training.
        """
        trial = job.trial
        if (start := trial.start_trial()) is not None:
            for make in () if start.experiments[0] in self._built else start.experiments:
                self._build_part(make, start)
            training = replace(
                experiment.training, start=str(job.start), start_tokenizers=self.comparison.start_tokenizers
            )
            lineage = load_start(replace(experiment, training=training), self._classes)
        else:
            lineage = load_start(experiment)
        if trial.shuffled:
            shuffle(experiment.trunk, trial.seed)
        is_counted = self.comparison.count_pretraining and trial.mode != "transfer"
        return {**lineage, "counted": is_counted} if lineage else {}

    def _build_part(self, make: ExperimentFn, trial: Trial, start: Path | None = None) -> Experiment:
        """Build one experiment, named after its function, with the budget of the comparison (see `build`)."""
        hands_over = start is not None and self.comparison.start_tokenizers
        earlier = {"start": str(start), "start_tokenizers": True} if hands_over else {}
        settings = experiment_settings(self.comparison, make, {**trial.varied, **earlier})
        experiment = replace(build_described(make, settings, Experiment), name=make.__name__)
        if hands_over:  # `_load_start` loads the weights, because a transfer may also shuffle the trunk.
            experiment = replace(experiment, training=replace(experiment.training, start=None))
        if "transfer" in self.comparison.modes and experiment.trunk.pretrained:
            raise InputError(
                f"transfer: the trunk of {make.__name__} is pretrained, but the controls need random trunks"
            )
        if "transfer" in self.comparison.modes and (given := experiment.training.start) is not None:
            raise InputError(f"transfer: {make.__name__} starts from {given}, but the controls need random trunks")
        self._classes |= part_classes(experiment)
        self._built.add(make)
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
            self.check_budgets({(trial.varied.get(unit), trial.varied.get("fold")): (make.__name__, budget)})
        return with_budget(experiment, unit, budget)

    def check_budgets(self, budgets: Mapping[BudgetGroup, tuple[str, float]]) -> None:
        """Raise InputError if the budget of an experiment differs from the budget of an earlier experiment.

        Args:
            budgets: The name and the budget per task of an experiment, for each group of comparable trials.
        """
        for group, (name, budget) in budgets.items():
            first, expected = self.budgets.setdefault(group, (name, budget))
            if budget != expected:
                raise InputError(
                    f"{first} trains for {expected:,.0f} {self.comparison.budget_unit} per task, but {name} for "
                    f"{budget:,.0f}: give all experiments the same budget"
                )

    def _encoded_tasks(self, trial: Trial) -> MutableMapping[str, EncodedTask]:
        """Return the encoded tasks of an earlier trial with the same settings.

        Encoded tasks with other settings are deleted to save memory.
        """
        seed = {"seed": trial.seed} if SHARE in trial.varied else {}
        hands_over = trial.start is not None and self.comparison.start_tokenizers
        start = {"start": trial.start.__name__} if trial.start is not None and hands_over else {}
        keys = tuple(
            (make.__name__, json.dumps({**varied_settings(trial.varied, make), **seed, **start}, default=str))
            for make in trial.experiments
        )
        alone = [(key,) for key in keys]
        unused = [cached for cached in self._encoded if cached not in (keys, *alone)]
        for cached in unused[: -len(self.comparison.experiments)]:
            del self._encoded[cached]
        return ChainMap(self._encoded.setdefault(keys, {}), *(self._encoded.get(key, {}) for key in alone))
