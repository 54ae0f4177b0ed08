"""Checkpoint files: writing with a hash, reading, checking, and loading into a network."""

import sys
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from torch import Tensor, nn

from unifier.files import print_status, write_bytes
from unifier.network import check_weights
from unifier_tokenizers import InputError

CHECKPOINT_KEYS = ("state_dict", "global_step", "callbacks")

HASH_BYTES = 64
"""Length of the SHA-256 hash at the end of a checkpoint, in hexadecimal digits."""

END_RECORD = b"PK\5\6", 22
"""The first bytes and the length of the record that ends a zip archive without a comment."""


@final
class Parts(BaseModel):
    """The parts of a checkpoint and their types. Only a resumed run needs the parts with a default."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    state_dict: dict[str, Any]
    global_step: NonNegativeInt
    callbacks: dict[str, dict[str, Any]]
    optimizer_states: list[dict[str, Any]] = []
    lr_schedulers: list[dict[str, Any]] = []
    loops: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    losses: dict[str, list[Tensor]] = {}
    metrics: list[dict[str, Any]] = []
    random_states: list[Tensor] = []
    streams: dict[str, list[Tensor]] = {}


def write_checkpoint(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Write a checkpoint that ends with the hash of all earlier bytes.

    The file is a zip archive, and the hash is the comment of the archive.
    """
    content = BytesIO()  # If torch wrote the file itself, a full disk would raise RuntimeError.
    torch.save(checkpoint, content)
    content.seek(-2, SEEK_END)  # The last two bytes of the archive are the length of the comment.
    content.write(HASH_BYTES.to_bytes(2, "little"))
    with content.getbuffer() as written:
        digest = sha256(written).hexdigest()
    content.write(digest.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    with content.getbuffer() as written:  # Python 3.12 can crash if an error's traceback keeps a view of the buffer.
        write_bytes(path, written)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Raise InputError if the file is missing or broken."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; the run stopped before its first validation, or the file was deleted")
    try:
        if not has_valid_hash(path):
            raise ValueError("bytes of the file have changed since it was written")
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if missing := [name for name in CHECKPOINT_KEYS if name not in dict(checkpoint)]:
            raise ValueError(f"missing: {', '.join(missing)}")
        Parts.model_validate(checkpoint)
    except OSError:
        raise
    except Exception as error:  # A damaged pickle raises errors of many types.
        raise InputError(f"{path}: broken ({_reason(error)})") from error
    return checkpoint


def has_valid_hash(path: Path) -> bool:
    """Return True if no byte of a checkpoint has changed.

    A file that `torch.save` has written itself contains no hash. In this case, the checksums of its parts are checked.

    Raises:
        BadZipFile, ValueError: The file is not a checkpoint.
    """
    content = np.memmap(path, np.uint8, "r")
    if sha256(content[:-HASH_BYTES].data).hexdigest().encode() == content[-HASH_BYTES:].tobytes():
        return True
    mark, length = END_RECORD
    with zipfile.ZipFile(path) as archive:
        return content[-length:].tobytes().startswith(mark) and archive.testzip() is None


def check_layout(part: Any, expected: Any, name: str) -> None:
    """Raise ValueError if a part of a checkpoint lacks the keys or the type of the expected part.

    Args:
        part: The part of the checkpoint.
        expected: The same part of a new run. A value of None has no fixed type, and an empty mapping
            or list has no fixed entries.
        name: The name of the part, for an error message.
    """
    if expected is None:
        return
    if type(part) is not type(expected):
        raise ValueError(f"{name}: {type(expected).__name__} is expected, not {type(part).__name__}")
    if isinstance(expected, dict) and expected:
        if changed := part.keys() ^ expected.keys():
            raise ValueError(f"{name}: missing or unknown: {', '.join(map(str, changed))}")
        for key, value in expected.items():
            check_layout(part[key], value, f"{name}.{key}")
    if isinstance(expected, list) and expected:
        if len(part) != len(expected):
            raise ValueError(f"{name}: {len(expected)} entries are expected, not {len(part)}")
        for value, wanted in zip(part, expected, strict=True):
            check_layout(value, wanted, name)


def load_resume_checkpoint(folder: Path) -> dict[str, Any]:
    """Read the checkpoint from which a stopped run resumes.

    Raises InputError if the checkpoint is missing or broken. If the checkpoint refers to best weights, the file of the
    best weights is checked too. If only the best weights exist, the run resumes from the best weights.
    """
    best, last = (folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
    if best.exists() and not last.exists():  # A process was killed after it wrote the first file.
        read_checkpoint(best)
        print_status(f"{last}: no such file; the run resumes from {best.name}", sys.stderr)
        write_bytes(last, best.read_bytes())
    checkpoint = read_checkpoint(last)
    if any(Path(str(state.get("best_model_path"))).name == best.name for state in checkpoint["callbacks"].values()):
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
        InputError: If the weights do not fit the network, or if a weight is not a finite number.
    """
    check_weights(network, weights, checkpoint)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"{checkpoint} does not fit {experiment}; the experiment may have changed since ({_reason(error)})"
        ) from error


def _reason(error: Exception) -> str:
    """Return the last line of an error, or for an error of pydantic the first part that does not fit."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
