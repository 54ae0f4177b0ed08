"""One experiment, from its function to its result: built, encoded, trained, tested, written down."""

import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch

from unifier.config import split_reference
from unifier.data.dataloader import BudgetUnit, EvalDataLoader, TrainDataLoader
from unifier.data.dataset import open_split
from unifier.data.encoding import concat
from unifier.data.prepare import EncodedTask, prepare_task
from unifier.data.source import SPLITS, name_of, score_range_of, target_of
from unifier.experiment import Experiment, Training, check_seed, recording_fitted, save_fitted
from unifier.files import is_recoverable, new_folder, print_status, read_json, to_json, write_json
from unifier.nn.precision import default_device
from unifier.training.artifacts import write_artifacts
from unifier.training.callbacks import SpeedMonitor, peak_flops
from unifier.training.checkpoint import load_resume_checkpoint, load_weights
from unifier.training.cost import count_parameters
from unifier.training.lightning_module import UnifierModule
from unifier.training.loggers import (
    MetricsFile,
    RunLoggers,
    TensorBoard,
    TrackMode,
    WeightsAndBiases,
    run_tags,
    wandb_mode,
)
from unifier.training.memory import configure_allocator
from unifier.training.result import DivergedError, Interrupted, Result, RunFailed, machine, source_commit, versions
from unifier.training.trainer import train_and_test, uses_bf16
from unifier_tokenizers import InputError

EVALUATION_FACTOR = 4
"""How many times as many columns as in training are read at once in validation and test, which keep no gradients."""


@final
@dataclass(frozen=True)
class RunContext:
    """Where runs go, and how they are tracked."""

    out: Path
    study: str
    """The W&B project: the file that defines the experiment."""
    group: str | None = None
    """The comparison that a run belongs to; None for a run by itself."""
    trial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How the run is trained there, as the comparison's rows say it, and what all of them are held to."""
    job_type: str = "train"
    wandb: TrackMode | None = None
    tensorboard: bool = False
    origin: str | Sequence[str] = ""
    """FILE:name of the experiment, by which `load` finds it again; of several trained together each one's."""

    @property
    def file(self) -> str:
        """That of the experiment, or of the first of several."""
        return split_reference(self.origin if isinstance(self.origin, str) else self.origin[0])[0]


