"""Execution of a comparison: its trials, a search over settings (Optuna), comparison.json and the report."""

import itertools
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from unifier.comparison import Comparison
from unifier.data.source import starting_folders
from unifier.files import to_json, write_sealed_json
from unifier.folders import chosen_name, lock_folder, new_folder, tracking_id
from unifier.heads.head import mean_score_percent, score_percent
from unifier.report.conclusions import conclusions
from unifier.report.page import write_report
from unifier.report.read_results import COMPARISON_TERMS, collect_results
from unifier.training.artifacts import warn_on_error
from unifier.training.experiment_copy import copy_experiment
from unifier.training.fit import RunContext, fit
from unifier.training.loggers import RunLoggers, TrackedRun
from unifier.training.result import Interrupted, Result, Status
from unifier.training.trackers import add_trackers
from unifier.trials.plan import Trial, comparison_terms, plan_trials, varied_settings
from unifier.trials.trials import FitFn, TrialRunner
from unifier.trials.trunk_similarity import compare_representations
from unifier_tokenizers import InputError


def compare(
    comparison: Comparison,
    settings: Mapping[str, Any],
    context: RunContext,
    resume: Path | None = None,
    *,
    fit: FitFn = fit,
) -> tuple[list[Result], Path]:
    """Run every trial of a comparison in a separate folder.

    comparison.json is written after each run, and report.html at the end. If a run fails in training, the failure is
    recorded, and the comparison continues. Bad input, a full disk or Ctrl-C stops the comparison. If an analysis or the
    report fails, a warning is printed. If bad input prevents the first run, the comparison's folder is removed.

    Args:
        comparison: The comparison.
        settings: The settings with which the comparison can be repeated, for comparison.json.
        context: The context of all runs, with an empty field `trial`.
        resume: The folder of a stopped comparison that is resumed. Finished trials are not run again. The stopped run
            resumes from the last checkpoint.
        fit: The function that trains an experiment.

    Returns:
        The results, and the comparison's folder.

    Raises:
        Interrupted: The user pressed Ctrl-C. The attribute `folder` of the exception is the comparison's folder.
        InputError, OSError: The user must change the input, or free space on the disk.
    """
    with ExitStack() as lock:
        if resume is not None:
            lock.enter_context(lock_folder(resume))
        runner = TrialRunner(comparison, context, resume, fit)
        runner.check()
        folder = resume or lock.enter_context(new_folder(context.out / comparison.name, name=context.name))
        return _run_trials(runner, comparison, settings, context, folder, resume)


def _run_trials(
    runner: TrialRunner,
    comparison: Comparison,
    settings: Mapping[str, Any],
    context: RunContext,
    folder: Path,
    resume: Path | None,
) -> tuple[list[Result], Path]:
    def write(status: Status, **more: Any) -> dict[str, Any]:
        content = {
            "name": comparison.name,
            "status": status,
            "question": comparison.question,
            "study": context.origin,
            "settings": settings,
            "seeds": list(comparison.seeds),
            **starting_folders(),
            **comparison_terms(comparison),
            "problems": runner.problems,
            "rows": runner.all_rows(),
            **more,
        }
        write_sealed_json(folder / "comparison.json", content)
        return content

    try:
        write("running")
        planned = plan_trials(comparison) if comparison.search is None else plan_search(comparison, runner.result)
        for trial in planned:
            runner.run(trial, folder, lambda: write("running"))
            write("running")
        similarities, unread = list[dict[str, Any]](), list[str]()
        with warn_on_error(folder, "the similarity of its trunks"):
            similarities, unread = compare_representations(folder, [row for row in runner.rows if is_finished(row)])
        runner.problems += unread
        status = "finished" if all(map(is_finished, runner.rows)) else "failed"
        content = write(status, rows=runner.rows, representation=similarities)
    except BaseException as error:
        is_started = (folder / "comparison.json").exists()
        if resume is None and not (is_started and (runner.rows or not isinstance(error, InputError))):
            shutil.rmtree(folder)
            raise
        is_stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        with suppress(OSError):  # On a full disk, the earlier file remains, from which the comparison can resume.
            write("interrupted" if is_stopped else "failed")
        if is_stopped:
            raise Interrupted(folder) from None  # The user resumes the comparison, not the stopped run.
        error.add_note(str(folder))
        raise
    try:
        with warn_on_error(folder, "report.html"):
            write_report(folder, content)
        log_comparison(folder, content, context)
    except KeyboardInterrupt:
        raise Interrupted(folder) from None
    return runner.results, folder


