"""A comparison: its trials one after the other, its rows in comparison.json.

Cross-validation: an experiment once for every fold of its data, as a comparison.

Which combination of settings to try next, by the scores so far (Optuna)."""

import itertools
import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unifier.comparison import Comparison
from unifier.files import new_folder, to_json, write_json
from unifier.heads.head import mean_score_percent
from unifier.report.page import write_report
from unifier.report.read_results import COMPARISON_TERMS
from unifier.training.artifacts import warn_on_error
from unifier.training.fit import RunContext
from unifier.training.loggers import RunLoggers, WeightsAndBiases, wandb_mode
from unifier.training.result import Interrupted, Result, Status
from unifier.trials.plan import Trial, plan_trials, varied_settings
from unifier.trials.trials import TrialRunner
from unifier.trials.trunk_similarity import compare_representations
from unifier_tokenizers import InputError


def compare(
    comparison: Comparison, settings: Mapping[str, Any], place: RunContext, resume: Path | None = None
) -> tuple[list[Result], Path]:
    """Run every trial; returns the results, and the comparison's folder.

    `settings` are those of the function that described the comparison, which repeat it. comparison.json is written anew
    after each run, report.html at the end. A run that fails on its way is a row that says so, and the others still run;
    one whose input is bad or whose disk is full, or that is interrupted, ends the comparison: with Interrupted of the
    comparison's own folder after Ctrl-C. Where the first cannot begin, nothing is left. An analysis or a page that
    fails at the end is a warning. `resume` is the folder of a comparison that ended early: what has finished there is
    not run again, and the run that was cut off, by whatever it was, goes on from its last checkpoint.
    """
    place = replace(place, group=comparison.name)
    trials = TrialRunner(comparison, place, resume)
    trials.check()
    folder = resume or new_folder(place.out / comparison.name)

    def write(status: Status, **found: Any) -> dict[str, Any]:
        content = {
            "name": comparison.name,
            "status": status,
            "question": comparison.question,
            "study": place.origin,
            "settings": settings,
            "seeds": list(comparison.seeds),
            **trials.terms,
            "problems": trials.problems,
            "rows": trials.all_rows(),
            **found,
        }
        write_json(folder / "comparison.json", content)
        return content

    write("running")
    try:
        planned = plan_trials(comparison) if comparison.search is None else plan_search(comparison, trials.result)
        for trial in planned:
            trials.run(trial, lambda: write("running"))
            write("running")
        representation, unread = list[dict[str, Any]](), list[str]()
        with warn_on_error(folder, "the similarity of its trunks"):
            representation, unread = compare_representations([row for row in trials.rows if is_finished(row)])
        trials.problems += unread
        whole = all(is_finished(row) for row in trials.rows)
        content = write("finished" if whole else "failed", rows=trials.rows, representation=representation)
    except BaseException as error:
        if isinstance(error, InputError) and not trials.rows and resume is None:
            shutil.rmtree(folder)
            raise
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            write("interrupted")
            raise Interrupted(folder) from None  # which is resumed, not the trial's
        write("failed")
        error.add_note(str(folder))
        raise
    try:
        with warn_on_error(folder, "report.html"):
            write_report(folder, content)
        log_comparison(folder, content, place)
    except KeyboardInterrupt:
        raise Interrupted(folder) from None
    return trials.results, folder


def is_finished(row: Mapping[str, Any]) -> bool:
    """Whether a row's run came to its end."""
    return row["result"]["status"] == "finished"


def log_comparison(folder: Path, content: dict[str, Any], place: RunContext) -> None:
    """Give the comparison's report to W&B, in its group, as an evaluation of its runs."""
    if place.wandb == "off":
        return
    terms = {name: content[name] for name in COMPARISON_TERMS}
    runs = {
        Path(row["folder"]).name: {
            "parameters": row["result"]["parameters"],
            "datasets": row["result"]["data"],
            "commit": row["result"]["commit"],
        }
        for row in content["rows"]
    }
    tracking = RunLoggers(folder, dict)
    tracking.add(
        lambda: WeightsAndBiases(
            folder,
            project=place.study,
            group=content["name"],
            job_type="evaluate",
            tags=["comparison"],
            config=to_json({**content["settings"], "seeds": content["seeds"], "trial": terms, "runs": runs}),
            mode=wandb_mode(place.wandb),
        )
    )
    tracking.log_artifacts(folder, {})
    tracking.close(failed=False)


def plan_search(comparison: Comparison, result: Callable[[Trial], Result | None]) -> Iterator[Trial]:
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
        values = {name: list(comparison.grid[name]) for name in varied_settings(comparison.grid, make)}
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
    """What selected the run's weights: the `mean_share` of the first metric of each task."""
    firsts = {task: next(m for m in result.metrics if m.startswith(f"val/{task}/")) for task in result.tasks}
    return mean_score_percent((result.metrics[name], result.data[task]["max_score"]) for task, name in firsts.items())