def fit(
    build: Callable[[], Experiment],
    settings: Mapping[str, Any],
    seed: int,
    context: RunContext,
    resume: Path | None = None,
    encoded_tasks: MutableMapping[str, EncodedTask] | None = None,
    on_start: Callable[[Result], object] = lambda _: None,
) -> Result:
    """Run one experiment; `resume` is the folder of one that was interrupted.

    An task in `known` is not encoded again, and one that was not is kept there; `began` is called with what is known of
    the run once it has its folder. Raises InputError, with nothing written, where the experiment cannot begin; and,
    after result.json says so, Interrupted after Ctrl-C, OSError from a disk that is full or not to be written,
    InputError from a batch that cannot be used, and RunFailed for all else.

    A run that has its scores is finished and result.json holds them, whatever becomes of what tells of them: samples,
    observations, a page or a tracker that fails is a warning; after Ctrl-C it is interrupted, and scores and tells
    again when it goes on. result.json is written when all else in the folder is, a tracker's files too.
    """
    check_seed(seed)
    configure_allocator()
    pl.seed_everything(seed, verbose=False)
    start = None if resume is None else read_unfinished(resume)
    with recording_fitted(resume) as vocabularies:
        experiment = build()
    model, done, earlier = UnifierModule(experiment), None, dict[str, Any]()
    if resume is not None:
        earlier = read_json(resume / "settings.json", name=str)
        if earlier["name"] != experiment.name:
            raise InputError(
                f'{resume} is a run of "{earlier["name"]}", and cannot resume as a run of "{experiment.name}"'
            )
        if start is None:
            print_status(f"{experiment.name}: finished already; nothing is left to train")
            return Result.read(resume)
        load_weights(model, start["state_dict"], resume / "checkpoints" / "last.ckpt", experiment.name)
        done = start["global_step"]
    del start  # it holds the optimizer's moments too
    training = experiment.training
    encoded = encode_tasks(experiment, {} if encoded_tasks is None else encoded_tasks)
    read = {task: one.data["sha256"] for task, one in encoded.items()}
    if changed := ", ".join(task for task in read if read[task] != earlier.get("read", read).get(task)):
        raise InputError(f"{resume}: its data have changed since ({changed}), so it cannot resume: start a new run")
    check_targets(experiment, encoded)
    train, val, test = ({task: one.splits[name] for task, one in encoded.items()} for name in SPLITS)
    if training.refit:
        train = {task: concat(split, val[task]) for task, split in train.items()}
    model.prepare(train)
    batches = TrainDataLoader(
        train,
        max_tokens=training.batch_tokens,
        seed=seed,
        budget=budget_in_batches(training),
        costs=model.costs,
        temperature=training.sampling_temperature,
        augment={task: one.augmentation for task, one in experiment.tasks.items() if one.augmentation is not None},
        together=training.grad_accumulation,
    )
    steps = None if batches.total is None else batches.total // training.grad_accumulation
    if done and steps and done > steps:
        raise InputError(
            f"{resume}: it is at step {done:,}, and {experiment.name} now ends at {steps:,}: start a new run"
        )
    model.planned_steps = steps or model.planned_steps
    result = Result(
        name=experiment.name,
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
        data={task: {**one.data, "max_score": experiment.tasks[task].head.max_score} for task, one in encoded.items()},
        versions=versions(),
        commit=source_commit(context.file),
        machine=machine(),
        error="",
        folder=resume or new_folder(context.out / experiment.name, f"seed{seed}"),
    )
    tracking = None
    try:
        on_start(result)
        save_fitted(vocabularies, result.folder)
        longest = {task: int(split.lengths()[:, 0].max()) for task, split in train.items()}
        about = {
            "name": result.name,
            "seed": seed,
            "settings": settings,
            "study": context.origin,
            "comparison": context.group,
            "trial": context.trial,
        }
        write_json(result.folder / "settings.json", {**about, "longest": longest, "read": read})
        print_run_header(result, training, steps)
        tracking = start_loggers(experiment, result, context, model, done)
        held_out = {
            name: EvalDataLoader(split, max_tokens=EVALUATION_FACTOR * training.batch_tokens)
            for name, split in (("val", val), ("test", test))
        }
        speed = SpeedMonitor(
            batches, peak_flops(default_device(), torch.bfloat16 if uses_bf16(training) else torch.float32)
        )
        metrics = train_and_test(model, training, result.folder, tracking, batches, held_out, speed, done)
        signatures = {
            f"test/{task}/{metric}": signature
            for task, one in experiment.tasks.items()
            for metric, signature in one.head.signatures.items()
        }
    except BaseException as error:
        stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        said = "" if stopped else traceback.format_exception_only(error)[-1].strip()
        said = f"diverged: {error}" if isinstance(error, DivergedError) else said
        status = "interrupted" if stopped else "failed"
        result = replace(
            result,
            status=status,
            error=said,
            budget=model.cost_tracker.as_dict(),
            task_budgets=model.cost_tracker.by_task(),
        )
        try:
            if tracking is not None:
                tracking.close(failed=True)
        finally:
            result.write()
        if stopped or isinstance(error, InputError) or is_recoverable(error):
            error.add_note(str(result.folder))
            raise
        raise RunFailed(result) from error
    result = replace(
        result,
        status="finished",
        metrics=metrics,
        signatures=signatures,
        budget=model.cost_tracker.as_dict(),
        task_budgets=model.cost_tracker.by_task(),
        speed=speed.found,
    )
    try:
        write_artifacts(result, experiment, model, val)
        found = {f"speed/{name}": value for name, value in speed.found.items()}
        score = {} if training.refit else {"val/score": model.score}  # sweeps read the last one
        tracking.log_artifacts(result.folder, {**metrics, **score, **found})
        tracking.close(failed=False)
    except KeyboardInterrupt:  # finished it would be done with, and never be told
        result = replace(result, status="interrupted")
        tracking.close(failed=True)
        raise Interrupted(result.folder) from None
    finally:
        try:
            result.write()
        except OSError as error:  # a disk that is full: once there is room, --resume scores the weights again
            error.add_note(str(result.folder))
            raise
    return result


