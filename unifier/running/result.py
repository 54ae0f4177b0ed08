"""The content of a run's result.json."""

import hashlib
import io
import math
import os
import pickle
import platform
import subprocess
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor

from unifier.data.examples import split_of
from unifier.data.source import SPLITS, UNREADABLE, Source, name_of, scale_of
from unifier.study.files import read_json, write_json
from unifier_tokenizers import InputError

Status = Literal["running", "finished", "failed", "interrupted"]


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run found and what it cost, and the folder it lies in."""

    name: str
    arms: list[str]
    seed: int
    status: Status
    metrics: Mapping[str, float]
    signatures: Mapping[str, str]
    """For a metric with variants, the one used: sacreBLEU's signature under the metric's name."""
    parameters: Mapping[str, int]
    budget: Mapping[str, float]
    arm_budgets: Mapping[str, Mapping[str, float]]
    """The budget by arm, but for memory."""
    speed: Mapping[str, float]
    """Rates and shares of the time in training, as `Speed` finds them; empty until trained."""
    settings: Mapping[str, Any]
    data: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]
    commit: str
    machine: str
    error: str
    """Why it failed, in a line; empty where it did not."""
    folder: Path

    def content(self) -> dict[str, Any]:
        """What result.json holds: all but the folder, and null for a score that is not a number."""
        content = asdict(self)
        del content["folder"]
        content["metrics"] = {name: score if math.isfinite(score) else None for name, score in self.metrics.items()}
        return content

    @classmethod
    def read(cls, folder: Path) -> "Result":
        """What a run left in its folder; raises InputError naming the file where it is missing or broken."""
        content = read_json(folder / "result.json", metrics=dict)
        try:
            scores = {name: math.nan if score is None else score for name, score in content.pop("metrics").items()}
            return cls(**content, metrics=scores, folder=folder)
        except (KeyError, TypeError) as error:
            raise InputError(f"{folder / 'result.json'}: broken ({error})") from error

    def write(self) -> None:
        """Write result.json, whole."""
        write_json(self.folder / "result.json", self.content())


def describe_data(source: Source, skipped: Mapping[str, int]) -> dict[str, Any]:
    """A source's name, hash, split sizes and scale, and how many examples of each split could not be read.

    And, where there are any, how many were left out (`dropped`), or are held out and trained on too (`copies`).
    """
    sizes = {split: len(split_of(source, split)) for split in SPLITS}
    scale = scale_of(source)
    noted = {name: found for name in ("dropped", "copies") if (found := getattr(source, name, None))}
    return {
        "name": name_of(source),
        "sha256": sha256_of(source),
        **sizes,
        "skipped": dict(skipped),
        "scale": scale and asdict(scale),
        **noted,
    }


def sha256_of(source: Source) -> str:
    """A source's own hash, or that of its examples where it has none."""
    known = getattr(source, "sha256", None)
    if known is not None:
        return str(known)
    hashed = hashlib.sha256()
    for split in SPLITS:
        examples = split_of(source, split)
        for i in range(len(examples)):
            try:
                hashed.update(_pickled(*examples[i]))
            except (ValueError, OSError):  # one that was skipped
                hashed.update(UNREADABLE.encode())
    return hashed.hexdigest()


def _pickled(raw: Any, target: Any) -> bytes:
    """An example in bytes that are the same in every process: a set's order is not, nor where torch keeps a tensor."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump((raw, sorted(target) if isinstance(target, Set) else target))
    return file.getvalue()


@final
class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        content = obj.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        return tuple, ((str(obj.dtype), tuple(obj.shape), content),)


def versions() -> dict[str, str]:
    """What it ran on."""
    return {"python": platform.python_version(), "torch": version("torch"), "unifier": version("unifier")}


def commit(file: str = "") -> str:
    """The commit checked out where a file lies, or, if that is none, where the program was started.

    It has "-dirty" after it where files differ from it; it is empty where none is checked out.
    """
    folder = Path(file).parent if Path(file).is_file() else None
    try:
        # Without optional locks: a run that is killed leaves none in the way of the next commit.
        asked = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10, cwd=folder).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> str:
    """Processor, cores and accelerator."""
    parts = [processor(), f"{os.cpu_count()} cores"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Its name, with family and model where Linux tells them: virtual machines call unlike processors alike."""
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    first = cpuinfo.read_text().partition("\n\n")[0]
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = said.get("model name", platform.machine())
    return f"{name} (family {said['cpu family']}, model {said['model']})" if "cpu family" in said else name
