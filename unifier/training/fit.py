"""One experiment, from its function to its result: built, encoded, trained, tested, written down."""

import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch

from unifier.config import split_reference
from unifier.data.dataloader import EvaluationBatches, TrainingBatches, Unit
from unifier.data.dataset import split_of
from unifier.data.encoding import joined
from unifier.data.prepare import EncodedArm, prepare_task
from unifier.data.source import SPLITS, name_of, scale_of, target_of
from unifier.experiment import Experiment, Training, check_seed, keep, remembering
from unifier.files import as_json, is_mendable, new_folder, read_json, say, write_json
from unifier.nn.precision import device_here
from unifier.training.artifacts import tell
from unifier.training.callbacks import Speed, peak_flops
from unifier.training.checkpoint import fill, read_start
from unifier.training.cost import count_parameters
from unifier.training.lightning_module import Unifier
from unifier.training.loggers import MetricsFile, TensorBoard, Track, Tracking, WeightsAndBiases, tags_of, wandb_mode
from unifier.training.memory import keep_freed_memory
from unifier.training.result import DivergedError, Interrupted, Result, RunFailed, commit, machine, versions
from unifier.training.trainer import computes_bf16, train_and_test
from unifier_tokenizers import InputError

EVALUATION_FACTOR = 4
"""How many times as many columns as in training are read at once in validation and test, which keep no gradients."""


@final
@dataclass(frozen=True)
class Place:
    """Where runs go, and how they are tracked."""

    out: Path
    study: str
    """The W&B project: the file that defines the experiment."""
    group: str | None = None
    """The comparison that a run belongs to; None for a run by itself."""
    trial: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How the run is trained there, as the comparison's rows say it, and what all of them are held to."""
    job_type: str = "train"
    track: Track | None = None
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
    place: Place,
    resume: Path | None = None,
    known: MutableMapping[str, EncodedArm] | None = None,
    began: Callable[[Result], object] = lambda _: None,
) -> Result:
    """Run one experiment; `resume` is the folder of one that was interrupted.

    An arm in `known` is not encoded again, and one that was not is kept there; `began` is called with what is known of
    the run once it has its folder. Raises InputError, with nothing written, where the experiment cannot begin; and,
    after result.json says so, Interrupted after Ctrl-C, OSError from a disk that is full or not to be written,
    InputError from a batch that cannot be used, and RunFailed for all else.

    A run that has its scores is finished and result.json holds them, whatever becomes of what tells of them: samples,
    observations, a page or a tracker that fails is a warning; after Ctrl-C it is interrupted, and scores and tells
    again when it goes on. result.json is written when all else in the folder is, a tracker's files too.
    """
    check_seed(seed)
    keep_freed_memory()
    pl.seed_everything(seed, verbose=False)
    start = None if resume is None else read_unfinished(resume)
    with remembering(resume) as vocabularies:
        experiment = build()
    model, done, earlier = Unifier(experiment), None, dict[str, Any]()
    if resume is not None:
        earlier = read_json(resume / "settings.json", name=str)
        if earlier["name"] != experiment.name:
            raise InputError(
                f'{resume} is a run of "{earlier["name"]}", and cannot resume as a run of "{experiment.name}"'
            )
        if start is None:
            say(f"{experiment.name}: finished already; nothing is left to train")
            return Result.read(resume)
        fill(model, start["state_dict"], resume / "checkpoints" / "last.ckpt", experiment.name)
        done = start["global_step"]
    del start  # it holds the optimizer's moments too
    training = experiment.training
    encoded = encode_tasks(experiment, {} if known is None else known)
    read = {arm: one.data["sha256"] for arm, one in encoded.items()}
    if changed := ", ".join(arm for arm in read if read[arm] != earlier.get("read", read).get(arm)):
        raise InputError(f"{resume}: its data have changed since ({changed}), so it cannot resume: start a new run")
    check_targets(experiment, encoded)
    train, val, test = ({arm: one.splits[name] for arm, one in encoded.items()} for name in SPLITS)
    if training.refit:
        train = {arm: joined(split, val[arm]) for arm, split in train.items()}
    model.prepare(train)
    batches = TrainingBatches(
        train,
        columns=training.batch_tokens,
        seed=seed,
        budget=budget_in_batches(training),
        costs=model.costs,
        temperature=training.temperature,
        augment={arm: one.augment for arm, one in experiment.arms.items() if one.augment is not None},
        together=training.accumulate,
    )
    steps = None if batches.total is None else batches.total // training.accumulate
    if done and steps and done > steps:
        raise InputError(
            f"{resume}: it is at step {done:,}, and {experiment.name} now ends at {steps:,}: start a new run"
        )
    model.planned_steps = steps or model.planned_steps
    result = Result(
        name=experiment.name,
        arms=list(experiment.arms),
        seed=seed,
        status="running",
        metrics={},
        signatures={},
        parameters=count_parameters(experiment),
        budget={},
        arm_budgets={},
        speed={},
        settings=settings,
        data={arm: {**one.data, "perfect": experiment.arms[arm].head.perfect} for arm, one in encoded.items()},
        versions=versions(),
        commit=commit(place.file),
        machine=machine(),
        error="",
        folder=resume or new_folder(place.out / experiment.name, f"seed{seed}"),
    )
    tracking = None
    try:
        began(result)
        keep(vocabularies, result.folder)
        longest = {arm: int(split.lengths()[:, 0].max()) for arm, split in train.items()}
        about = {
            "name": result.name,
            "seed": seed,
            "settings": settings,
            "study": place.origin,
            "comparison": place.group,
            "trial": place.trial,
        }
        write_json(result.folder / "settings.json", {**about, "longest": longest, "read": read})
        introduce(result, training, steps)
        tracking = start_tracking(experiment, result, place, model, done)
        held_out = {
            name: EvaluationBatches(split, columns=EVALUATION_FACTOR * training.batch_tokens)
            for name, split in (("val", val), ("test", test))
        }
        speed = Speed(batches, peak_flops(device_here(), torch.bfloat16 if computes_bf16(training) else torch.float32))
        metrics = train_and_test(model, training, result.folder, tracking, batches, held_out, speed, done)
        signatures = {
            f"test/{arm}/{metric}": signature
            for arm, one in experiment.arms.items()
            for metric, signature in one.head.signatures.items()
        }
    except BaseException as error:
        stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        said = "" if stopped else traceback.format_exception_only(error)[-1].strip()
        said = f"diverged: {error}" if isinstance(error, DivergedError) else said
        status = "interrupted" if stopped else "failed"
        result = replace(
            result, status=status, error=said, budget=model.ledger.read(), arm_budgets=model.ledger.by_arm()
        )
        try:
            if tracking is not None:
                tracking.close(failed=True)
        finally:
            result.write()
        if stopped or isinstance(error, InputError) or is_mendable(error):
            error.add_note(str(result.folder))
            raise
        raise RunFailed(result) from error
    result = replace(
        result,
        status="finished",
        metrics=metrics,
        signatures=signatures,
        budget=model.ledger.read(),
        arm_budgets=model.ledger.by_arm(),
        speed=speed.found,
    )
    try:
        tell(result, experiment, model, val)
        found = {f"speed/{name}": value for name, value in speed.found.items()}
        score = {} if training.refit else {"val/score": model.score}  # sweeps read the last one
        tracking.keep(result.folder, {**metrics, **score, **found})
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


