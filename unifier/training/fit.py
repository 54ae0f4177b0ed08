"""One run of an experiment: build the experiment, encode its data, train, test, and write the result."""

import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from socket import gethostname
from typing import Any, Protocol, cast, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger

from unifier.config import split_reference
from unifier.data.dataloader import BudgetUnit, EvalDataLoader, Objective, TrainDataLoader
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, concat
from unifier.data.prepare import EncodedTask, prepare_task
from unifier.data.source import (
    SPLITS,
    SplitName,
    check_direction,
    describe_example,
    name_of,
    starting_folders,
    target_of,
)
from unifier.distributed import (
    AgreedError,
    PeerError,
    broadcast,
    disconnect,
    failing_together,
    from_main,
    gather,
    is_main,
    world,
)
from unifier.experiment import (
    Experiment,
    Training,
    check_fitted,
    check_seed,
    hash_fitted,
    recording_fitted,
    save_fitted,
)
from unifier.files import is_recoverable, print_status, read_json, to_json, write_sealed_json
from unifier.folders import TRIALS_FOLDER, chosen_name, lock_folder, new_folder, tracking_id
from unifier.heads.head import Head
from unifier.models.card import describe_start
from unifier.models.tags import run_tags
from unifier.nn.precision import default_device
from unifier.report.conditions import condition_label
from unifier.training.artifacts import write_artifacts
from unifier.training.callbacks import SpeedMonitor, peak_flops
from unifier.training.checkpoint import load_resume_checkpoint, load_weights
from unifier.training.cost import count_parameters
from unifier.training.experiment_copy import (
    EXPERIMENT_ENTRY,
    copy_experiment,
    hash_code,
    read_experiment_files,
    warn_of_changed_experiment,
)
from unifier.training.lightning_module import UnifierModule
from unifier.training.lightning_options import LightningOptions
from unifier.training.loggers import MetricsFile, RunLoggers, TensorBoard, TrackedRun
from unifier.training.memory import configure_allocator
from unifier.training.parallel import check_batch_size, check_equal, compute_once
from unifier.training.result import DivergedError, Interrupted, Result, RunFailed, machine, source_commit, versions
from unifier.training.start import load_start
from unifier.training.trackers import CreateLogger, TrackMode, add_trackers
from unifier.training.trainer import train_and_test, uses_bf16
from unifier_tokenizers import InputError

EVALUATION_FACTOR = 4
"""Ratio of the batch size in evaluation to the batch size in training. Evaluation stores no gradients."""


@final
@dataclass(frozen=True)
class TrialContext:
    """Comparison that contains a run, with the entries that identify the run."""

    comparison: str
    """The comparison's name."""
    folder: Path
    """The comparison's folder."""
    row: Mapping[str, Any]
    """The entries that identify the run in comparison.json, and the settings that all runs of the comparison share."""


@final
@dataclass(frozen=True)
class RunContext:
    """Settings for the storage and tracking of runs."""

    out: Path
    study: str
    """The name of the W&B project, which is the name of the file that defines the experiment."""
    trial: TrialContext | None = None
    """The comparison of the run, or None for a run outside a comparison."""
    job_type: str = "train"
    wandb: TrackMode | None = None
    tensorboard: bool = False
    loggers: Sequence[Logger | CreateLogger] = ()
    """Lightning loggers, or functions that create the Lightning logger of a run."""
    lightning: LightningOptions = field(default_factory=LightningOptions)
    """The user's own callbacks and arguments of Lightning's Trainer."""
    name: str | None = None
    """The name of the folder, or None for a unique name."""
    origin: str | Sequence[str] = ""
    """FILE:name of the experiment for `load`, or for a joint run a list with the FILE:name of each experiment."""

    @property
    def file(self) -> str:
        """The file of the experiment, or of the first experiment of a joint run."""
        return split_reference(self.origin if isinstance(self.origin, str) else self.origin[0])[0]

    def run_folder(self, name: str, seed: int) -> AbstractContextManager[Path]:
        """Create and lock the run's folder: `<out>/<experiment>/<id>`, or `trials/<id>` in the comparison's folder."""
        if self.trial is None:
            return new_folder(self.out / name, f"seed{seed}", self.name)
        return new_folder(self.trial.folder / TRIALS_FOLDER, f"{name}-seed{seed}")


