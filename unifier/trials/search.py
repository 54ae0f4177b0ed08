"""A search over settings with Optuna, whose study is stored in the comparison's folder."""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from unifier.comparison import Comparison, ExperimentFn
from unifier.heads.head import mean_score_percent, score_percent
from unifier.training.result import Result
from unifier.trials.plan import Trial, varied_settings
from unifier_tokenizers import InputError

if TYPE_CHECKING:
    from optuna.study import Study

SEARCH_FILE = "search.log"
"""The file with Optuna's studies in the comparison's folder, for `JournalStorage`."""


def plan_search(
    comparison: Comparison, result: Callable[[Trial], Result | None], file: Path | None = None
) -> Iterator[Trial | None]:
    """Yield the trials of a search: up to `comparison.search` combinations per experiment, each with every seed.

    A tree-structured Parzen estimator (Bergstra et al. 2011) proposes each combination from the mean validation scores
    so far. The seed of a proposal is its number, so an interrupted search resumes with the same combinations.

    Args:
        comparison: A comparison with a search.
        result: A function that returns the result of a trial, or None if the trial has not ended.
        file: The file that stores the studies, or None to keep them in memory.

    Yields:
        A trial, or None while the last trials are running.
    """
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise InputError("a search needs Optuna: pip install 'unifier-torch[sweeps]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = None if file is None else optuna.storages.JournalStorage(JournalFileBackend(str(file)))
    searches = list[_Search]()
    for make in comparison.experiments:
        study = optuna.create_study(
            study_name=make.__name__, storage=storage, direction="maximize", load_if_exists=True
        )
        searches.append(_Search(comparison, make, study))
        yield from searches[-1].plan(result)
    while not all(search.tell(result) for search in searches):
        yield None


@final
class _Search:
    """The search over the settings of one experiment."""

    def __init__(self, comparison: Comparison, make: ExperimentFn, study: "Study") -> None:
        self.make, self.seeds, self.study = make, comparison.seeds, study
        self.values = {name: list(comparison.grid[name]) for name in varied_settings(comparison.grid, make)}
        self.untried = list(itertools.product(*map(range, map(len, self.values.values()))))
        self.number = min(comparison.search or 0, len(self.untried))
        self.untold: dict[int, list[Trial]] = {}
        """The trials of each combination whose score is not known, keyed by its number in the study."""

    def plan(self, result: Callable[[Trial], Result | None]) -> Iterator[Trial]:
        """Yield the trials of all combinations, first of the combinations that the study already contains."""
        from optuna.trial import TrialState

        for earlier in self.study.get_trials(deepcopy=False):
            choices = tuple(earlier.params.values())
            if choices in self.untried and earlier.state != TrialState.WAITING:
                self.untried.remove(choices)
                trials = self._trials(earlier.params)
                if earlier.state == TrialState.RUNNING:
                    self.untold[earlier.number] = trials
                yield from trials
        all_choices = math.prod(map(len, self.values.values()))
        while all_choices - len(self.untried) < self.number:
            self.tell(result)
            yield from self._ask()

    def _ask(self) -> list[Trial]:
        """Return the trials of a new combination."""
        from optuna.distributions import CategoricalDistribution
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        number = len(self.study.get_trials(deepcopy=False))
        self.study.sampler = TPESampler(seed=number, constant_liar=True)
        choices = {name: CategoricalDistribution(range(len(options))) for name, options in self.values.items()}
        proposal = self.study.ask(dict(choices))
        if tuple(proposal.params.values()) not in self.untried:  # The sampler may propose a combination again.
            self.study.tell(proposal, state=TrialState.PRUNED)
            self.study.enqueue_trial(dict(zip(self.values, random.Random(number).choice(self.untried), strict=True)))
            proposal = self.study.ask(dict(choices))
        self.untried.remove(tuple(proposal.params.values()))
        self.untold[proposal.number] = self._trials(proposal.params)
        return self.untold[proposal.number]

    def _trials(self, params: dict[str, Any]) -> list[Trial]:
        varied = {name: self.values[name][params[name]] for name in self.values}
        return [Trial(experiments=(self.make,), seed=seed, varied=varied) for seed in self.seeds]

    def tell(self, result: Callable[[Trial], Result | None]) -> bool:
        """Tell the study the scores of combinations whose trials have ended. Return True if no score is missing."""
        from optuna.trial import TrialState

        for number, trials in [*self.untold.items()]:
            ended = [each for each in map(result, trials) if each is not None]
            if len(ended) < len(trials):
                continue
            del self.untold[number]
            scores = [validation_score(each) for each in ended if each.status == "finished"]
            # A combination with a failed seed is not chosen, even if the other seeds have good scores.
            if len(scores) == len(trials) and not math.isnan(sum(scores)):
                self.study.tell(number, sum(scores) / len(scores))
            else:
                self.study.tell(number, state=TrialState.FAIL)
        return not self.untold


def validation_score(result: Result) -> float:
    """Return the validation score that selects the best weights: the mean of the tasks' first metrics in percent.

    A higher score is better, also if the metrics are errors (see `score_percent`).
    """
    return mean_score_percent(_score_percent(result, task) for task in result.tasks)


def _score_percent(result: Result, task: str) -> float:
    prefix, data = f"val/{task}/", result.data[task]
    metric = next(name.removeprefix(prefix) for name in result.metrics if name.startswith(prefix))
    score_range = data.get("score_range") or {}
    return score_percent(
        result.metrics[prefix + metric],
        data["max_score"],
        lower_is_better=metric in data.get("lower_is_better", ()),
        chance=score_range["chance"] if score_range.get("metric") == metric else None,
    )
