"""The content of a run's result.json, and the exceptions that end a run or a comparison early."""

import math
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, final

import torch
from pydantic import TypeAdapter, ValidationError

from unifier.distributed import AgreedError
from unifier.files import read_json, write_sealed_json
from unifier_tokenizers import InputError

Status = Literal["running", "finished", "failed", "interrupted"]


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """Scores and costs of a run, and the folder of its files."""

    name: str
    """Name of the experiment."""
    tasks: list[str]
    seed: int
    status: Status
    metrics: Mapping[str, float]
    """A mapping from "<split>/<task>/<metric>" to a score. The mapping is empty until the test."""
    signatures: Mapping[str, str]
    """A mapping from metric to the signature of the metric's variant, such as sacreBLEU's signature."""
    parameters: Mapping[str, int]
    """The numbers of parameters in the tokenizers, in the trunk and in the heads, their total, and the trained ones."""
    budget: Mapping[str, float]
    """Cost of the run: steps, examples, tokens, flops, seconds and peak memory."""
    task_budgets: Mapping[str, Mapping[str, float]]
    """Cost of each task: steps, examples, tokens, flops and seconds."""
    speed: Mapping[str, float]
    """The measurements of `SpeedMonitor`. The mapping is empty until the end of training."""
    settings: Mapping[str, Any]
    data: Mapping[str, Mapping[str, Any]]
    """Name, hash and split sizes of each task's data set."""
    versions: Mapping[str, str]
    commit: str
    machine: str
    threads: int
    """Number of torch's CPU threads."""
    lineage: Mapping[str, Any]
    """The trained model from which the run started, and the cost of its training. Empty for a start from scratch."""
    error: str
    """The reason for a failure in one line, or "" if the run did not fail."""
    folder: Path

    def content(self) -> dict[str, Any]:
        """Return the content of result.json: all fields except the folder. Scores that are not finite become null."""
        content = asdict(self)
        del content["folder"]
        content["metrics"] = {name: score if math.isfinite(score) else None for name, score in self.metrics.items()}
        return content

    @classmethod
    def read(cls, folder: Path) -> "Result":
        """Read a run's result.json. Raise InputError if the file is missing or broken."""
        content = read_json(folder / "result.json", metrics=dict)
        try:
            scores = {name: math.nan if score is None else score for name, score in content.pop("metrics").items()}
            result = cls(**content, metrics=scores, folder=folder)
            return TypeAdapter(cls).validate_python(vars(result))
        except TypeError as error:
            raise InputError(f"{folder / 'result.json'}: broken ({error})") from error
        except ValidationError as error:
            first = error.errors()[0]
            fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise InputError(f"{folder / 'result.json'}: broken ({fault})") from error

    def write(self) -> None:
        """Write result.json."""
        write_sealed_json(self.folder / "result.json", self.content())


@final
class Interrupted(BaseException):
    """Exception for a stop requested by the user.

    Handlers of `Exception` do not catch `Interrupted`. Lightning catches KeyboardInterrupt, but not `Interrupted`.
    """

    def __init__(self, folder: Path) -> None:
        """Create the exception. `folder` is the folder of the run or comparison that can be resumed."""
        super().__init__(folder)  # `pickle` calls the class with the arguments of the base class.
        self.folder = folder


@final
class DivergedError(AgreedError):
    """Exception for a training loss that is NaN or infinite. All processes have the same loss."""


@final
class RunFailed(AgreedError):  # noqa: N818  The name reads better than RunFailedError.
    """Exception for a run that failed. `__cause__` is the original exception, and `result.error` is the reason."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)  # `pickle` calls the class with the arguments of the base class.
        self.result = result

    def __str__(self) -> str:
        """Return the folder and the error of the run."""
        return f"{self.result.folder}: {self.result.error}"


def versions() -> dict[str, str]:
    """Return the versions of Python, torch and unifier."""
    return {"python": platform.python_version(), "torch": version("torch"), "unifier": version("unifier-torch")}


def source_commit(file: str = "") -> str:
    """Return the git commit of the repository that contains the file.

    Without a file, the repository of the working directory is used. The text ends in "-dirty" if files have changed
    since the commit. Outside a repository, "" is returned.
    """
    folder = Path(file).parent if Path(file).is_file() else None
    try:
        # If the run is killed, git's optional lock would remain and block the user's next commit.
        command = [
            *("git", "--no-optional-locks", "describe"),
            *("--always", "--dirty", "--abbrev=40", "--exclude=*"),
        ]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, cwd=folder).stdout
        return output.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> str:
    """Return a description of the machine: the processor, the number of cores, and the GPU."""
    parts = [processor(), f"{os.cpu_count()} cores"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join(parts)


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor. On Linux, the family and model of the processor are appended.

    In virtual machines, different processors can have the same name.
    """
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    first_core = cpuinfo.read_text().partition("\n\n")[0]
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first_core.splitlines())}
    name = fields.get("model name", platform.machine())
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else name