StartFn = Callable[[Experiment], Mapping[str, Any]]
"""A function that loads initial weights into an experiment and returns the lineage, such as `load_start`."""


class TrainFn(Protocol):
    """A function that trains and tests a model, such as `train_and_test`."""

    def __call__(
        self,
        model: UnifierModule,
        training: Training,
        folder: Path,
        loggers: RunLoggers,
        batches: TrainDataLoader,
        held_out: Mapping[str, EvalDataLoader],
        speed: SpeedMonitor,
        done: int | None,
    ) -> dict[str, float]: ...


def fit(
    build: Callable[[], Experiment],
    settings: Mapping[str, Any],
    seed: int,
    context: RunContext,
    resume: Path | None = None,
    encoded_tasks: MutableMapping[str, EncodedTask] | None = None,
    on_start: Callable[[Result], object] = lambda _: None,
    train: TrainFn = train_and_test,
    start: StartFn = load_start,
) -> Result:
    """Run one experiment.

    After the test, a failure in writing samples, figures, the report or tracker data causes only a warning. Ctrl-C
    after the test marks the run as interrupted. A run that is resumed after the test repeats only the evaluation. The
    file result.json is written last.

    Args:
        build: A function that builds the experiment.
        settings: The settings of the experiment, which are written into the run's files.
        seed: The seed of all random numbers.
        context: The settings for the storage and tracking of the run.
        resume: The folder of an interrupted run that is resumed.
        encoded_tasks: A mapping from task name to encoded task. Newly encoded tasks are added to the mapping.
        on_start: A function that is called with the unfinished result when the run's folder has been created.
        train: A function that trains and tests the model.
        start: A function that loads initial weights into a new experiment, and returns the lineage of the run.

    Returns:
        The result of the run, which is also stored in result.json.

    Raises:
        InputError: If the experiment cannot start, or if a batch cannot be used. An experiment that cannot start writes
            no files.
        Interrupted: After Ctrl-C.
        OSError: If a file cannot be written, for example on a full disk.
        RunFailed: After any other error.
    """
    with failing_together(), ExitStack() as lock:
        if resume is not None:
            from_main(lambda: lock.enter_context(lock_folder(resume)) and None)
        return _fit(build, settings, seed, context, resume, encoded_tasks, on_start, train, start, lock)


