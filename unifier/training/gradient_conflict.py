"""Cosines between arms' gradients on the shared trunk."""

from collections import defaultdict
from pathlib import Path
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from unifier.files import write_table
from unifier.training.lightning_module import Unifier

WINDOWS = 20
"""Parts of a run, over each of which cosines are averaged."""


ROUNDS = 4
"""How many batches of each arm are compared in a window, from its beginning: more say little more, and cost time."""


COLUMNS: tuple[str, ...] = ("step", "tokens", "layer", "arm_a", "arm_b", "cosine")


Pair = tuple[str, str]


@final
class Interference(Callback):
    """Compares the gradient of each batch with the last one of every arm, layer by layer of the trunk.

    It costs no pass of its own: an arm's last gradient is of the same step, or a few steps old. The cosine between two
    batches of the same arm is the baseline for those between arms. interference.csv holds the means over windows of the
    run.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's."""
        self.path = folder / "interference.csv"
        self.last: dict[str, tuple[int, dict[str, Tensor]]] = {}
        self.so_far: tuple[int, dict[str, Tensor]] = (-1, {})
        """The last step, and what its batches' gradients add up to."""
        self.sums: dict[int, dict[tuple[str, Pair], list[float]]] = defaultdict(lambda: defaultdict(list))
        self.tokens: dict[int, tuple[int, int]] = {}

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, Unifier)
        step, arms = trainer.global_step, len(pl_module.arms)
        window = min(WINDOWS * step // pl_module.total_steps, WINDOWS - 1)
        began, _ = self.tokens.setdefault(window, (step, pl_module.ledger.all().tokens))
        if (step - began) * trainer.accumulate_grad_batches >= ROUNDS * arms:
            self.last = {arm: found for arm, found in self.last.items() if step - found[0] < 2 * arms}
            self.so_far = -1, {}  # nothing is kept, in checkpoints either, that no gradient will be compared with
            return
        whole = gradients(pl_module)
        before, others = self.so_far
        own = {layer: gradient - others[layer] for layer, gradient in whole.items()} if step == before else whole
        self.so_far = step, whole
        for arm, (then, other) in self.last.items():
            if step - then > 2 * arms:  # of the window before
                continue
            pair = min(arm, pl_module.turn), max(arm, pl_module.turn)
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
            dict(zip(COLUMNS, (*self.tokens[window], layer, *pair, sum(found) / len(found)), strict=True))
            for window, cosines in self.sums.items()
            for (layer, pair), found in cosines.items()
        ]
        write_table(self.path, rows, COLUMNS)


def gradients(model: Unifier) -> dict[str, Tensor]:
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
