"""Checkpoints: the best weights and the latest, each written whole or not at all."""

from io import BytesIO
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from unifier.study.files import write_bytes


@final
class Checkpoint(ModelCheckpoint):
    """One file of a run's folder, written when a validation has ended.

    Lightning's own writes once, at the end, where each step is validated; and where a folder was moved before its run
    went on, it forgets how good the best weights were.
    """

    def __init__(self, folder: Path, name: str, *, monitor: str | None = None) -> None:
        """`folder` is the run's; with `monitor` the file holds what was highest in it, else the latest."""
        super().__init__(
            folder / "checkpoints",
            filename=name,
            monitor=monitor,
            mode="max",
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )

    def check_monitor_top_k(self, trainer: pl.Trainer, current: Tensor | None = None) -> bool:
        """Whether weights of this score are the best: of equal ones the latest are, which saw more at a lower rate."""
        best = self.best_model_score
        nothing_better = current is not None and best is not None and bool(best.isneginf() or current >= best)
        return super().check_monitor_top_k(trainer, current) or nothing_better

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` says of this file, whatever folder it was in."""
        path = self.format_checkpoint_name({})
        moved = {name: state_dict[name] and path for name in ("best_model_path", "kth_best_model_path")}
        best = {path: state_dict["best_model_score"]} if state_dict["best_k_models"] else {}
        super().load_state_dict({**state_dict, **moved, "dirpath": self.dirpath, "best_k_models": best})


@final
class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside the one before it, whose place it then takes.

    Lightning writes it where temporary files lie, and from another file system it is copied over the one before: a
    disk that is full, or a kill, leaves neither.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Save a checkpoint; raises OSError where it cannot be written, which leaves the one before."""
        content = BytesIO()  # torch, writing a file by itself, raises a RuntimeError from a disk that is full
        torch.save(checkpoint, content)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.getbuffer())