def _fit(
    build: Callable[[], Experiment],
    settings: Mapping[str, Any],
    seed: int,
    context: RunContext,
    resume: Path | None,
    encoded_tasks: MutableMapping[str, EncodedTask] | None,
    on_start: Callable[[Result], object],
    train: TrainFn,
    start: StartFn,
    lock: ExitStack,
) -> Result:
    check_seed(seed)
    configure_allocator()
    pl.seed_everything(seed, verbose=False)
    checkpoint = None if resume is None else read_unfinished(resume)
    earlier = {} if resume is None else read_earlier_settings(resume)
    check_processes(context, settings)
    read_experiment_files(context.origin)
    experiment, fitted_values = build_on_all(build, resume)
    if world().size > 1 and experiment.training.compile is not None:
        raise InputError(f"compile={experiment.training.compile} needs one process; leave it out, or use one process")
    name = experiment.name
    assert name is not None, "build_described gives every experiment a name"
    if options := context.lightning.describe():
        train = partial(cast(Any, train), given=context.lightning)
    if earlier and (started := earlier.get("lightning", {})) != options:
        change = f"from {started or 'none'} to {options or 'none'}"
        warnings.warn(f"{resume}: the run's own callbacks and trainer arguments change {change}", stacklevel=2)
    if earlier and earlier["name"] != name:
        raise InputError(f'{resume} is a run of "{earlier["name"]}", so it cannot resume as a run of "{name}"')
    # A resumed run reads the weights from its checkpoint, and does not need the model from which the run started.
    lineage = earlier.get("lineage", {}) if checkpoint else start(experiment)
    model = UnifierModule(experiment)
    broadcast([*model.state_dict().values(), (random_state := torch.get_rng_state())])
    torch.set_rng_state(random_state)
    done = None
    if resume is not None:
        if checkpoint is None:
            print_status(f"{name}: the run has already finished, so there is nothing to train")
            return Result.read(resume)
        if checkpoint:
            load_weights(model, checkpoint["state_dict"], resume / "checkpoints" / "last.ckpt", name)
        done = checkpoint.get("global_step", 0)
    del checkpoint  # Free the memory of the checkpoint's optimizer state.
    encoded = encode_tasks(experiment, {} if encoded_tasks is None else encoded_tasks)
    check_equal({f"the data of {task} with the hash": data.data["sha256"] for task, data in encoded.items()})
    hashes = {task: data.data["sha256"] for task, data in encoded.items()}
    check_data_unchanged(hashes, earlier.get("read", hashes), resume)
    from_main(lambda: check_targets(experiment, encoded))
    splits = select_splits(experiment.training, encoded)
    batches = plan_batches(experiment, model, splits["train"], seed, done, resume)
    if callable(experiment.training.optimizer) or callable(experiment.training.schedule):
        model.configure_optimizers()  # A wrong function is refused before the run has a folder.
    result = create_result(experiment, encoded, settings, seed, context, resume, lock, lineage)
    loggers = None

    def write_start() -> Mapping[str, str]:
        on_start(result)
        save_fitted(fitted_values, result.folder)
        copies = earlier.get(EXPERIMENT_ENTRY) or copy_experiment(context.origin, result.folder)
        write_run_settings(result, context, splits["train"], hashes, copies)
        return copies

    try:
        with failing_together():
            gather(lambda: check_shared(result.folder))
            copies = from_main(write_start)
            if context.trial is None:  # A comparison prints its own line for each trial.
                print_run_header(result, experiment.training, batches)
            loggers = start_loggers(experiment, result, context, model, done, sources=list(copies))
            held_out = {
                split: EvalDataLoader(
                    splits[split],
                    max_tokens=EVALUATION_FACTOR * experiment.training.batch_tokens,
                    objectives=objectives_of(experiment),
                    streams=stream_tasks(experiment),
                    rank=world().rank,
                    num_processes=world().size,
                )
                for split in ("val", "test")
            }
            speed = create_speed_monitor(experiment.training, batches)
            metrics = train(model, experiment.training, result.folder, loggers, batches, held_out, speed, done)
            signatures = metric_signatures(experiment)
    except BaseException as error:
        is_agreed = model.stop_agreed or isinstance(error, AgreedError)
        if not is_main() and not is_agreed:
            disconnect()  # Rank 0 may wait for this process.
            raise
        if not (result.folder / "settings.json").exists():  # The run has not started, and cannot resume.
            rmtree(result.folder, ignore_errors=True)
            raise
        cause = explain_divergence(error, experiment, encoded) if isinstance(error, DivergedError) else error

        def finish(result: Result = result) -> Result:
            return write_failure(result, cause, model, loggers)

        result = from_main(finish) if is_agreed else finish()
        if result.status == "interrupted" or isinstance(cause, InputError | PeerError) or is_recoverable(cause):
            error.add_note(str(result.folder))
            raise
        raise RunFailed(result) from cause
    result = replace(result, status="finished", metrics=metrics, signatures=signatures, speed=speed.speed)
    finished = with_costs(result, model)
    return from_main(
        lambda: write_success(finished, experiment, model, splits["val"], loggers, maps=context.trial is None)
    )


def check_processes(context: RunContext, settings: Mapping[str, Any]) -> None:
    """Raise InputError if several processes cannot train the run, because their code or settings differ."""
    if world().size > 1:
        check_equal(
            {
                "the versions": versions(),
                "the commit": source_commit(context.file),
                "code with the hash": hash_code(context.origin),
                "the settings": to_json(settings),
            }
        )


def check_shared(folder: Path) -> None:
    """Raise InputError if this process cannot see the run's folder, which rank 0 has created."""
    if not folder.exists():
        raise InputError(f"{folder}: not visible on {gethostname()}; give a folder that all machines share with --out")


