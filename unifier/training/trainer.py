"""Training of one run by Lightning, from the first step to the test scores."""

import logging
import math
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar

from unifier.data.dataloader import EvaluationBatches, TrainingBatches
from unifier.experiment import Training
from unifier.nn.precision import device_here, fast_bfloat16
from unifier.training.callbacks import (
    Averaging,
    ByTheClock,
    Checkpoint,
    Interruption,
    Losses,
    Speed,
    WholeCheckpoints,
    progress,
)
from unifier.training.checkpoint import read_checkpoint
from unifier.training.gradient_conflict import Interference
from unifier.training.lightning_module import Unifier
from unifier.training.loggers import Tracking


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
    model: Unifier,
    training: Training,
    folder: Path,
    tracking: Tracking,
    batches: TrainingBatches,
    held_out: Mapping[str, EvaluationBatches],
    speed: Speed,
    done: int | None,
) -> dict[str, float]:
    """Train, then score the weights that did best in validation on both held-out splits; of a refit the last ones.

    `done` are the steps of a run that goes on.
    """
    best = Checkpoint(folder, "best", monitor="step" if training.refit else "val/score")
    last = Checkpoint(folder, "last")  # Lightning's own save_last leaves out what is no better than the best
    together = [Interference(folder)] if len(model.arms) > 1 else []
    averaged = training.ema or training.average > 1
    averaging = [Averaging(decay=training.ema, validations=training.average)] if averaged else []
    clock = [] if training.seconds is None else [ByTheClock(training.seconds / training.validations)]
    bar = progress()
    interruption = Interruption(folder)
    trainer = pl.Trainer(
        accelerator="auto",
        devices=1,
        precision="bf16-mixed" if computes_bf16(training) else "32-true",
        max_epochs=1,
        val_check_interval=1.0
        if training.seconds is not None
        else math.ceil(len(batches) / training.accumulate / training.validations) * training.accumulate,
        accumulate_grad_batches=training.accumulate,
        logger=tracking,
        plugins=[WholeCheckpoints()],
        callbacks=[speed, best, last, Losses(), *together, *averaging, *clock, interruption, bar],
        enable_progress_bar=isinstance(bar, ProgressBar),
        default_root_dir=folder,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        enable_model_summary=False,
    )
    start = None if done is None else folder / "checkpoints" / "last.ckpt"
    batches.done = (done or 0) * training.accumulate
    with interruption:
        trainer.fit(model, batches, held_out["val"], ckpt_path=start)
        model.load_state_dict(read_checkpoint(Path(best.best_model_path))["state_dict"])
        if not training.refit:
            trainer.loggers = []  # these scores are logged already, where they were found
            trainer.validate(model, held_out["val"], verbose=False)
            trainer.loggers = [tracking]
        trainer.test(model, held_out["test"], verbose=False)
    return model.scores


def computes_bf16(training: Training) -> bool:
    """Whether products of bfloat16 are asked for, and fast here."""
    return training.precision == "bf16" and fast_bfloat16(device_here())