def encode_tasks(experiment: Experiment, known: MutableMapping[str, EncodedTask]) -> dict[str, EncodedTask]:
    """Encode each task that is not in `known` yet, and add it there.

    Raises InputError for an example that cannot be encoded, and first of all for a scale that is not valid.
    """
    training = experiment.training
    unknown = {name: task for name, task in experiment.tasks.items() if name not in known}
    for task in unknown.values():
        score_range_of(task.source)  # a wrong scale is reported before hours of encoding
    for name, task in unknown.items():
        known[name] = prepare_task(
            task.source, task.tokenizer, task.head, bad_examples=training.bad_examples, num_workers=training.num_workers
        )
    return {name: known[name] for name in experiment.tasks}


def check_targets(experiment: Experiment, encoded: Mapping[str, EncodedTask]) -> None:
    """Raise InputError where an task's head cannot score a split that it will be asked to."""
    for name, task in experiment.tasks.items():
        for split in SPLITS[2 if experiment.training.refit else 1 :]:
            examples = open_split(task.source, split)
            try:
                task.head.check_targets(
                    target_of(examples, index) for index in encoded[name].splits[split].indices.tolist()
                )
            except InputError as error:
                raise InputError(f"{name_of(task.source)}, {split}: {error}") from error


def read_unfinished(folder: Path) -> dict[str, Any] | None:
    """What a stopped run goes on from; None of a finished one. Raises InputError where it cannot go on."""
    if (folder / "result.json").exists() and Result.read(folder).status == "finished":
        return None
    try:
        return load_resume_checkpoint(folder)
    except InputError as error:
        raise InputError(f"{error}: it cannot resume; start a new run") from error


def budget_in_batches(training: Training) -> dict[BudgetUnit, float]:
    """The budget, its steps as the batches that they take."""
    return {
        unit: amount * (training.grad_accumulation if unit == "steps" else 1)
        for unit, amount in training.budget.items()
    }


def print_run_header(result: Result, training: Training, steps: int | None) -> None:
    """Say what is about to be trained."""
    counts = result.parameters
    parts = ", ".join(f"{part} {counts[part]:,}" for part in ("tokenizer", "trunk", "head"))
    length = f"{training.seconds:g} seconds" if steps is None else f"{steps:,} steps"
    print_status(f"{result.name}: {', '.join(result.tasks)}; seed {result.seed}; {length}")
    print_status(f"  {counts['total']:,} parameters ({parts})")


def start_loggers(
    experiment: Experiment, result: Result, place: RunContext, model: UnifierModule, done: int | None
) -> RunLoggers:
    """Open metrics.csv, and the trackers asked for; `done` is the step that the run resumes from."""
    tracking = RunLoggers(result.folder, lambda: model.cost_tracker.as_dict())
    tracking.add(lambda: MetricsFile(result.folder / "metrics.csv"))
    if place.tensorboard:
        tracking.add(lambda: TensorBoard(result.folder, done))
    if place.wandb != "off":
        about = {name: getattr(result, name) for name in ("seed", "parameters", "commit", "versions", "machine")}
        tracking.add(
            lambda: WeightsAndBiases(
                result.folder,
                project=place.study,
                group=place.group or experiment.name,
                job_type=place.job_type,
                tags=run_tags(experiment.tasks.values()),
                # "data" is a setting's name
                config=to_json({**result.settings, **about, "trial": place.trial, "datasets": result.data}),
                mode=wandb_mode(place.wandb),
            )
        )
    return tracking
