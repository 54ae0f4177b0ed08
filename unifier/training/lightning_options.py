"""Callbacks and Trainer arguments of Lightning that a user gives, and the check that they keep the plan of a run."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, final

import lightning.pytorch as pl
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler

from unifier.distributed import world
from unifier_tokenizers import InputError

GivenCallback = Callback | Callable[[], Callback]
GivenTrainer = Mapping[str, Any] | Callable[[], Mapping[str, Any]]

ALLOWED = (
    *("profiler", "plugins", "strategy", "limit_val_batches"),
    *("detect_anomaly", "deterministic", "benchmark", "sync_batchnorm", "enable_model_summary"),
)
"""The arguments of Lightning's Trainer that do not change the plan of a run."""

REPLACEMENTS = {
    "accumulate_grad_batches": "the setting grad_accumulation",
    "callbacks": "the argument callbacks of `run`",
    "check_val_every_n_epoch": "the setting num_validations",
    "gradient_clip_val": "the setting grad_clip",
    "limit_train_batches": "a budget, such as steps",
    "limit_test_batches": "a data set with a smaller test split, because the scores are those of the whole split",
    "logger": "the argument loggers of `run`",
    "max_epochs": "the setting epochs",
    "max_steps": "the setting steps",
    "max_time": "the setting seconds",
    "precision": "the setting precision, or a precision plugin in plugins",
    "val_check_interval": "the setting num_validations",
}
"""For some other arguments, what to use instead."""

REFUSED_CALLBACKS = {
    lightning_callbacks.EarlyStopping: "the setting patience",
    lightning_callbacks.Timer: "the setting seconds",
    lightning_callbacks.GradientAccumulationScheduler: "the setting grad_accumulation",
    lightning_callbacks.StochasticWeightAveraging: "the setting average_last or ema_decay",
    lightning_callbacks.LearningRateFinder: "a sweep over learning_rate",
    lightning_callbacks.BatchSizeFinder: "the setting batch_tokens",
}
"""Lightning's callbacks that would change the plan of a run, and what to use instead."""

PROFILERS = {"simple": SimpleProfiler, "advanced": AdvancedProfiler, "pytorch": PyTorchProfiler}
"""Lightning's profilers by name. Their files are in the run's folder."""


@final
@dataclass(frozen=True)
class LightningOptions:
    """Callbacks and Trainer arguments that a user gives, or functions that create them for each run."""

    callbacks: Sequence[GivenCallback] = ()
    trainer: GivenTrainer = field(default_factory=dict[str, Any])

    def check(self, *, several_runs: bool) -> None:
        """Raise InputError if the options would change the plan, or if several runs would share one object."""
        for given in self.callbacks:
            name = type(given).__name__
            if not callable(given) and not isinstance(given, Callback):
                raise InputError(f"callbacks: {name} is not a Lightning callback, or a function that creates it")
            if isinstance(given, Callback):
                _check_callback(given)
            if several_runs and isinstance(given, Callback):
                raise InputError(
                    f"callbacks: one {name} cannot be used in all runs of a comparison; give a function that creates "
                    f"it, such as lambda: {name}(...)"
                )
        if callable(self.trainer):
            return
        for key, value in self.trainer.items():
            _check_argument(key, value)
            if several_runs and not isinstance(value, str | int | float | None):
                raise InputError(
                    f"trainer={key}: one {type(value).__name__} cannot be used in all runs of a comparison; give a "
                    "function that creates all arguments, such as trainer=lambda: {...}"
                )

    def describe(self) -> dict[str, Any]:
        """Return the options in the types of JSON, for settings.json. Return {} without options."""
        if not self.callbacks and not self.trainer:
            return {}
        arguments = _name(self.trainer) if callable(self.trainer) else self.trainer
        if not isinstance(arguments, str):
            arguments = {key: value if _is_plain(value) else _name(value) for key, value in arguments.items()}
        return {"callbacks": [_name(given) for given in self.callbacks], "trainer": arguments}

    def create_callbacks(self) -> list[Callback]:
        """Return the callbacks of one run."""
        created = [given if isinstance(given, Callback) else given() for given in self.callbacks]
        for callback in created:
            if not isinstance(callback, Callback):
                raise InputError(f"callbacks: a function returned {type(callback).__name__}, which is no callback")
            _check_callback(callback)
        return created

    def create_arguments(self, folder: Path, defaults: Mapping[str, Any], *, num_tasks: int) -> dict[str, Any]:
        """Return all arguments of the Trainer of one run.

        Args:
            folder: The run's folder, which contains the files of a profiler.
            defaults: Our own arguments, among which "plugins" and "precision".
            num_tasks: The number of tasks.
        """
        given = dict(self.trainer() if callable(self.trainer) else self.trainer)
        for key, value in given.items():
            _check_argument(key, value)
        if "limit_val_batches" in given:
            if num_tasks > 1:
                raise InputError("trainer=limit_val_batches: joint training validates every task, so leave it out")
            limit = given["limit_val_batches"]
            warnings.warn(f"limit_val_batches={limit}: validation scores cover a part of the split", stacklevel=2)
        if world().size > 1 and (own := sorted(given.keys() & {"strategy", "limit_val_batches"})):
            raise InputError(f"trainer={own[0]}: {world().size} processes need our own {own[0]}; leave it out")
        plugins = _as_list(given.pop("plugins", None))
        arguments = {**defaults, **given, "plugins": [*defaults["plugins"], *plugins]}
        if any(isinstance(plugin, Precision) for plugin in plugins):
            del arguments["precision"]  # Lightning accepts either a precision or a precision plugin.
        profiler = arguments.get("profiler")
        if isinstance(profiler, str):
            arguments["profiler"] = PROFILERS[profiler](dirpath=folder, filename="profile")
        return arguments


def _check_callback(callback: Callback) -> None:
    for refused, replacement in REFUSED_CALLBACKS.items():
        if isinstance(callback, refused):
            raise InputError(f"callbacks: {type(callback).__name__} changes the plan of the run; use {replacement}")


def _check_argument(key: str, value: Any) -> None:
    if key not in inspect.signature(pl.Trainer).parameters:
        raise InputError(f"trainer={key}: Lightning's Trainer has no such argument; possible are {', '.join(ALLOWED)}")
    if key not in ALLOWED:
        replacement = REPLACEMENTS.get(key, f"one of the arguments {', '.join(ALLOWED)}")
        raise InputError(f"trainer={key}: this argument would change the plan of the run; use {replacement}")
    if key == "profiler" and isinstance(value, str) and value not in PROFILERS:
        raise InputError(f"trainer=profiler: {value!r} is not one of {', '.join(PROFILERS)}")
    for plugin in _as_list(value) if key == "plugins" else ():
        if isinstance(plugin, CheckpointIO):
            raise InputError("trainer=plugins: checkpoints are written by our own plugin, which survives a kill")
        if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
            raise InputError("trainer=plugins: float16 scales the gradients before they are clipped; use bf16")


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else [*cast(Sequence[Any], value)] if isinstance(value, list | tuple) else [value]


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _name(value: Any) -> str:
    """Return the qualified name of a function or a class, or of the class of an object."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