def build_on_all(build: Callable[[], Experiment], resume: Path | None) -> tuple[Experiment, dict[str, Any]]:
    """Build the experiment on all processes. Rank 0 builds first, and downloads data sets and learns fitted values.

    Args:
        build: A function that builds the experiment.
        resume: The folder of a resumed run, which contains the fitted values.

    Returns:
        The experiment, and a mapping from names to fitted values.
    """
    built: list[Experiment] = []

    def build_first() -> dict[str, Any]:
        with recording_fitted(resume) as values:
            built.append(build())
        return values

    values = from_main(build_first)
    if not built:
        with recording_fitted(resume, values):
            built.append(build())
    return built[0], values


def read_unfinished(folder: Path) -> dict[str, Any] | None:
    """Read the checkpoint of a stopped run. Return None if the run has finished.

    Return {} if the run has no checkpoint and therefore starts again. Raises InputError if the run cannot continue.
    """
    if (folder / "result.json").exists() and Result.read(folder).status == "finished":
        return None
    if not any((folder / "checkpoints").glob("*.ckpt")):
        print_status(f"{folder}: the run has no checkpoint, so it starts again from its first step", sys.stderr)
        return {}
    try:
        return load_resume_checkpoint(folder)
    except InputError as error:
        raise InputError(f"{error}: the run cannot resume; start a new run") from error


def read_earlier_settings(folder: Path) -> dict[str, Any]:
    """Read settings.json of the resumed run. Raise InputError if the file or a fitted value has changed."""
    settings = read_json(folder / "settings.json", name=str)
    if not isinstance(settings.get("read", {}), dict) or not isinstance(settings.get("fitted", {}), dict):
        raise InputError(f"{folder / 'settings.json'}: broken (read and fitted must be objects)")
    check_fitted(folder, settings)
    warn_of_changed_experiment(folder, settings)
    return settings


def encode_tasks(experiment: Experiment, known: MutableMapping[str, EncodedTask]) -> dict[str, EncodedTask]:
    """Return all encoded tasks of an experiment. Tasks that are not in `known` are encoded and added to `known`.

    Raises InputError for an example that cannot be encoded.
    """
    training = experiment.training
    new_tasks = {name: task for name, task in experiment.tasks.items() if name not in known}
    for task in new_tasks.values():
        if (score_range := task.resolved_score_range) is not None:  # Check before encoding, which may take hours.
            check_direction(name_of(task.source), score_range, task.head.lower_is_better)
    for name, task in new_tasks.items():
        encoded = compute_once(
            lambda task=task: prepare_task(
                task.source,
                task.tokenizer,
                task.head,
                task.objective,
                bad_examples=training.bad_examples,
                num_workers=training.num_workers,
            )
        )
        score_range = task.resolved_score_range
        described = {**encoded.data, "score_range": score_range and asdict(score_range)}
        known[name] = replace(encoded, data=described)
    return {name: known[name] for name in experiment.tasks}


def objectives_of(experiment: Experiment) -> dict[str, Objective]:
    """Return a mapping from each task with an objective to the objective."""
    return {name: task.objective for name, task in experiment.tasks.items() if task.objective is not None}


def stream_tasks(experiment: Experiment) -> list[str]:
    """Return the tasks whose head has a memory."""
    return [name for name, task in experiment.tasks.items() if task.head.memory]


def check_data_unchanged(hashes: Mapping[str, str], earlier: Mapping[str, str], resume: Path | None) -> None:
    """Raise InputError if the data of a task have changed since the run was started."""
    if changed := ", ".join(task for task in hashes if hashes[task] != earlier.get(task)):
        raise InputError(f"{resume}: the run's data have changed ({changed}), so it cannot resume: start a new run")


def check_targets(experiment: Experiment, encoded: Mapping[str, EncodedTask]) -> None:
    """Raise InputError if the head of a task cannot compute scores on a split that the run evaluates."""
    for name, task in experiment.tasks.items():
        for split in SPLITS[2 if experiment.training.refit else 1 :]:
            examples = open_split(task.source, split)
            try:
                task.head.check_targets(
                    target_of(examples, index) for index in encoded[name].splits[split].indices.tolist()
                )
            except InputError as error:
                raise InputError(f"{name_of(task.source)}, {split}: {error}") from error


