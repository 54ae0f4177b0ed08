"""Checkpoints: the best weights and the latest, each written whole or not at all.

The weights in a run's folder, read and put into a network."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unifier_tokenizers import InputError

CHECKPOINT_KEYS = ("state_dict", "global_step", "callbacks")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What a checkpoint of a run holds. Raises InputError where it is not there, or torn."""
    if not path.exists():
        raise InputError(f"{path}: no such file; the run was stopped before its first validation, or it was deleted")
    try:
        if not zipfile.is_zipfile(path):
            raise pickle.UnpicklingError("no end of the archive")
        kept: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: broken ({_last_line(error)})") from error
    if lacking := [name for name in CHECKPOINT_KEYS if name not in kept]:
        raise InputError(f"{path}: broken (it lacks {', '.join(lacking)})")
    return kept


def load_resume_checkpoint(folder: Path) -> dict[str, Any]:
    """The checkpoint that a stopped run goes on from.

    Raises InputError where it is not whole, or the best one is not, which it says there was.
    """
    best, last = (folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
    kept = read_checkpoint(last)
    if any(Path(state.get("best_model_path", "")).name == best.name for state in kept["callbacks"].values()):
        read_checkpoint(best)
    return kept


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], checkpoint: Path, experiment: str) -> None:
    """Put in the weights of a checkpoint. Raises InputError where they are not of this experiment's network."""
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = _last_line(error)
        raise InputError(f"{checkpoint} does not fit {experiment}; was that changed since? ({reason})") from error


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
