"""How a run or a comparison ends early, as exceptions.

The content of a run's result.json."""

from pathlib import Path
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    pass
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

import torch

from unifier.files import read_json, write_json
from unifier_tokenizers import InputError


@final
class Interrupted(BaseException):
    """The user asked a run or a comparison to stop; the last checkpoint is whole. Says the folder to resume from.

    Like KeyboardInterrupt it passes by all who handle errors; and unlike that, Lightning does not end the program.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's or the comparison's."""
        super().__init__(str(folder))
        self.folder = folder


@final
class DivergedError(Exception):
    """A loss is no number any more, and nothing that follows would be."""


@final
class RunFailed(Exception):  # noqa: N818  "failed" says it
    """A run broke on its way, for the reason that is this exception's cause; its result says so too."""

    def __init__(self, result: "Result") -> None:
        super().__init__(f"{result.folder}: {result.error}")
        self.result = result


Status = Literal["running", "finished", "failed", "interrupted"]


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run found and what it cost, and the folder it lies in."""

    name: str
    tasks: list[str]
    seed: int
    status: Status
    metrics: Mapping[str, float]
    signatures: Mapping[str, str]
    """For a metric with variants, the one used: sacreBLEU's signature under the metric's name."""
    parameters: Mapping[str, int]
    budget: Mapping[str, float]
    task_budgets: Mapping[str, Mapping[str, float]]
    """The budget by task, but for memory."""
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


def versions() -> dict[str, str]:
    """What it ran on."""
    return {"python": platform.python_version(), "torch": version("torch"), "unifier": version("unifier")}


def source_commit(file: str = "") -> str:
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