def is_finished(row: Mapping[str, Any]) -> bool:
    """Return True if the run of a row has finished."""
    return row["result"]["status"] == "finished"


def log_comparison(folder: Path, content: Mapping[str, Any], context: RunContext) -> None:
    """Log a comparison's conclusions and report to the trackers, in the group of the comparison's runs."""
    if context.wandb == "off" and not context.loggers:
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
    loggers = RunLoggers(folder, dict)
    tracked = TrackedRun(
        folder=folder,
        id=tracking_id(folder),
        name=chosen_name(folder) or content["name"],
        project=context.study,
        group=tracking_id(folder),
        job_type="evaluate",
        tags=["comparison"],
        config=to_json({**content["settings"], "seeds": content["seeds"], "trial": terms, "runs": runs}),
        sources=list(copy_experiment(context.origin, folder)),
    )
    add_trackers(loggers, tracked, context.wandb, context.loggers)
    values = dict[str, float]()
    with warn_on_error(folder, "its conclusions"):
        values = conclusions(collect_results(folder, content))
    loggers.log_scalars(values)
    loggers.log_artifacts(folder, values)
    ended = Counter(row["result"]["status"] for row in {row["folder"]: row for row in content["rows"]}.values())
    counts = ", ".join(f"{count} {status}" for status, count in ended.items())
    loggers.alert(f"{content['name']}: {content['status']}", f"runs: {counts}", failed=content["status"] != "finished")
    loggers.close(failed=False)


def plan_search(comparison: Comparison, result: Callable[[Trial], Result | None]) -> Iterator[Trial]:
    """Yield the trials of a search: up to `comparison.search` combinations per experiment, each with every seed.

    A tree-structured Parzen estimator (Bergstra et al. 2011) proposes each combination from the mean validation scores
    so far. The estimator has a fixed seed, so an interrupted search resumes with the same combinations.

    Args:
        comparison: A comparison with a search.
        result: A function that returns the result of a trial, or None if the trial has not been run.
    """
    try:
        import optuna
    except ImportError:
        raise InputError("a search needs Optuna: pip install 'unifier[sweeps]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for make in comparison.experiments:
        values = {name: list(comparison.grid[name]) for name in varied_settings(comparison.grid, make)}
        choices = {
            name: optuna.distributions.CategoricalDistribution(range(len(options))) for name, options in values.items()
        }
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        untried = list(itertools.product(*map(range, map(len, values.values()))))
        generator = random.Random(0)
        for _ in range(min(comparison.search or 0, len(untried))):
            proposal = study.ask(dict(choices))
            if tuple(proposal.params.values()) not in untried:  # The sampler may propose a combination again.
                study.tell(proposal, state=optuna.trial.TrialState.PRUNED)
                study.enqueue_trial(dict(zip(values, generator.choice(untried), strict=True)))
                proposal = study.ask(dict(choices))
            untried.remove(tuple(proposal.params.values()))
            varied = {name: values[name][choice] for name, choice in proposal.params.items()}
            trials = [Trial(experiments=(make,), seed=seed, varied=varied) for seed in comparison.seeds]
            yield from trials
            finished = [each for each in map(result, trials) if each and each.status == "finished"]
            scores = [validation_score(each) for each in finished]
            # A combination with a failed seed is not chosen, even if the other seeds have good scores.
            if len(scores) == len(trials) and not math.isnan(sum(scores)):
                study.tell(proposal, sum(scores) / len(scores))
            else:
                study.tell(proposal, state=optuna.trial.TrialState.FAIL)


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
