"""Training of one run with Lightning, from the first step to the test scores."""

import logging
import math
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ProgressBar

from unifier.data.dataloader import EvalDataLoader, TrainDataLoader
from unifier.distributed import PeerError, failing_together
from unifier.experiment import Training
from unifier.nn.precision import default_device, has_fast_bfloat16
from unifier.training.callbacks import (
    AtomicCheckpointIO,
    BestOrLastCheckpoint,
    EarlyStop,
    GracefulStop,
    LossLogger,
    SpeedMonitor,
    TimedValidation,
    WeightAveraging,
    create_progress,
)
from unifier.training.checkpoint import load_weights, read_checkpoint
from unifier.training.gradient_conflict import GradientConflict
from unifier.training.lightning_module import UnifierModule
from unifier.training.lightning_options import LightningOptions
from unifier.training.loggers import RunLoggers
from unifier.training.parallel import trainer_options
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line


@contextmanager
def quiet_lightning() -> Generator[None]:
    """Silence Lightning's banner and three warnings that do not apply here."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning itself calls a function that torch 2.11 deprecates.
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            # A resumed run writes into its folder again, and skips earlier batches with `batches_done`.
            # All processes log the scores of rank 0.
            for message in ("Checkpoint directory .* exists", ".*dataloader is not resumable", ".*sync_dist=True"):
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        log.setLevel(level)


@quiet_lightning()
def train_and_test(
    model: UnifierModule,
    training: Training,
    folder: Path,
    loggers: RunLoggers,
    batches: TrainDataLoader,
    held_out: Mapping[str, EvalDataLoader],
    speed: SpeedMonitor,
    done: int | None,
    given: LightningOptions | None = None,
) -> dict[str, float]:
    """Train a model, then compute the scores of the best weights on the validation and test splits.

    The best weights have the highest validation score. With `refit`, the last weights are tested instead of the best
    weights.

    Args:
        model: The model that is trained.
        training: The training settings.
        folder: The run's folder.
        loggers: The loggers of the metrics.
        batches: The training batches.
        held_out: The batches of "val" and "test".
        speed: The monitor that measures the speed of training.
        done: The number of steps that a resumed run has already made, or None for a new run.
        given: The user's own callbacks and arguments of Lightning's Trainer.

    Returns:
        A mapping from "<split>/<task>/<metric>" to a score.
    """
    best = BestOrLastCheckpoint(folder, "best", monitor="step" if training.refit else "val/score")
    # Lightning's own `save_last` does not save the last weights if earlier weights had a higher score.
    last = BestOrLastCheckpoint(folder, "last")
    progress = create_progress()
    stop = GracefulStop(folder)
    given = given or LightningOptions()
    options: dict[str, Any] = {
        **trainer_options(),
        "precision": "bf16-mixed" if uses_bf16(training) else "32-true",
        "plugins": [AtomicCheckpointIO()],
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(
        accelerator="auto",
        max_epochs=1,
        val_check_interval=1.0 if training.seconds is not None else validation_interval(training, len(batches)),
        accumulate_grad_batches=training.grad_accumulation,
        logger=loggers,
        callbacks=[
            speed,
            best,
            last,
            LossLogger(),
            *optional_callbacks(training, folder, num_tasks=len(model.tasks)),
            stop,
            progress,
            *given.create_callbacks(),
        ],
        enable_progress_bar=isinstance(progress, ProgressBar),
        default_root_dir=folder,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        **given.create_arguments(folder, options, num_tasks=len(model.tasks)),
    )
    start = folder / "checkpoints" / "last.ckpt" if done else None
    batches.batches_done = (done or 0) * training.grad_accumulation
    with stop:
        try:
            with failing_together():
                trainer.fit(model, batches, held_out["val"], ckpt_path=start)
        except Exception as error:
            if start is None or model.stepped or isinstance(error, InputError | OSError | PeerError):
                raise
            # No code of the user has run since Lightning began to read the checkpoint.
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise InputError(f"{start}: broken ({reason}), so the run cannot resume; start a new run") from error
        path = Path(best.best_model_path)
        load_weights(model, read_checkpoint(path)["state_dict"], path, "the trained model")
        if not training.refit:
            trainer.loggers = []  # The scores of the best weights have already been logged.
            trainer.validate(model, held_out["val"], verbose=False)
            trainer.loggers = [loggers]
        trainer.test(model, held_out["test"], verbose=False)
    return model.scores


def validation_interval(training: Training, num_batches: int) -> int:
    """Return the number of batches between two validations, rounded up to complete optimizer steps."""
    steps = math.ceil(num_batches / training.grad_accumulation / training.num_validations)
    return steps * training.grad_accumulation


def optional_callbacks(training: Training, folder: Path, *, num_tasks: int) -> list[Callback]:
    """Return the callbacks that depend on the settings."""
    callbacks: list[Callback] = []
    if num_tasks > 1:
        callbacks.append(GradientConflict(folder))
    if training.ema_decay or training.average_last > 1:
        callbacks.append(WeightAveraging(decay=training.ema_decay, num_validations=training.average_last))
    if training.seconds is not None:
        callbacks.append(TimedValidation(training.seconds / training.num_validations))
    if training.patience is not None:
        callbacks.append(EarlyStop(training.patience))
    return callbacks


def uses_bf16(training: Training) -> bool:
    """Return True if bfloat16 is requested and is fast on the device."""
    return training.precision == "bf16" and has_fast_bfloat16(default_device())
