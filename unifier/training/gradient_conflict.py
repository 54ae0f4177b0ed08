"""Cosines between tasks' gradients on the shared trunk."""

from collections import defaultdict
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from unifier.files import write_csv
from unifier.training.lightning_module import UnifierModule

NUM_WINDOWS = 20
"""Parts of a run, over each of which cosines are averaged."""


STEPS_PER_WINDOW = 4
"""How many batches of each task are compared in a window, from its beginning: more say little more, and cost time."""


CSV_COLUMNS: tuple[str, ...] = ("step", "tokens", "layer", "task_a", "task_b", "cosine")


TaskPair = tuple[str, str]


@final
class GradientConflict(Callback):
    """Compares the gradient of each batch with the last one of every task, layer by layer of the trunk.

    It costs no pass of its own: an task's last gradient is of the same step, or a few steps old. The cosine between two
    batches of the same task is the baseline for those between tasks. interference.csv holds the means over windows of the
    run.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's."""
        self.path = folder / "interference.csv"
        self.last: dict[str, tuple[int, dict[str, Tensor]]] = {}
        self.so_far: tuple[int, dict[str, Tensor]] = (-1, {})
        """The last step, and what its batches' gradients add up to."""
        self.sums: dict[int, dict[tuple[str, TaskPair], list[float]]] = defaultdict(lambda: defaultdict(list))
        self.tokens: dict[int, tuple[int, int]] = {}

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, UnifierModule)
        step, tasks = trainer.global_step, len(pl_module.tasks)
        window = min(NUM_WINDOWS * step // pl_module.total_steps, NUM_WINDOWS - 1)
        began, _ = self.tokens.setdefault(window, (step, pl_module.cost_tracker.total().tokens))
        if (step - began) * trainer.accumulate_grad_batches >= STEPS_PER_WINDOW * tasks:
            self.last = {task: found for task, found in self.last.items() if step - found[0] < 2 * tasks}
            self.so_far = -1, {}  # nothing is kept, in checkpoints either, that no gradient will be compared with
            return
        whole = gradients(pl_module)
        before, others = self.so_far
        own = {layer: gradient - others[layer] for layer, gradient in whole.items()} if step == before else whole
        self.so_far = step, whole
        for task, (then, other) in self.last.items():
            if step - then > 2 * tasks:  # of the window before
                continue
            pair = min(task, pl_module.turn), max(task, pl_module.turn)
            for layer, gradient in own.items():
                cosine = torch.cosine_similarity(gradient, other[layer].to(gradient), dim=0).item()
                self.sums[window][layer, pair].append(cosine)
        self.last[pl_module.turn] = step, own

    def state_dict(self) -> dict[str, Any]:
        found = [(window, *of, cosines) for window, sums in self.sums.items() for of, cosines in sums.items()]
        return {"tokens": self.tokens, "cosines": found, "last": self.last, "so_far": self.so_far}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tokens, self.last, self.so_far = (state_dict[name] for name in ("tokens", "last", "so_far"))
        for window, layer, pair, cosines in state_dict["cosines"]:
            self.sums[window][layer, pair] = cosines

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        rows = [
            dict(zip(CSV_COLUMNS, (*self.tokens[window], layer, *pair, sum(found) / len(found)), strict=True))
            for window, cosines in self.sums.items()
            for (layer, pair), found in cosines.items()
        ]
        write_csv(self.path, rows, CSV_COLUMNS)


def gradients(model: UnifierModule) -> dict[str, Tensor]:
    """The gradient on each layer of the trunk, as one vector."""
    layers: dict[str, list[Tensor]] = defaultdict(list)
    for name, parameter in model.trunk.named_parameters():
        if parameter.grad is not None:
            layers[layer_of(name)].append(parameter.grad.flatten())
    return {layer: torch.cat(parts) for layer, parts in layers.items()}


def layer_of(name: str) -> str:
    """The layer that a parameter of the trunk is in: "blocks.0", or its first word where it is in none."""
    first, second, *_ = [*name.split("."), ""]
    return f"{first}.{second}" if second.isdigit() else first