def select_splits(training: Training, encoded: Mapping[str, EncodedTask]) -> dict[SplitName, dict[str, EncodedSplit]]:
    """Return the three splits of all tasks. With `refit`, the training split includes the validation split."""
    splits: dict[SplitName, dict[str, EncodedSplit]] = {
        split: {task: data.splits[split] for task, data in encoded.items()} for split in SPLITS
    }
    if training.refit:
        splits["train"] = {task: concat(split, splits["val"][task]) for task, split in splits["train"].items()}
    return splits


def plan_batches(
    experiment: Experiment,
    model: UnifierModule,
    train: Mapping[str, EncodedSplit],
    seed: int,
    done: int | None,
    resume: Path | None,
) -> TrainDataLoader:
    """Create the training batches of the run, and set the model's number of steps.

    Raises InputError if a resumed run has already made more steps than its budget allows.
    """
    training = experiment.training
    model.prepare(train)
    batches = TrainDataLoader(
        train,
        max_tokens=training.batch_tokens,
        seed=seed,
        budget=budget_in_batches(training),
        costs=model.costs,
        temperature=training.sampling_temperature,
        augment={name: task.augmentation for name, task in experiment.tasks.items() if task.augmentation is not None},
        objectives=objectives_of(experiment),
        streams=stream_tasks(experiment),
        grad_accumulation=training.grad_accumulation,
    )
    check_batch_size(batches)
    steps = total_steps(training, batches)
    if done and steps and done > steps:
        raise InputError(
            f"{resume}: the run is at step {done:,}, but {experiment.name} now ends at {steps:,}: start a new run"
        )
    model.planned_steps = steps or model.planned_steps
    return batches


def budget_in_batches(training: Training) -> dict[BudgetUnit, float]:
    """Return the budget with optimizer steps converted to batches."""
    return {
        unit: amount * (training.grad_accumulation if unit == "steps" else 1)
        for unit, amount in training.budget.items()
    }


def total_steps(training: Training, batches: TrainDataLoader) -> int | None:
    """Return the number of optimizer steps, or None for a budget in seconds."""
    return None if batches.num_batches is None else batches.num_batches // training.grad_accumulation


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


def create_speed_monitor(training: Training, batches: TrainDataLoader) -> SpeedMonitor:
    """Create the speed monitor. The peak speed of the machine is measured in the precision of the run."""
    peak = peak_flops(default_device(), torch.bfloat16 if uses_bf16(training) else torch.float32)
    return SpeedMonitor(batches, peak * world().size)


def metric_signatures(experiment: Experiment) -> dict[str, str]:
    """Return the signatures of test metrics, such as sacreBLEU's, keyed by the logged names of the metrics."""
    return {
        f"test/{name}/{metric}": signature
        for name, task in experiment.tasks.items()
        for metric, signature in task.head.signatures.items()
    }


def explain_divergence(
    error: DivergedError, experiment: Experiment, encoded: Mapping[str, EncodedTask]
) -> DivergedError:
    """Add the likely cause to an error: an example with NaN or infinity, else the learning rate."""
    trained = SPLITS[: 2 if experiment.training.refit else 1]
    for name, task in experiment.tasks.items():
        for split in trained:
            if (index := find_nonfinite(encoded[name].splits[split])) is not None:
                example = describe_example(open_split(task.source, split), index)
                return DivergedError(
                    f'{error}: task "{name}", {split} split, {example} contains NaN or infinity: '
                    "correct or remove the example"
                )
    return DivergedError(f"{error}: try a lower learning_rate or a longer warm-up")


def find_nonfinite(split: EncodedSplit) -> int | None:
    """Return the index of the first example with NaN or infinity in its values or target, or None."""
    for row, index in enumerate(split.indices.tolist()):
        tensors = (split.values[row], split.target(row))
        if not any(tensor.is_floating_point() for tensor in tensors):
            return None  # All examples of a split have equal dtypes.
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            return index
    return None


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
