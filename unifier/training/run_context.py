"""Settings for the storage and tracking of a run."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from lightning.pytorch.loggers import Logger

from unifier.config import split_reference
from unifier.folders import TRIALS_FOLDER, new_folder
from unifier.training.lightning_options import LightningOptions
from unifier.training.trackers import CreateLogger, TrackMode


@final
@dataclass(frozen=True)
class TrialContext:
    """Comparison that contains a run, with the entries that identify the run."""

    comparison: str
    """The comparison's name."""
    folder: Path
    """The comparison's folder."""
    row: Mapping[str, Any]
    """The entries that identify the run in comparison.json, and the settings that all runs of the comparison share."""


@final
@dataclass(frozen=True)
class RunContext:
    """Settings for the storage and tracking of runs."""

    out: Path
    study: str
    """The name of the W&B project, which is the name of the file that defines the experiment."""
    trial: TrialContext | None = None
    """The comparison of the run, or None for a run outside a comparison."""
    job_type: str = "train"
    wandb: TrackMode | None = None
    tensorboard: bool = False
    loggers: Sequence[Logger | CreateLogger] = ()
    """Lightning loggers, or functions that create the Lightning logger of a run."""
    lightning: LightningOptions = field(default_factory=LightningOptions)
    """The user's own callbacks and arguments of Lightning's Trainer."""
    name: str | None = None
    """The name of the folder, or None for a unique name."""
    origin: str | Sequence[str] = ""
    """FILE:name of the experiment for `load`, or for a joint run a list with the FILE:name of each experiment."""

    @property
    def file(self) -> str:
        """The file of the experiment, or of the first experiment of a joint run."""
        return split_reference(self.origin if isinstance(self.origin, str) else self.origin[0])[0]

    def run_folder(self, name: str, seed: int) -> AbstractContextManager[Path]:
        """Create and lock the run's folder: `<out>/<experiment>/<id>`, or `trials/<id>` in the comparison's folder."""
        if self.trial is None:
            return new_folder(self.out / name, f"seed{seed}", self.name)
        return new_folder(self.trial.folder / TRIALS_FOLDER, f"{name}-seed{seed}")