def encode_tasks(experiment: Experiment, known: MutableMapping[str, EncodedArm]) -> dict[str, EncodedArm]:
    """Encode each task that is not in `known` yet, and add it there.

    Raises InputError for an example that cannot be encoded, and first of all for a scale that is not valid.
    """
    training = experiment.training
    unknown = {name: arm for name, arm in experiment.arms.items() if name not in known}
    for arm in unknown.values():
        scale_of(arm.source)  # a wrong scale is reported before hours of encoding
    for name, arm in unknown.items():
        known[name] = prepare_task(
            arm.source, arm.tokenizer, arm.head, bad_examples=training.bad_examples, workers=training.workers
        )
    return {name: known[name] for name in experiment.arms}


def check_targets(experiment: Experiment, encoded: Mapping[str, EncodedArm]) -> None:
    """Raise InputError where an arm's head cannot score a split that it will be asked to."""
    for name, arm in experiment.arms.items():
        for split in SPLITS[2 if experiment.training.refit else 1 :]:
            examples = split_of(arm.source, split)
            try:
                arm.head.check(target_of(examples, index) for index in encoded[name].splits[split].indices.tolist())
            except InputError as error:
                raise InputError(f"{name_of(arm.source)}, {split}: {error}") from error


def read_unfinished(folder: Path) -> dict[str, Any] | None:
    """What a stopped run goes on from; None of a finished one. Raises InputError where it cannot go on."""
    if (folder / "result.json").exists() and Result.read(folder).status == "finished":
        return None
    try:
        return read_start(folder)
    except InputError as error:
        raise InputError(f"{error}: it cannot resume; start a new run") from error


def budget_in_batches(training: Training) -> dict[Unit, float]:
    """The budget, its steps as the batches that they take."""
    return {unit: amount * (training.accumulate if unit == "steps" else 1) for unit, amount in training.budget.items()}


def introduce(result: Result, training: Training, steps: int | None) -> None:
    """Say what is about to be trained."""
    counts = result.parameters
    parts = ", ".join(f"{part} {counts[part]:,}" for part in ("tokenizer", "trunk", "head"))
    length = f"{training.seconds:g} seconds" if steps is None else f"{steps:,} steps"
    say(f"{result.name}: {', '.join(result.arms)}; seed {result.seed}; {length}")
    say(f"  {counts['total']:,} parameters ({parts})")


def start_tracking(experiment: Experiment, result: Result, place: Place, model: Unifier, done: int | None) -> Tracking:
    """Open metrics.csv, and the trackers asked for; `done` is the step that the run resumes from."""
    tracking = Tracking(result.folder, lambda: model.ledger.read())
    tracking.add(lambda: MetricsFile(result.folder / "metrics.csv"))
    if place.tensorboard:
        tracking.add(lambda: TensorBoard(result.folder, done))
    if place.track != "off":
        about = {name: getattr(result, name) for name in ("seed", "parameters", "commit", "versions", "machine")}
        tracking.add(
            lambda: WeightsAndBiases(
                result.folder,
                project=place.study,
                group=place.group or experiment.name,
                job_type=place.job_type,
                tags=tags_of(experiment.arms.values()),
                # "data" is a setting's name
                config=as_json({**result.settings, **about, "trial": place.trial, "datasets": result.data}),
                mode=wandb_mode(place.track),
            )
        )
    return tracking
