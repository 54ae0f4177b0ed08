"""The trackers of a run: Weights & Biases, MLflow, Trackio, and Lightning's loggers."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Literal, get_args

from lightning.pytorch.loggers import Logger

from unifier.training.loggers import LightningTracker, RunLoggers, TrackedRun
from unifier.training.mlflow_run import MLflow
from unifier.training.trackio_run import Trackio
from unifier.training.wandb_run import WeightsAndBiases, wandb_mode
from unifier_tokenizers import InputError

TrackMode = Literal["online", "offline", "off", "mlflow", "trackio"]
"""A mode of Weights & Biases, the name of another tracker, or "off" for no tracker."""

CreateLogger = Callable[[TrackedRun], Logger]
"""A function that creates the Lightning logger of a run, such as `lambda run: CSVLogger(run.folder)`."""


def check_trackers(track: str | None, loggers: Sequence[Logger | CreateLogger], *, several_runs: bool) -> None:
    """Check the requested trackers before training.

    Args:
        track: The requested tracker, or None for Weights & Biases.
        loggers: The requested Lightning loggers.
        several_runs: True for a comparison, whose runs need one logger each.

    Raises:
        InputError: A tracker is unknown or not installed, or one logger would receive several runs.
    """
    if track is not None and track not in get_args(TrackMode):
        raise InputError(f"track={track}: one of {', '.join(get_args(TrackMode))} is expected")
    if track in ("mlflow", "trackio") and find_spec(track) is None:
        raise InputError(f'track={track}: {track} is not installed: pip install "unifier-torch[trackers]"')
    for logger in loggers:
        name = type(logger).__name__
        if not isinstance(logger, Logger) and not callable(logger):
            raise InputError(f"loggers: {name} is not a Lightning logger; give a logger, or a function that creates it")
        if several_runs and isinstance(logger, Logger):
            raise InputError(
                f"loggers: one {name} cannot log the runs of a comparison; give a function that creates a logger for "
                f"each run, such as lambda run: {name}(run.folder)"
            )


def add_trackers(
    loggers: RunLoggers, tracked: TrackedRun, track: str | None, given: Sequence[Logger | CreateLogger]
) -> None:
    """Add the requested trackers to the loggers of a run. A tracker that cannot start is left out with a warning.

    Args:
        loggers: The loggers of the run.
        tracked: The description of the run.
        track: The requested tracker, or None for Weights & Biases in its default mode.
        given: Lightning loggers, and functions that create a Lightning logger.
    """
    for each in given:
        loggers.add(lambda each=each: LightningTracker(_create(each, tracked), tracked.config))
    if track == "mlflow":
        loggers.add(partial(MLflow, tracked))
    elif track == "trackio":
        loggers.add(partial(Trackio, tracked))
    elif track != "off":
        loggers.add(lambda: WeightsAndBiases(tracked, wandb_mode(track)))


def _create(given: Logger | CreateLogger, tracked: TrackedRun) -> Logger:
    return given if isinstance(given, Logger) else given(tracked)
