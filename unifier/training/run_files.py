"""The files of a run and its trackers: settings, header, metrics, and the result of a success or failure."""

import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unifier.data.dataloader import TrainDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.data.prepare import EncodedTask
from unifier.data.source import starting_folders
from unifier.distributed import from_main, is_main
from unifier.experiment import Experiment, Training, hash_fitted
from unifier.files import print_status, to_json, write_sealed_json
from unifier.folders import chosen_name, tracking_id
from unifier.heads.head import Head
from unifier.models.card import describe_start
from unifier.models.tags import run_tags
from unifier.report.conditions import condition_label
from unifier.training.artifacts import write_artifacts
from unifier.training.cost import count_parameters
from unifier.training.experiment_copy import EXPERIMENT_ENTRY
from unifier.training.lightning_module import UnifierModule
from unifier.training.loggers import MetricsFile, RunLoggers, TensorBoard, TrackedRun
from unifier.training.result import DivergedError, Interrupted, Result, machine, source_commit, versions
from unifier.training.run_context import RunContext
from unifier.training.run_data import total_steps
from unifier.training.trackers import add_trackers


def create_result(
    experiment: Experiment,
    encoded: Mapping[str, EncodedTask],
    settings: Mapping[str, Any],
    seed: int,
    context: RunContext,
    resume: Path | None,
    lock: ExitStack,
    lineage: Mapping[str, Any],
) -> Result:
    """Create the result of a new or resumed run. For a new run, also create the run's folder, and lock the folder."""
    name = experiment.name
    assert name is not None
    return Result(
        name=name,
        tasks=list(experiment.tasks),
        seed=seed,
        status="running",
        metrics={},
        signatures={},
        parameters=count_parameters(experiment),
        budget={},
        task_budgets={},
        speed={},
        settings=settings,
        data={name: {**task.data, **describe_metrics(experiment.tasks[name].head)} for name, task in encoded.items()},
        versions=versions(),
        commit=source_commit(context.file),
        machine=machine(),
        threads=torch.get_num_threads(),
        lineage=lineage,
        error="",
        folder=resume or from_main(lambda: lock.enter_context(context.run_folder(name, seed))),
    )


def describe_metrics(head: Head) -> dict[str, Any]:
    """Return the facts about a head's metrics that reports and searches need."""
    return {"max_score": head.max_score, "lower_is_better": sorted(head.lower_is_better)}


def write_run_settings(
    result: Result,
    context: RunContext,
    train: Mapping[str, EncodedSplit],
    hashes: Mapping[str, str],
    copies: Mapping[str, str],
) -> None:
    """Write settings.json, which is needed to load or resume the run.

    Args:
        result: The result of the run.
        context: The settings for the storage and tracking of the run.
        train: The training split of each task.
        hashes: The hash of each task's data.
        copies: The hash of each copy of an experiment's file.
    """
    content = {
        "name": result.name,
        "seed": result.seed,
        "settings": result.settings,
        "study": context.origin,
        "comparison": context.trial and context.trial.comparison,
        "trial": context.trial.row if context.trial else {},
        "longest": {task: int(split.lengths()[:, 0].max()) for task, split in train.items()},
        "read": hashes,
        "fitted": hash_fitted(result.folder),
        EXPERIMENT_ENTRY: dict(copies),
        "lineage": result.lineage,
        **({"lightning": options} if (options := context.lightning.describe()) else {}),
        **starting_folders(),
    }
    write_sealed_json(result.folder / "settings.json", content)


def print_run_header(result: Result, training: Training, batches: TrainDataLoader) -> None:
    """Print the tasks, the budget of the run and the number of parameters."""
    counts = result.parameters
    parts = ", ".join(f"{part} {counts[part]:,}" for part in ("tokenizer", "trunk", "head"))
    steps = total_steps(training, batches)
    length = f"{training.seconds:g} seconds" if steps is None else f"{steps:,} steps"
    print_status(f"{result.name}: {', '.join(result.tasks)}; seed {result.seed}; {length}")
    trained = "" if counts["trained"] == counts["total"] else f"; {counts['trained']:,} are trained"
    print_status(f"  {counts['total']:,} parameters ({parts}){trained}")
    if "start" in result.lineage:
        print_status(f"  started from {describe_start(result.lineage)}")
        others = [task for task in result.tasks if task not in result.lineage["tokenizers"]]
        if training.start_tokenizers and others:
            print_status(f"  new tokenizer, because class, shapes or vocabulary differ: {', '.join(others)}")


