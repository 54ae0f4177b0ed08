"""Checkpoint files: reading, checking, and loading into a network."""

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
    """Read a checkpoint. Raise InputError if the file is missing or broken."""
    if not path.exists():
        raise InputError(f"{path}: no such file; the run stopped before its first validation, or the file was deleted")
    try:
        if not zipfile.is_zipfile(path):
            raise pickle.UnpicklingError("the end of the archive is missing")
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: broken ({_last_line(error)})") from error
    if missing := [name for name in CHECKPOINT_KEYS if name not in checkpoint]:
        raise InputError(f"{path}: broken (missing: {', '.join(missing)})")
    return checkpoint


def load_resume_checkpoint(folder: Path) -> dict[str, Any]:
    """Read the checkpoint from which a stopped run resumes.

    Raises InputError if the checkpoint is missing or broken. If the checkpoint refers to best weights, the file of the
    best weights is checked too.
    """
    best, last = (folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
    checkpoint = read_checkpoint(last)
    if any(Path(state.get("best_model_path", "")).name == best.name for state in checkpoint["callbacks"].values()):
        read_checkpoint(best)
    return checkpoint


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], checkpoint: Path, experiment: str) -> None:
    """Load a checkpoint's weights into a network.

    Args:
        network: The network into which the weights are loaded.
        weights: The state dict of the checkpoint.
        checkpoint: The path of the checkpoint, for an error message.
        experiment: The name of the experiment, for an error message.

    Raises:
        InputError: If the weights do not fit the network.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"{checkpoint} does not fit {experiment}; the experiment may have changed since ({_last_line(error)})"
        ) from error


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
