"""One run of an experiment: build the experiment, encode its data, train, test, and write the result."""

import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from socket import gethostname
from typing import Any, Protocol, cast

import lightning.pytorch as pl
import torch

from unifier.data.dataloader import EvalDataLoader, TrainDataLoader
from unifier.data.prepare import EncodedTask
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
from unifier.experiment import Experiment, Training, check_fitted, check_seed, recording_fitted, save_fitted
from unifier.files import is_recoverable, print_status, read_json, to_json
from unifier.folders import lock_folder
from unifier.nn.precision import default_device
from unifier.training.callbacks import SpeedMonitor, peak_flops
from unifier.training.checkpoint import load_resume_checkpoint, load_weights
from unifier.training.experiment_copy import (
    EXPERIMENT_ENTRY,
    copy_experiment,
    hash_code,
    read_experiment_files,
    warn_of_changed_experiment,
)
from unifier.training.lightning_module import UnifierModule
from unifier.training.loggers import RunLoggers
from unifier.training.memory import configure_allocator
from unifier.training.parallel import check_equal
from unifier.training.result import DivergedError, Result, RunFailed, source_commit, versions
from unifier.training.run_context import RunContext
from unifier.training.run_data import (
    EVALUATION_FACTOR,
    check_targets,
    encode_tasks,
    explain_divergence,
    objectives_of,
    plan_batches,
    select_splits,
    stream_tasks,
)
from unifier.training.run_files import (
    create_result,
    metric_signatures,
    print_run_header,
    start_loggers,
    with_costs,
    write_failure,
    write_run_settings,
    write_success,
)
from unifier.training.start import load_start
from unifier.training.trainer import train_and_test, uses_bf16
from unifier_tokenizers import InputError

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


def check_data_unchanged(hashes: Mapping[str, str], earlier: Mapping[str, str], resume: Path | None) -> None:
    """Raise InputError if the data of a task have changed since the run was started."""
    if changed := ", ".join(task for task in hashes if hashes[task] != earlier.get(task)):
        raise InputError(f"{resume}: the run's data have changed ({changed}), so it cannot resume: start a new run")


def create_speed_monitor(training: Training, batches: TrainDataLoader) -> SpeedMonitor:
    """Create the speed monitor. The peak speed of the machine is measured in the precision of the run."""
    peak = peak_flops(default_device(), torch.bfloat16 if uses_bf16(training) else torch.float32)
    return SpeedMonitor(batches, peak * world().size)
