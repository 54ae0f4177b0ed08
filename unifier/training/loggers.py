"""Logs of a run's metrics: metrics.csv, TensorBoard, and the interface of trackers."""

import warnings
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

from unifier.files import printable, write_csv
from unifier_tokenizers.errors import one_line


@final
@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Description of a run, or of a whole comparison, for trackers."""

    folder: Path
    id: str
    """The id of the run, which no other run has. A resumed run keeps its id."""
    name: str
    """The name of the run in a tracker: its experiment, its condition and its seed."""
    project: str
    """The name of the project, which is the name of the file that defines the experiment."""
    group: str
    """The group of the run. All runs of one execution of a comparison are in one group."""
    job_type: str
    """"train", "pretrain", "transfer" or "evaluate"."""
    in_comparison: bool = False
    """True for a trial of a comparison."""
    tags: Sequence[str] = ()
    """The modalities and task types of the run."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The settings of the run, and facts such as the seed and the data sets."""
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Name, hash and sizes of each task's data set, and the metrics that are errors."""
    sources: Sequence[str] = ()
    """The names of the copies of the experiment's files in the folder."""


class RunLogger(ABC):
    """Destination to which a run's metrics are logged."""

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the metrics of a step."""

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:  # noqa: B027
        """Log the existing samples, figures and report of a finished run."""

    def after_checkpoint(self, checkpoint: ModelCheckpoint) -> None:  # noqa: B027
        """Log a checkpoint that Lightning has written."""

    def alert(self, title: str, text: str, *, failed: bool) -> None:  # noqa: B027
        """Send a message to the user, if the destination can send messages."""

    def close(self, *, failed: bool) -> None:  # noqa: B027
        """Close the destination before the next run begins."""


@final
class RunLoggers(Logger):
    """Lightning logger that writes all metrics and the cost so far to several destinations.

    If a tracker fails, the logger prints a warning, removes the tracker, and training continues. If metrics.csv cannot
    be written, for example on a full disk, the run fails.
    """

    def __init__(self, folder: Path, budget: Callable[[], Mapping[str, float]]) -> None:
        """Create the logger for a run's folder. `budget` is a function that returns the cost so far."""
        super().__init__()
        self.folder, self.budget = folder, budget
        self.loggers: list[RunLogger] = []

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return self.folder.parent.name

    @property
    def version(self) -> str:
        """The id of the run."""
        return self.folder.name

    def add(self, create: Callable[[], RunLogger]) -> None:
        """Create and add a destination."""
        self._guard(lambda: self.loggers.append(create()))

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because settings.json and the W&B config contain the settings."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics together with the cost so far."""
        cost = self.budget()
        row = {name: value for name, value in metrics.items() if name != "epoch"}
        row |= {f"budget/{name}": cost[name] for name in ("tokens", "flops", "seconds")}
        self._each(lambda logger: logger.log(row, int(cost["steps"])))

    def log_scalars(self, values: Mapping[str, float]) -> None:
        """Log numbers without a cost, such as the conclusions of a comparison."""
        if values:
            self._each(lambda logger: logger.log(values, 0))

    def log_artifacts(self, folder: Path, metrics: Mapping[str, float]) -> None:
        """Log the files of a finished run."""
        self._each(lambda logger: logger.log_artifacts(folder, metrics))

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Pass a written checkpoint to Lightning's loggers, which may upload it."""
        self._each(lambda logger: logger.after_checkpoint(checkpoint_callback))

    def alert(self, title: str, text: str, *, failed: bool) -> None:
        """Send a message to the user through all trackers that can send messages."""
        self._each(lambda logger: logger.alert(title, text, failed=failed))

    def close(self, *, failed: bool) -> None:
        """Close all destinations."""
        self._each(lambda logger: logger.close(failed=failed))

    def _each(self, action: Callable[[RunLogger], None]) -> None:
        for logger in tuple(self.loggers):
            self._guard(lambda logger=logger: action(logger), logger)

    def _guard(self, action: Callable[[], None], logger: RunLogger | None = None) -> None:
        try:
            action()
        except Exception as error:
            if isinstance(logger, MetricsFile):
                raise
            warnings.warn(f"a tracker failed and receives no more metrics: {one_line(error)}", stacklevel=2)
            self.loggers = [other for other in self.loggers if other is not logger]
            if logger is not None:
                with suppress(Exception):  # An open W&B run would log the next run's metrics.
                    logger.close(failed=True)


@final
class MetricsFile(RunLogger):
    """Writer of metrics.csv, with a row for each call of `log` and a column for each metric."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        """Create the writer of metrics.csv.

        Args:
            path: The file. Each call of `log` writes all rows.
            rows: The list to which rows are appended. A checkpoint contains the rows, so a resumed run does not
                depend on the file.
        """
        self.path, self.rows = path, rows

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Append a row."""
        self.rows.append({"step": step, **metrics})
        write_csv(self.path, self.rows)


@final
class TensorBoard(RunLogger):
    """Writer of TensorBoard event files in the run's folder."""

    def __init__(self, folder: Path, done: int | None = None) -> None:
        """Open the event files. If the run resumes from step `done`, events of later steps are removed."""
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=None if done is None else done + 1)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add scalars."""
        for name, value in metrics.items():
            self.writer.add_scalar(printable(name), value, step)

    def close(self, *, failed: bool) -> None:
        """Close the event files."""
        self.writer.close()


@final
class LightningTracker(RunLogger):
    """Adapter of any Lightning logger, such as `CSVLogger`, `CometLogger` or `MLFlowLogger`."""

    def __init__(self, logger: Logger, config: Mapping[str, Any]) -> None:
        """Log the settings of the run as hyperparameters."""
        if not isinstance(logger, Logger):
            raise TypeError(f"loggers: {type(logger).__name__} is not a Lightning logger")
        self.logger = logger
        logger.log_hyperparams(dict(config))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log metrics."""
        self.logger.log_metrics({printable(name): value for name, value in metrics.items()}, step)

    def after_checkpoint(self, checkpoint: ModelCheckpoint) -> None:
        """Log a checkpoint that Lightning has written."""
        self.logger.after_save_checkpoint(checkpoint)

    def close(self, *, failed: bool) -> None:
        """Save the pending metrics and end the run."""
        self.logger.save()
        self.logger.finalize("failed" if failed else "success")
