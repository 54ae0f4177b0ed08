"""Cosine similarity between the gradients of different tasks on a shared trunk."""

from collections import defaultdict
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from unifier.distributed import is_main, sum_over_processes
from unifier.files import write_csv
from unifier.training.lightning_module import UnifierModule

NUM_WINDOWS = 20
"""Number of windows into which the steps of a run are divided. Cosines are averaged over each window."""

BATCHES_PER_WINDOW = 4
"""Number of batches per task whose gradients are compared in each window of steps."""

CSV_COLUMNS: tuple[str, ...] = ("step", "tokens", "layer", "task_a", "task_b", "cosine")

TaskPair = tuple[str, str]


@final
class GradientConflict(Callback):
    """Callback that computes cosines between each batch's gradient and the last gradient of every task, per layer.

    The last gradient of each task is stored, so no additional backward pass is needed. The cosine between two batches
    of one task is the baseline for the cosines between tasks. The file interference.csv contains the mean cosines of
    each window.
    """

    def __init__(self, folder: Path) -> None:
        """Create the callback. `folder` is the run's folder."""
        self.path = folder / "interference.csv"
        self.last: dict[str, tuple[int, dict[str, Tensor]]] = {}
        """A mapping from task to the step of its last batch and the gradient of each layer."""
        self.accumulated: tuple[int, dict[str, Tensor]] = (-1, {})
        """The current step, and the sum of the gradients of all batches in this step so far."""
        self.cosines: dict[int, dict[tuple[str, TaskPair], list[float]]] = defaultdict(lambda: defaultdict(list))
        """The cosines in each window of steps, for each layer and each pair of tasks."""
        self.window_starts: dict[int, tuple[int, int]] = {}
        """The first step of each window, and the number of tokens before the first step."""

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the gradient of the batch with the last gradient of each task."""
        assert isinstance(pl_module, UnifierModule)
        step, num_tasks = trainer.global_step, len(pl_module.tasks)
        window = min(NUM_WINDOWS * step // pl_module.total_steps, NUM_WINDOWS - 1)
        start, _ = self.window_starts.setdefault(window, (step, pl_module.cost_tracker.total().tokens))
        if (step - start) * trainer.accumulate_grad_batches >= BATCHES_PER_WINDOW * num_tasks:
            # Remove old gradients, which would make the checkpoints larger.
            self.last = {task: entry for task, entry in self.last.items() if step - entry[0] < 2 * num_tasks}
            self.accumulated = -1, {}
            return
        total = layer_gradients(pl_module)
        sum_over_processes(*total.values())
        last_step, previous = self.accumulated
        gradients = (
            {layer: gradient - previous[layer] for layer, gradient in total.items()} if step == last_step else total
        )
        self.accumulated = step, total
        for task, (task_step, other) in self.last.items():
            if step - task_step > 2 * num_tasks:  # The gradient belongs to the previous window.
                continue
            pair = min(task, pl_module.current_task), max(task, pl_module.current_task)
            for layer, gradient in gradients.items():
                cosine = torch.cosine_similarity(gradient, other[layer].to(gradient), dim=0).item()
                self.cosines[window][layer, pair].append(cosine)
        self.last[pl_module.current_task] = step, gradients

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        cosines = [(window, *key, values) for window, sums in self.cosines.items() for key, values in sums.items()]
        return {
            "window_starts": self.window_starts,
            "cosines": cosines,
            "last": self.last,
            "accumulated": self.accumulated,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.window_starts, self.last, self.accumulated = (
            state_dict[name] for name in ("window_starts", "last", "accumulated")
        )
        for window, layer, pair, values in state_dict["cosines"]:
            self.cosines[window][layer, pair] = values

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write interference.csv."""
        rows = [
            dict(zip(CSV_COLUMNS, (*self.window_starts[window], layer, *pair, sum(values) / len(values)), strict=True))
            for window, cosines in self.cosines.items()
            for (layer, pair), values in cosines.items()
        ]
        if is_main():
            write_csv(self.path, rows, CSV_COLUMNS)


def layer_gradients(model: UnifierModule) -> dict[str, Tensor]:
    """Return the gradient of each layer of the trunk as one vector."""
    layers: dict[str, list[Tensor]] = defaultdict(list)
    for name, parameter in model.trunk.named_parameters():
        if parameter.grad is not None:
            layers[layer_of(name)].append(parameter.grad.flatten())
    return {layer: torch.cat(parts) for layer, parts in layers.items()}


def layer_of(name: str) -> str:
    """Return the layer of a parameter: "blocks.0" for "blocks.0.norm.weight", or "norm" for "norm.weight"."""
    first, second, *_ = [*name.split("."), ""]
    return f"{first}.{second}" if second.isdigit() else first
