"""A naive trainer: Lightning's DDP on two processes, which do not know of each other. Tests expect its faults."""

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DistributedSampler

from tests.two_processes import Trained, own_rank, stop, train
from unifier import Experiment, distributed, run
from unifier.config import load_experiment
from unifier.data.dataloader import Batch, EvalDataLoader, TrainDataLoader
from unifier.training import cost, parallel, trainer

SECONDS = 12
"""The time after which a process that waits for the other process fails."""

LOADERS: dict[Any, Callable[[Any], Iterator[tuple[str, Batch]]]] = {
    loader: loader.__iter__ for loader in (TrainDataLoader, EvalDataLoader)
}


def be_naive(folder: Path, *, sampler: bool) -> None:
    """Let this process train like a single process, with `devices=2` and Lightning's DDP.

    Args:
        folder: The folder for a file with which the processes connect again.
        sampler: True if torch's DistributedSampler divides the examples of each batch, and False for unchanged loaders.
    """
    distributed._world = distributed.World()  # pyright: ignore[reportPrivateUsage]
    os.environ.pop("WORLD_SIZE", None)
    dist.destroy_process_group()
    timeout = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", f"file://{folder}/naive", timeout, world_size=2, rank=own_rank())
    environment = parallel._environment  # pyright: ignore[reportPrivateUsage]
    trainer.trainer_options = lambda: {
        "devices": 2,
        "strategy": DDPStrategy(cluster_environment=environment),
    }
    for loader, iterate in LOADERS.items():
        loader.__iter__ = (lambda self, iterate=iterate: map(take_rows, iterate(self))) if sampler else iterate


def take_rows(batch: tuple[str, Batch]) -> tuple[str, Batch]:
    """Return the rows of a batch that a DistributedSampler gives to this process."""
    task, data = batch
    examples: Any = range(len(data.mask))
    rows = torch.tensor([*DistributedSampler(examples, 2, own_rank(), shuffle=False)])
    return task, Batch(*(part[rows] for part in data))


def train_naively(folder: Path, *given: Any, sampler: bool, **settings: Any) -> Trained:
    """Train like `two_processes.train`, but naively."""
    be_naive(folder, sampler=sampler)
    return train(folder, *given, **settings)


def stop_naively(folder: Path, *given: Any, **settings: Any) -> Path:
    """Stop a training like `two_processes.stop`, but naively."""
    be_naive(folder, sampler=False)
    return stop(folder, *given, **settings)


def compare_naively(folder: Path) -> None:
    """Run the comparison in the file small.py."""
    be_naive(folder, sampler=False)
    run(load_experiment(f"{folder / 'small.py'}:study"), out=folder / "runs", track="off")


def fail(experiment: Experiment) -> None:
    """Let rank 1 raise an error in its first training step."""

    def raise_error(trunk: Any, *_: Any) -> None:
        if own_rank() and trunk.training and torch.is_grad_enabled():
            raise ValueError("broken")

    experiment.trunk.register_forward_hook(raise_error)


def run_fast_clock(_: Experiment) -> None:
    """Let the clock of rank 1 run twice as fast."""
    cost.time = SimpleNamespace(perf_counter=lambda: (1 + own_rank()) * time.perf_counter())