def start_loggers(
    experiment: Experiment,
    result: Result,
    context: RunContext,
    model: UnifierModule,
    done: int | None,
    *,
    sources: Sequence[str] = (),
) -> RunLoggers:
    """Open metrics.csv and the requested trackers.

    Args:
        experiment: The experiment of the run.
        result: The unfinished result of the run.
        context: The settings for the storage and tracking of the run.
        model: The model, which contains the rows of metrics.csv.
        done: The number of steps already made by a resumed run.
        sources: The names of the copies of the experiment's files in the run's folder.
    """
    loggers = RunLoggers(result.folder, lambda: model.cost_tracker.as_dict())
    if not is_main():
        return loggers
    loggers.add(lambda: MetricsFile(result.folder / "metrics.csv", model.logged))
    if context.tensorboard:
        loggers.add(lambda: TensorBoard(result.folder, done))
    facts = {name: getattr(result, name) for name in ("seed", "parameters", "lineage", "commit", "versions", "machine")}
    trial = context.trial.row if context.trial else {}
    condition = f" ({condition_label(trial)})" if "mode" in trial else ""
    tracked = TrackedRun(
        folder=result.folder,
        id=tracking_id(result.folder),
        name=chosen_name(result.folder) or f"{result.name}{condition}, seed {result.seed}",
        project=context.study,
        group=tracking_id(context.trial.folder) if context.trial else result.name,
        job_type=context.job_type,
        in_comparison=context.trial is not None,
        tags=run_tags(experiment.tasks.values()),
        # The key "data" is reserved for the setting "data".
        config=to_json({**result.settings, **facts, "trial": trial, "datasets": result.data}),
        data=to_json(result.data),
        sources=sources,
    )
    add_trackers(loggers, tracked, context.wandb, context.loggers)
    return loggers


def metric_signatures(experiment: Experiment) -> dict[str, str]:
    """Return the signatures of test metrics, such as sacreBLEU's, keyed by the logged names of the metrics."""
    return {
        f"test/{name}/{metric}": signature
        for name, task in experiment.tasks.items()
        for metric, signature in task.head.signatures.items()
    }


def with_costs(result: Result, model: UnifierModule) -> Result:
    """Return a copy of the result with the cost so far."""
    return replace(result, budget=model.cost_tracker.as_dict(), task_budgets=model.cost_tracker.by_task())


def write_failure(result: Result, error: BaseException, model: UnifierModule, loggers: RunLoggers | None) -> Result:
    """Close the trackers and write the result of a run that failed or was interrupted."""
    stopped = isinstance(error, Interrupted | KeyboardInterrupt)
    message = "" if stopped else traceback.format_exception_only(error)[-1].strip()
    message = f"diverged: {error}" if isinstance(error, DivergedError) else message
    result = replace(with_costs(result, model), status="interrupted" if stopped else "failed", error=message)
    try:
        if loggers is not None:
            if not stopped:
                ending = "diverged" if isinstance(error, DivergedError) else "failed"
                loggers.alert(f"{result.name}, seed {result.seed}: {ending}", message, failed=True)
            loggers.close(failed=True)
    finally:
        with suppress(OSError):  # On a full disk, the run can resume without result.json.
            result.write()
    return result


def write_success(
    result: Result,
    experiment: Experiment,
    model: UnifierModule,
    val: Mapping[str, EncodedSplit],
    loggers: RunLoggers,
    *,
    maps: bool,
) -> Result:
    """Write the artifacts of a run with test scores, close the trackers, and write result.json last.

    Raises Interrupted after Ctrl-C. Resuming the interrupted run writes the artifacts again.
    """
    try:
        write_artifacts(result, experiment, model, val, maps=maps)
        speed = {f"speed/{name}": value for name, value in result.speed.items()}
        score = {} if experiment.training.refit else {"val/score": model.score}  # W&B sweeps read `val/score`.
        loggers.log_artifacts(result.folder, {**result.metrics, **score, **speed})
        loggers.close(failed=False)
    except KeyboardInterrupt:
        result = replace(result, status="interrupted")
        loggers.close(failed=True)
        raise Interrupted(result.folder) from None
    finally:
        try:
            result.write()
        except OSError as error:  # With free disk space, the run can resume.
            error.add_note(str(result.folder))
            raise
    return result
