"""Which combination of settings to try next, by the scores so far (Optuna)."""

import itertools
import math
import random
from collections.abc import Callable, Iterator

from unifier.heads.head import mean_share
from unifier.running.result import Result
from unifier.study.comparison import Comparison, Trial, varied_of
from unifier_tokenizers import InputError


def searched(comparison: Comparison, result: Callable[[Trial], Result | None]) -> Iterator[Trial]:
    """For each experiment `comparison.search` unlike combinations, each with every seed, or all if there are no more.

    `result` says what a trial gave. Chosen by the mean validation score with a tree-structured Parzen estimator
    (Bergstra et al. 2011), whose own seed is 0: the same scores make the same search, so one that was interrupted goes
    the same way again.
    """
    try:
        import optuna
    except ImportError:
        raise InputError("a search needs Optuna: pip install 'unifier[sweeps]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for make in comparison.experiments:
        values = {name: list(comparison.vary[name]) for name in varied_of(comparison.vary, make)}
        places = {
            name: optuna.distributions.CategoricalDistribution(range(len(of_one))) for name, of_one in values.items()
        }
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        untried = list(itertools.product(*map(range, map(len, values.values()))))
        draw = random.Random(0)
        for _ in range(min(comparison.search or 0, len(untried))):
            asked = study.ask(dict(places))
            if tuple(asked.params.values()) not in untried:  # the sampler may ask for one again
                study.tell(asked, state=optuna.trial.TrialState.PRUNED)
                study.enqueue_trial(dict(zip(values, draw.choice(untried), strict=True)))
                asked = study.ask(dict(places))
            untried.remove(tuple(asked.params.values()))
            varied = {name: values[name][place] for name, place in asked.params.items()}
            trials = [Trial(experiments=(make,), seed=seed, varied=varied) for seed in comparison.seeds]
            yield from trials
            scores = [validation_score(found) for found in map(result, trials) if found and found.status == "finished"]
            if len(scores) == len(trials) and not math.isnan(sum(scores)):  # one that at times diverges is no choice
                study.tell(asked, sum(scores) / len(scores))
            else:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)


def validation_score(result: Result) -> float:
    """What selected the run's weights: the `mean_share` of the first metric of each arm."""
    firsts = {arm: next(m for m in result.metrics if m.startswith(f"val/{arm}/")) for arm in result.arms}
    return mean_share((result.metrics[name], result.data[arm]["perfect"]) for arm, name in firsts.items())
