"""The model that Lightning trains: batch to loss."""

import math
import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any, final

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from unifier.data.dataloader import Batch, CostFn
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.data.source import SplitName, target_of
from unifier.experiment import Experiment
from unifier.heads.head import mean_score_percent
from unifier.network import Network
from unifier.training.cost import Cost, CostTracker, flops_of_example
from unifier.training.memory import reset_peak_memory
from unifier.training.optimizers import create_optimizer, create_schedule

INITIAL_TOTAL_STEPS = 1000
"""Steps, before the first one has told how many a budget in seconds makes."""


@final
class UnifierModule(Network, pl.LightningModule):
    """A network in training.

    Training batches are (task, batch) pairs; so are those of validation and test, whose predictions are gathered over
    the whole split and scored at its end under `val/<task>/<metric>` and `test/<task>/<metric>`.
    """

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.training_settings = experiment.training
        weighed = experiment.tasks if experiment.training.loss_weighting == "uncertainty" else ()
        self.log_variances = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in weighed})
        mode = experiment.training.compile
        self.training_loss = self.loss if mode is None else torch.compile(self.loss, mode=mode)
        self.cost_tracker = CostTracker({name: Cost() for name in experiment.tasks})
        self.random_states: list[Tensor] = []
        self.began = 0.0
        """When the current batch's forward pass began, or when the clock was last read after that."""
        self.seconds_in_steps = 0.0
        """Time in forward and backward passes and the optimizer."""
        self.planned_steps = 1
        """How many steps there are to be, unless the budget is in seconds."""
        self.costs: dict[str, CostFn] = {}
        self.losses: dict[str, list[Tensor]] = {name: [] for name in experiment.tasks}
        """Each task's losses since they were last logged."""
        self.lengths = torch.empty(0), torch.empty(0)
        """N and L (B,) of the batch that was sent to the device last."""
        self.turn = ""
        """The task whose batch it is."""
        self.predictions: dict[str, dict[int, Any]] = {}
        self.targets: dict[tuple[str, SplitName], dict[int, Any]] = {}
        """Each task's raw targets of a split, by place, once it has been scored."""
        self.scores: dict[str, float] = {}
        """The last scores of each split, under the names they are logged by."""
        self.score = 0.0
        """The last one of validation as a whole: the mean of each task's first metric, in percent of a perfect one."""

    @property
    def total_steps(self) -> int:
        """How many steps there are to be: planned, or told by the time that those so far have taken."""
        seconds = self.training_settings.seconds
        if seconds is None:
            return self.planned_steps
        spent = self.cost_tracker.total()
        return (
            max(round(spent.steps * seconds / spent.seconds), spent.steps + 1) if spent.seconds else INITIAL_TOTAL_STEPS
        )

    def prepare(self, splits: Mapping[str, EncodedSplit]) -> None:
        """Learn from the training splits what an example costs."""
        buffers = [buffer.clone() for buffer in self.buffers()]
        for task, split in splits.items():
            augment = self.tasks[task].augmentation
            self.costs[task] = flops_of_example(lambda batch, task=task: self.loss(task, batch), split, augment)
        self.zero_grad(set_to_none=True)
        for buffer, before in zip(self.buffers(), buffers, strict=True):
            buffer.copy_(before)  # what was counted is no training: a batch norm has seen nothing yet

    def weighted_loss(self, task: str, loss: Tensor) -> Tensor:
        """What a step lowers: the loss times the task's weight, and times a learned one (Kendall et al. 2018, eq. 7)."""
        if task in self.log_variances:
            loss = loss * (-self.log_variances[task]).exp() + self.log_variances[task] / 2
        return loss * self.tasks[task].loss_weight

    def transfer_batch_to_device(
        self, batch: tuple[str, Batch], device: torch.device, dataloader_idx: int
    ) -> tuple[str, Batch]:
        task, data = batch
        self.lengths = data.lengths()  # here, since an accelerator that is asked for them is waited for
        return task, data.to(device)

    def on_train_batch_start(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        self.cost_tracker.start()

    def training_step(self, batch: tuple[str, Batch], batch_idx: int) -> Tensor:
        self.began = time.perf_counter()
        task, data = batch
        loss = self.training_loss(task, data)
        assert len(self.lengths[0]) == len(data.mask), "another batch was sent to the device"
        self.losses[task].append(loss.detach().clone())  # a CUDA graph's next run writes over what it returned
        self.turn = task
        # Here, since a hook of the model's at the step's end runs after the callbacks that log and save it.
        self.cost_tracker.count(task, self.lengths[0], round(self.costs[task](*self.lengths).sum()))
        return self.weighted_loss(task, loss)

    def on_after_backward(self) -> None:
        self._clock(self.turn)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        # Lightning runs the forward and the backward pass within it.
        super().optimizer_step(*args, **kwargs)
        self._clock(*self.cost_tracker.in_step)  # whose work the optimizer does
        self.cost_tracker.step()
        seconds = self.training_settings.seconds
        # By the plan too, or what comes after the last validation that is due would never be validated.
        if (
            self.cost_tracker.steps >= self.planned_steps
            if seconds is None
            else self.cost_tracker.total().seconds >= seconds
        ):
            self.trainer.should_stop = True

    def _clock(self, *tasks: str) -> None:
        if len(self.tasks) > 1:
            self._finish()  # or the time that one task's work takes would be the next one's
        now = time.perf_counter()
        self.seconds_in_steps += now - self.began
        self.began = now
        self.cost_tracker.clock(*tasks)

    def _finish(self) -> None:
        """Wait for what an accelerator still does behind the program's back."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def validation_step(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        self._answer(*batch)

    def test_step(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        self._answer(*batch)

    def _answer(self, task: str, batch: Batch) -> None:
        self.predictions.setdefault(task, {}).update(self.predict_batch(task, batch))

    def on_validation_epoch_start(self) -> None:
        if self.cost_tracker.running and self.device.type != "cpu":
            self._finish()
            self.cost_tracker.clock(self.turn)
        self.cost_tracker.pause()
        self.predictions = {}

    def on_test_epoch_start(self) -> None:
        self.predictions = {}

    def on_validation_epoch_end(self) -> None:
        if self.training_settings.refit:  # on examples that are trained on
            self._score("val", said="train")
            return
        self.score = mean_score_percent(
            (first, self.tasks[task].head.max_score) for task, first in self._score("val").items()
        )
        self.log("val/score", self.score)

    def on_test_epoch_end(self) -> None:
        self._score("test")

    def _score(self, split: SplitName, *, said: SplitName | None = None) -> dict[str, float]:
        """Log each task's metrics, under the split's name or what is `said` in its place; returns the first of each."""
        firsts: dict[str, float] = {}
        for task, found in self.predictions.items():
            if (task, split) not in self.targets:
                examples = open_split(self.tasks[task].source, split)
                self.targets[task, split] = {i: target_of(examples, i) for i in found}
            targets = self.targets[task, split]
            scores = self.tasks[task].head.scores(list(found.values()), [targets[i] for i in found])
            own = f"{said or split}/{task}/"
            named = {own + metric: score for metric, score in scores.items()}
            self.log_dict(named)  # Lightning rounds to float32
            self.scores = {name: score for name, score in self.scores.items() if not name.startswith(own)} | named
            firsts[task] = next(iter(scores.values()))
        return firsts

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        # Lightning's own refuses a fused optimizer under autocast, for the sake of a gradient scaling that bf16 lacks.
        # Weighed as the losses are, or an task that has a step to itself would count no more than its clipped gradient.
        learned = {task: math.exp(-variance.item()) for task, variance in self.log_variances.items()}
        weights = [
            self.tasks[task].loss_weight * learned.get(task, 1.0) for task in self.cost_tracker.in_step.elements()
        ]
        torch.nn.utils.clip_grad_norm_(self.parameters(), self.training_settings.grad_clip * fmean(weights))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ledger"] = {
            "tasks": self.cost_tracker.by_task(),
            "peak_memory_bytes": self.cost_tracker.peak_memory_bytes,
        }
        checkpoint["losses"] = self.losses
        checkpoint["random_states"] = [module.get_rng_state() for module in self._drawn_from()]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        spent = {task: Cost(**kept) for task, kept in checkpoint["ledger"]["tasks"].items()}
        self.cost_tracker = CostTracker(spent, checkpoint["global_step"], checkpoint["ledger"]["peak_memory_bytes"])
        self.losses = checkpoint["losses"]
        self.random_states = checkpoint["random_states"]

    def _drawn_from(self) -> list[Any]:
        """The modules that hold the random numbers of training: the processor's, and an accelerator's own."""
        return [torch] if self.device.type == "cpu" else [torch, torch.get_device_module(self.device)]

    def on_train_start(self) -> None:
        for state, module in zip(self.random_states, self._drawn_from(), strict=False):
            module.set_rng_state(state)  # a resumed run draws on where it stopped
        reset_peak_memory(self.device.type)

    def configure_optimizers(self) -> Any:
        training = self.training_settings
        optimizer = create_optimizer(training, self, self.trunk)
        scheduler = create_schedule(training, optimizer, lambda: self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
