"""The model that Lightning trains: batch to loss."""

import math
import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any, final

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from unifier.data.dataloader import Batch, Cost
from unifier.data.dataset import split_of
from unifier.data.encoding import Encoded
from unifier.data.source import SplitName, target_of
from unifier.experiment import Experiment
from unifier.heads.head import mean_share
from unifier.network import Network
from unifier.training.cost import Ledger, Spent, flops_of_example
from unifier.training.memory import forget_peak_memory
from unifier.training.optimizers import make_optimizer, make_schedule

FIRST_GUESS = 1000
"""Steps, before the first one has told how many a budget in seconds makes."""


@final
class Unifier(Network, pl.LightningModule):
    """A network in training.

    Training batches are (arm, batch) pairs; so are those of validation and test, whose predictions are gathered over
    the whole split and scored at its end under `val/<arm>/<metric>` and `test/<arm>/<metric>`.
    """

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.training_settings = experiment.training
        weighed = experiment.arms if experiment.training.weighting == "uncertainty" else ()
        self.log_variances = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in weighed})
        mode = experiment.training.compile
        self.training_loss = self.loss if mode is None else torch.compile(self.loss, mode=mode)
        self.ledger = Ledger({name: Spent() for name in experiment.arms})
        self.random_states: list[Tensor] = []
        self.began = 0.0
        """When the current batch's forward pass began, or when the clock was last read after that."""
        self.seconds_in_steps = 0.0
        """Time in forward and backward passes and the optimizer."""
        self.planned_steps = 1
        """How many steps there are to be, unless the budget is in seconds."""
        self.costs: dict[str, Cost] = {}
        self.losses: dict[str, list[Tensor]] = {name: [] for name in experiment.arms}
        """Each arm's losses since they were last logged."""
        self.lengths = torch.empty(0), torch.empty(0)
        """N and L (B,) of the batch that was sent to the device last."""
        self.turn = ""
        """The arm whose batch it is."""
        self.predictions: dict[str, dict[int, Any]] = {}
        self.targets: dict[tuple[str, SplitName], dict[int, Any]] = {}
        """Each arm's raw targets of a split, by place, once it has been scored."""
        self.scores: dict[str, float] = {}
        """The last scores of each split, under the names they are logged by."""
        self.score = 0.0
        """The last one of validation as a whole: the mean of each arm's first metric, in per cent of a perfect one."""

    @property
    def total_steps(self) -> int:
        """How many steps there are to be: planned, or told by the time that those so far have taken."""
        seconds = self.training_settings.seconds
        if seconds is None:
            return self.planned_steps
        spent = self.ledger.all()
        return max(round(spent.steps * seconds / spent.seconds), spent.steps + 1) if spent.seconds else FIRST_GUESS

    def prepare(self, splits: Mapping[str, Encoded]) -> None:
        """Learn from the training splits what an example costs."""
        buffers = [buffer.clone() for buffer in self.buffers()]
        for arm, split in splits.items():
            augment = self.arms[arm].augment
            self.costs[arm] = flops_of_example(lambda batch, arm=arm: self.loss(arm, batch), split, augment)
        self.zero_grad(set_to_none=True)
        for buffer, before in zip(self.buffers(), buffers, strict=True):
            buffer.copy_(before)  # what was counted is no training: a batch norm has seen nothing yet

    def weigh(self, arm: str, loss: Tensor) -> Tensor:
        """What a step lowers: the loss times the arm's weight, and times a learned one (Kendall et al. 2018, eq. 7)."""
        if arm in self.log_variances:
            loss = loss * (-self.log_variances[arm]).exp() + self.log_variances[arm] / 2
        return loss * self.arms[arm].weight

    def transfer_batch_to_device(
        self, batch: tuple[str, Batch], device: torch.device, dataloader_idx: int
    ) -> tuple[str, Batch]:
        arm, data = batch
        self.lengths = data.lengths()  # here, since an accelerator that is asked for them is waited for
        return arm, data.to(device)

    def on_train_batch_start(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        self.ledger.go_on()

    def training_step(self, batch: tuple[str, Batch], batch_idx: int) -> Tensor:
        self.began = time.perf_counter()
        arm, data = batch
        loss = self.training_loss(arm, data)
        assert len(self.lengths[0]) == len(data.mask), "another batch was sent to the device"
        self.losses[arm].append(loss.detach().clone())  # a CUDA graph's next run writes over what it returned
        self.turn = arm
        # Here, since a hook of the model's at the step's end runs after the callbacks that log and save it.
        self.ledger.count(arm, self.lengths[0], round(self.costs[arm](*self.lengths).sum()))
        return self.weigh(arm, loss)

    def on_after_backward(self) -> None:
        self._clock(self.turn)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        # Lightning runs the forward and the backward pass within it.
        super().optimizer_step(*args, **kwargs)
        self._clock(*self.ledger.in_step)  # whose work the optimizer does
        self.ledger.step()
        seconds = self.training_settings.seconds
        # By the plan too, or what comes after the last validation that is due would never be validated.
        if self.ledger.steps >= self.planned_steps if seconds is None else self.ledger.all().seconds >= seconds:
            self.trainer.should_stop = True

    def _clock(self, *arms: str) -> None:
        if len(self.arms) > 1:
            self._finish()  # or the time that one arm's work takes would be the next one's
        now = time.perf_counter()
        self.seconds_in_steps += now - self.began
        self.began = now
        self.ledger.clock(*arms)

    def _finish(self) -> None:
        """Wait for what an accelerator still does behind the program's back."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def validation_step(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        self._answer(*batch)

    def test_step(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        self._answer(*batch)

    def _answer(self, arm: str, batch: Batch) -> None:
        self.predictions.setdefault(arm, {}).update(self.answers(arm, batch))

    def on_validation_epoch_start(self) -> None:
        if self.ledger.running and self.device.type != "cpu":
            self._finish()
            self.ledger.clock(self.turn)
        self.ledger.pause()
        self.predictions = {}

    def on_test_epoch_start(self) -> None:
        self.predictions = {}

    def on_validation_epoch_end(self) -> None:
        if self.training_settings.refit:  # on examples that are trained on
            self._score("val", said="train")
            return
        self.score = mean_share((first, self.arms[arm].head.perfect) for arm, first in self._score("val").items())
        self.log("val/score", self.score)

    def on_test_epoch_end(self) -> None:
        self._score("test")

    def _score(self, split: SplitName, *, said: SplitName | None = None) -> dict[str, float]:
        """Log each arm's metrics, under the split's name or what is `said` in its place; returns the first of each."""
        firsts: dict[str, float] = {}
        for arm, found in self.predictions.items():
            if (arm, split) not in self.targets:
                examples = split_of(self.arms[arm].source, split)
                self.targets[arm, split] = {i: target_of(examples, i) for i in found}
            targets = self.targets[arm, split]
            scores = self.arms[arm].head.scores(list(found.values()), [targets[i] for i in found])
            own = f"{said or split}/{arm}/"
            named = {own + metric: score for metric, score in scores.items()}
            self.log_dict(named)  # Lightning rounds to float32
            self.scores = {name: score for name, score in self.scores.items() if not name.startswith(own)} | named
            firsts[arm] = next(iter(scores.values()))
        return firsts

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        # Lightning's own refuses a fused optimizer under autocast, for the sake of a gradient scaling that bf16 lacks.
        # Weighed as the losses are, or an arm that has a step to itself would count no more than its clipped gradient.
        learned = {arm: math.exp(-variance.item()) for arm, variance in self.log_variances.items()}
        weights = [self.arms[arm].weight * learned.get(arm, 1.0) for arm in self.ledger.in_step.elements()]
        torch.nn.utils.clip_grad_norm_(self.parameters(), self.training_settings.clip * fmean(weights))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ledger"] = {"arms": self.ledger.by_arm(), "peak_memory_bytes": self.ledger.peak_memory_bytes}
        checkpoint["losses"] = self.losses
        checkpoint["random_states"] = [module.get_rng_state() for module in self._drawn_from()]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        spent = {arm: Spent(**kept) for arm, kept in checkpoint["ledger"]["arms"].items()}
        self.ledger = Ledger(spent, checkpoint["global_step"], checkpoint["ledger"]["peak_memory_bytes"])
        self.losses = checkpoint["losses"]
        self.random_states = checkpoint["random_states"]

    def _drawn_from(self) -> list[Any]:
        """The modules that hold the random numbers of training: the processor's, and an accelerator's own."""
        return [torch] if self.device.type == "cpu" else [torch, torch.get_device_module(self.device)]

    def on_train_start(self) -> None:
        for state, module in zip(self.random_states, self._drawn_from(), strict=False):
            module.set_rng_state(state)  # a resumed run draws on where it stopped
        forget_peak_memory(self.device.type)

    def configure_optimizers(self) -> Any:
        training = self.training_settings
        optimizer = make_optimizer(training, self, self.trunk)
        scheduler = make_schedule(training, optimizer, lambda: self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
