"""Execution of a comparison: its trials, comparison.json and the report."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from unifier.comparison import Comparison
from unifier.data.source import starting_folders
from unifier.distributed import failing_together, from_main, is_main
from unifier.files import to_json, write_sealed_json
from unifier.folders import chosen_name, lock_folder, new_folder, tracking_id
from unifier.report.conclusions import conclusions
from unifier.report.page import write_report
from unifier.report.read_results import COMPARISON_TERMS, collect_results
from unifier.training.artifacts import warn_on_error
from unifier.training.experiment_copy import copy_experiment
from unifier.training.fit import fit
from unifier.training.loggers import RunLoggers, TrackedRun
from unifier.training.result import Interrupted, Result, Status
from unifier.training.run_context import RunContext
from unifier.training.trackers import add_trackers
from unifier.trials.executor import Executor
from unifier.trials.fitting import FitFn, TrialFitter
from unifier.trials.plan import Trial, comparison_terms, plan_trials
from unifier.trials.search import SEARCH_FILE, plan_search
from unifier.trials.trials import TrialRunner
from unifier.trials.trunk_similarity import compare_representations
from unifier_tokenizers import InputError


def compare(
    comparison: Comparison,
    settings: Mapping[str, Any],
    context: RunContext,
    resume: Path | None = None,
    *,
    fit: FitFn = fit,
    executor: Callable[[TrialFitter], AbstractContextManager[Executor]] | None = None,
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
        executor: A function that creates what runs the trials, such as `RayOptions.executor`. By default, the trials
            run one after another in this process.

    Returns:
        The results, and the comparison's folder.

    Raises:
        Interrupted: The user pressed Ctrl-C. The attribute `folder` of the exception is the comparison's folder.
        InputError, OSError: The user must change the input, or free space on the disk.
    """
    folder = resume
    try:
        with failing_together(), ExitStack() as lock:
            if resume is not None:
                from_main(lambda: lock.enter_context(lock_folder(resume)) and None)
            runner = TrialRunner(comparison, context, resume, fit)
            from_main(runner.check)
            if executor is not None:
                runner.executor = lock.enter_context(executor(runner.fitter))
            folder = resume or from_main(
                lambda: lock.enter_context(new_folder(context.out / comparison.name, name=context.name))
            )
            return _run_trials(runner, comparison, settings, context, folder, resume)
    except KeyboardInterrupt:  # A cluster takes seconds to start, before the first trial.
        if folder is None or not folder.exists():
            raise
        raise Interrupted(folder) from None


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
        if is_main():
            write_sealed_json(folder / "comparison.json", content)
        return content

    try:
        write("running")
        planned: Iterable[Trial | None] = plan_trials(comparison)
        if comparison.search is not None:
            planned = plan_search(comparison, runner.result, folder / SEARCH_FILE)
        runner.run(planned, folder, lambda: write("running"))
        similarities, unread = list[dict[str, Any]](), list[str]()
        with warn_on_error(folder, "the similarity of its trunks"):
            similarities, unread = from_main(
                lambda: compare_representations(folder, [row for row in runner.rows if is_finished(row)])
            )
        runner.problems += unread
        status = "finished" if all(map(is_finished, runner.rows)) else "failed"
        content = write(status, rows=runner.rows, representation=similarities)
    except BaseException as error:
        runner.executor.stop()
        is_started = (folder / "comparison.json").exists()
        if not is_main():
            raise
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
    from_main(lambda: write_end(folder, content, context))
    return runner.results, folder


def write_end(folder: Path, content: Mapping[str, Any], context: RunContext) -> None:
    """Write the report of a comparison, and log its conclusions."""
    with warn_on_error(folder, "report.html"):
        write_report(folder, content)
    log_comparison(folder, content, context)


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
