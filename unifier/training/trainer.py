"""Training of one run by Lightning, from the first step to the test scores."""

import logging
import math
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar

from unifier.data.dataloader import EvalDataLoader, TrainDataLoader
from unifier.experiment import Training
from unifier.nn.precision import default_device, has_fast_bfloat16
from unifier.training.callbacks import (
    AtomicCheckpointIO,
    BestOrLastCheckpoint,
    GracefulStop,
    LossLogger,
    SpeedMonitor,
    TimedValidation,
    WeightAveraging,
    create_progress,
)
from unifier.training.checkpoint import read_checkpoint
from unifier.training.gradient_conflict import GradientConflict
from unifier.training.lightning_module import UnifierModule
from unifier.training.loggers import RunLoggers


@contextmanager
def quiet_lightning() -> Generator[None]:
    """Within it Lightning neither introduces itself nor warns of what is known."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # It calls a function of its own that torch 2.11 deprecates.
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            # A resumed run writes into the same folder, and `batches.done` leaves out what was trained on.
            for known in ("Checkpoint directory .* exists", ".*your dataloader is not resumable"):
                warnings.filterwarnings("ignore", message=known)
            yield
    finally:
        log.setLevel(level)


@quiet_lightning()
def train_and_test(
    model: UnifierModule,
    training: Training,
    folder: Path,
    tracking: RunLoggers,
    batches: TrainDataLoader,
    held_out: Mapping[str, EvalDataLoader],
    speed: SpeedMonitor,
    done: int | None,
) -> dict[str, float]:
    """Train, then score the weights that did best in validation on both held-out splits; of a refit the last ones.

    `done` are the steps of a run that goes on.
    """
    best = BestOrLastCheckpoint(folder, "best", monitor="step" if training.refit else "val/score")
    last = BestOrLastCheckpoint(folder, "last")  # Lightning's own save_last leaves out what is no better than the best
    together = [GradientConflict(folder)] if len(model.tasks) > 1 else []
    averaged = training.ema_decay or training.average_last > 1
    averaging = [WeightAveraging(decay=training.ema_decay, num_validations=training.average_last)] if averaged else []
    clock = [] if training.seconds is None else [TimedValidation(training.seconds / training.num_validations)]
    bar = create_progress()
    interruption = GracefulStop(folder)
    trainer = pl.Trainer(
        accelerator="auto",
        devices=1,
        precision="bf16-mixed" if uses_bf16(training) else "32-true",
        max_epochs=1,
        val_check_interval=1.0
        if training.seconds is not None
        else math.ceil(len(batches) / training.grad_accumulation / training.num_validations)
        * training.grad_accumulation,
        accumulate_grad_batches=training.grad_accumulation,
        logger=tracking,
        plugins=[AtomicCheckpointIO()],
        callbacks=[speed, best, last, LossLogger(), *together, *averaging, *clock, interruption, bar],
        enable_progress_bar=isinstance(bar, ProgressBar),
        default_root_dir=folder,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_model_summary=False,
    )
    start = None if done is None else folder / "checkpoints" / "last.ckpt"
    batches.done = (done or 0) * training.grad_accumulation
    with interruption:
        trainer.fit(model, batches, held_out["val"], ckpt_path=start)
        model.load_state_dict(read_checkpoint(Path(best.best_model_path))["state_dict"])
        if not training.refit:
            trainer.loggers = []  # these scores are logged already, where they were found
            trainer.validate(model, held_out["val"], verbose=False)
            trainer.loggers = [tracking]
        trainer.test(model, held_out["test"], verbose=False)
    return model.scores


def uses_bf16(training: Training) -> bool:
    """Whether products of bfloat16 are asked for, and fast here."""
    return training.precision == "bf16" and has_fast_bfloat16(default_device())
