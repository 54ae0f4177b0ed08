"""The module that Lightning trains: losses, the clock, clipping, and the scores of validation and test."""

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
"""Assumed number of steps of a budget in seconds, until the first step is timed."""


@final
class UnifierModule(Network, pl.LightningModule):
    """A network in training.

    All batches are (task, batch) pairs. The predictions of validation and test are collected over the whole split and
    scored at its end, under `val/<task>/<metric>` and `test/<task>/<metric>`.
    """

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self.training_settings = experiment.training
        learned = experiment.tasks if experiment.training.loss_weighting == "uncertainty" else ()
        self.log_variances = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in learned})
        mode = experiment.training.compile
        self.training_loss = self.loss if mode is None else torch.compile(self.loss, mode=mode)
        self.cost_tracker = CostTracker({name: Cost() for name in experiment.tasks})
        self.random_states: list[Tensor] = []
        """States of the random number generators in the checkpoint that the run resumes from."""
        self.last_clock_time = 0.0
        """Start of the current forward pass, or the last reading of the clock after it."""
        self.seconds_in_steps = 0.0
        """Time in forward and backward passes and the optimizer."""
        self.planned_steps = 1
        """Number of optimizer steps of the run, unless the budget is in seconds."""
        self.costs: dict[str, CostFn] = {}
        """Each task's FLOPs of an example, as a function of its lengths."""
        self.losses: dict[str, list[Tensor]] = {name: [] for name in experiment.tasks}
        """Each task's losses since they were last logged."""
        self.lengths = torch.empty(0), torch.empty(0)
        """N and L (B,) of the batch that was last moved to the device."""
        self.current_task = ""
        """The task of the current batch."""
        self.predictions: dict[str, dict[int, Any]] = {}
        """Each task's predictions for the current split, by example index."""
        self.targets: dict[tuple[str, SplitName], dict[int, Any]] = {}
        """Each task's raw targets of a split, by example index, after the split was first scored."""
        self.scores: dict[str, float] = {}
        """The latest scores of each split, under their logged names."""
        self.score = 0.0
        """The latest validation score: mean over tasks of the first metric, in percent of its best possible value."""

    @property
    def total_steps(self) -> int:
        """The number of optimizer steps of the run, estimated from the speed so far if the budget is in seconds."""
        seconds = self.training_settings.seconds
        if seconds is None:
            return self.planned_steps
        cost = self.cost_tracker.total()
        return max(round(cost.steps * seconds / cost.seconds), cost.steps + 1) if cost.seconds else INITIAL_TOTAL_STEPS

    def prepare(self, splits: Mapping[str, EncodedSplit]) -> None:
        """Count the FLOPs of training examples; the network's state is left unchanged."""
        buffers = [buffer.clone() for buffer in self.buffers()]
        for task, split in splits.items():
            augmentation = self.tasks[task].augmentation
            self.costs[task] = flops_of_example(lambda batch, task=task: self.loss(task, batch), split, augmentation)
        self.zero_grad(set_to_none=True)
        for buffer, before in zip(self.buffers(), buffers, strict=True):
            buffer.copy_(before)  # Counting is not training, so batch norms must not have seen these examples.

    def weighted_loss(self, task: str, loss: Tensor) -> Tensor:
        """Multiply a loss by the task's weight and by the learned factor, if any (Kendall et al. 2018, eq. 7)."""
        if task in self.log_variances:
            loss = loss * (-self.log_variances[task]).exp() + self.log_variances[task] / 2
        return loss * self.tasks[task].loss_weight

    def transfer_batch_to_device(
        self, batch: tuple[str, Batch], device: torch.device, dataloader_idx: int
    ) -> tuple[str, Batch]:
        """Move a batch to the device."""
        task, data = batch
        self.lengths = data.lengths()  # Reading them on the accelerator would force a synchronization.
        return task, data.to(device)

    def on_train_batch_start(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        """Start the clock."""
        self.cost_tracker.start()

    def training_step(self, batch: tuple[str, Batch], batch_idx: int) -> Tensor:
        """Return the weighted loss of a batch."""
        self.last_clock_time = time.perf_counter()
        task, data = batch
        loss = self.training_loss(task, data)
        assert len(self.lengths[0]) == len(data.mask), "another batch was moved to the device"
        self.losses[task].append(loss.detach().clone())  # The next run of a CUDA graph overwrites its output.
        self.current_task = task
        # A hook at the end of the step would run after the callbacks that log and save the cost.
        self.cost_tracker.count(task, self.lengths[0], round(self.costs[task](*self.lengths).sum()))
        return self.weighted_loss(task, loss)

    def on_after_backward(self) -> None:
        """Charge the time of the passes to the task."""
        self._clock(self.current_task)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Run the passes and the optimizer; stop the training at the end of the budget."""
        super().optimizer_step(*args, **kwargs)
        self._clock(*self.cost_tracker.in_step)  # The optimizer works for all tasks with a batch in the step.
        self.cost_tracker.step()
        seconds = self.training_settings.seconds
        # Batches beyond the planned steps would never be validated.
        if (
            self.cost_tracker.steps >= self.planned_steps
            if seconds is None
            else self.cost_tracker.total().seconds >= seconds
        ):
            self.trainer.should_stop = True

    def _clock(self, *tasks: str) -> None:
        if len(self.tasks) > 1:
            self._synchronize()  # Otherwise pending work of one task would be charged to the next.
        now = time.perf_counter()
        self.seconds_in_steps += now - self.last_clock_time
        self.last_clock_time = now
        self.cost_tracker.clock(*tasks)

    def _synchronize(self) -> None:
        """Wait for pending work of an accelerator."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def validation_step(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        """Collect the predictions of a batch."""
        self._collect_predictions(*batch)

    def test_step(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        """Collect the predictions of a batch."""
        self._collect_predictions(*batch)

    def _collect_predictions(self, task: str, batch: Batch) -> None:
        self.predictions.setdefault(task, {}).update(self.predict_batch(task, batch))

    def on_validation_epoch_start(self) -> None:
        """Stop the clock and discard earlier predictions."""
        if self.cost_tracker.running and self.device.type != "cpu":
            self._synchronize()
            self.cost_tracker.clock(self.current_task)
        self.cost_tracker.pause()
        self.predictions = {}

    def on_test_epoch_start(self) -> None:
        """Discard earlier predictions."""
        self.predictions = {}

    def on_validation_epoch_end(self) -> None:
        """Log the scores of the validation split, or of training if the split is trained on."""
        if self.training_settings.refit:
            self._log_scores("val", prefix="train")
            return
        firsts = self._log_scores("val")
        self.score = mean_score_percent((first, self.tasks[task].head.max_score) for task, first in firsts.items())
        self.log("val/score", self.score)

    def on_test_epoch_end(self) -> None:
        """Log the scores of the test split."""
        self._log_scores("test")

    def _log_scores(self, split: SplitName, *, prefix: SplitName | None = None) -> dict[str, float]:
        """Score the collected predictions and log the scores.

        Args:
            split: The split of the targets.
            prefix: The split in the logged names, if it differs.

        Returns:
            The first metric of each task.
        """
        firsts: dict[str, float] = {}
        for task, predictions in self.predictions.items():
            if (task, split) not in self.targets:
                examples = open_split(self.tasks[task].source, split)
                self.targets[task, split] = {index: target_of(examples, index) for index in predictions}
            targets = self.targets[task, split]
            scores = self.tasks[task].head.checked_metrics(
                list(predictions.values()), [targets[index] for index in predictions]
            )
            start = f"{prefix or split}/{task}/"
            named = {start + metric: score for metric, score in scores.items()}
            self.log_dict(named)  # Lightning rounds the logged values to float32.
            self.scores = {name: score for name, score in self.scores.items() if not name.startswith(start)} | named
            firsts[task] = next(iter(scores.values()))
        return firsts

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip the gradient to `grad_clip` times the mean weight of the step's losses.

        The weight is a factor because a task with a step of its own would otherwise have no more influence than its
        clipped gradient. Lightning's own clipping refuses a fused optimizer under autocast.
        """
        factors = {task: math.exp(-variance.item()) for task, variance in self.log_variances.items()}
        weights = [
            self.tasks[task].loss_weight * factors.get(task, 1.0) for task in self.cost_tracker.in_step.elements()
        ]
        torch.nn.utils.clip_grad_norm_(self.parameters(), self.training_settings.grad_clip * fmean(weights))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add costs, pending losses and random states to a checkpoint."""
        checkpoint["costs"] = {
            "tasks": self.cost_tracker.by_task(),
            "peak_memory_bytes": self.cost_tracker.peak_memory_bytes,
        }
        checkpoint["losses"] = self.losses
        checkpoint["random_states"] = [module.get_rng_state() for module in self._random_modules()]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore costs, pending losses and random states from a checkpoint."""
        costs = {task: Cost(**cost) for task, cost in checkpoint["costs"]["tasks"].items()}
        self.cost_tracker = CostTracker(costs, checkpoint["global_step"], checkpoint["costs"]["peak_memory_bytes"])
        self.losses = checkpoint["losses"]
        self.random_states = checkpoint["random_states"]

    def _random_modules(self) -> list[Any]:
        """Return the torch modules whose random numbers training uses: the CPU's and the accelerator's."""
        return [torch] if self.device.type == "cpu" else [torch, torch.get_device_module(self.device)]

    def on_train_start(self) -> None:
        """Restore the random states of a resumed run and restart the measurement of peak memory."""
        for state, module in zip(self.random_states, self._random_modules(), strict=False):
            module.set_rng_state(state)
        reset_peak_memory(self.device.type)

    def configure_optimizers(self) -> Any:
        """Create the optimizer and its schedule."""
        optimizer = create_optimizer(self.training_settings, self, self.trunk)
        scheduler = create_schedule(self.training_settings, optimizer, lambda: self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
