"""Comparisons of tiny trials, which the processes of a Ray cluster load from this file."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from torch import nn

from unifier import ClassificationHead, Comparison, Experiment, PatchTokenizer, Task, Training, Transformer
from unifier.data.source import Example, SplitName
from unifier.datasets import Digits

KILLS = "UNIFIER_TEST_KILLS"
"""The variable with a folder. A process that takes a file of the folder kills itself with the signal in its name."""


MEET = "UNIFIER_TEST_MEET"
"""The variable with a folder in which two trials leave a file. Each trial waits for the file of the other trial."""


class Few:
    """Forty digits, the same in each split."""

    labels = Digits.labels
    name = "few"

    def split(self, name: SplitName) -> list[Example]:
        return list(Digits().split("train"))[:40]


def die_or_fail(*, fails: bool) -> Callable[..., None]:
    """Return a hook of a trunk that acts once, in the seventh training pass, after the first checkpoint.

    The hook raises an error, or kills the process if the folder `KILLS` contains a file.
    """
    passes = count(1)

    def hook(trunk: nn.Module, _: object) -> None:
        if not trunk.training or next(passes) != 7:
            return
        if fails:
            raise RuntimeError("a broken trunk")
        for path in Path(os.environ.get(KILLS, "/none")).glob("*"):
            with suppress(FileNotFoundError):  # Another process may take the file.
                path.unlink()
                os.kill(os.getpid(), int(path.name))
                return

    return hook


def meet(trunk: nn.Module, _: object) -> None:
    """Wait for another trial. Raises TimeoutError if no other trial runs at the same time."""
    if (name := os.environ.get(MEET)) is None or (mine := Path(name, str(os.getpid()))).exists():
        return
    mine.touch()
    end = time.monotonic() + 60
    while len(list(Path(name).iterdir())) < 2:
        if time.monotonic() > end:
            raise TimeoutError("no other trial runs")
        time.sleep(0.05)


def study(patch: int, steps: int, *, fails: bool = False) -> Experiment:
    task = Task(Few(), PatchTokenizer(8, patch=patch, channels=1), ClassificationHead(Digits.labels, 8))
    training = Training(steps=steps, batch_tokens=128, num_validations=2, num_workers=0)
    trunk = Transformer(8, 1, 2, 8)
    trunk.register_forward_pre_hook(die_or_fail(fails=fails))
    trunk.register_forward_pre_hook(meet)
    return Experiment(trunk, {"few": task}, training)


def fine(*, steps: int = 8) -> Experiment:
    return study(2, steps)


def coarse(*, steps: int = 8) -> Experiment:
    return study(4, steps)


def failing(*, steps: int = 8) -> Experiment:
    return study(4, steps, fails=True)


def twelve() -> Comparison:
    """Compare two experiments and one transfer, with four seeds."""
    return Comparison(
        "twelve",
        [fine, coarse],
        seeds=(0, 1, 2, 3),
        modes=("solo", "transfer"),
        trainable=("all",),
        transfers=[(fine, coarse)],
        controls=(),
        budget_unit="steps",
    )


def partly() -> Comparison:
    """Compare an experiment that fails with an experiment that does not fail."""
    return Comparison("partly", [failing, coarse], budget_unit="steps")


def both() -> Comparison:
    """Compare two experiments."""
    return Comparison("both", [fine, coarse], budget_unit="steps")
