"""The module that Lightning trains: losses, cost, gradient clipping, and the scores of validation and test."""

import math
import time
from collections.abc import Iterable, Mapping
from hashlib import sha256
from operator import itemgetter
from statistics import fmean
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim import AdamW

from unifier.data.dataloader import Batch, CostFn, apply_objective, collate, sort_by_length
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.data.source import SplitName, target_of
from unifier.distributed import from_main, gather, gather_on_main, sum_over_processes, world
from unifier.experiment import Experiment, Task, freeze
from unifier.heads.head import mean_score_percent, score_percent
from unifier.network import Network
from unifier.nn.batch_norm import share_statistics
from unifier.training.checkpoint import check_layout
from unifier.training.cost import Cost, CostTracker, flops_of_example
from unifier.training.memory import reset_peak_memory
from unifier.training.optimizers import Muon, create_optimizer, create_schedule
from unifier.trunks.memory import Stream
from unifier_tokenizers import InputError
from unifier_tokenizers.shares import BatchShare, use_share

INITIAL_TOTAL_STEPS = 1000
"""Assumed number of steps of a run with a budget in seconds, until the first step has been timed."""


@final
class UnifierModule(Network, pl.LightningModule):
    """Network that Lightning can train, validate and test.

    A batch is a pair of task name and data. In validation and test, predictions are collected over the whole split. At
    the end of the split, scores are logged as `val/<task>/<metric>` or `test/<task>/<metric>`.

    Several processes divide the examples of each training batch, and the batches of each evaluation. The gradients are
    added up once per step.
    """

    tasks: Mapping[str, Task]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment.trunk, experiment.tasks)
        freeze(experiment.training, self.trunk, self.tokenizers.values(), self.heads.values())
        self.training_settings = experiment.training
        learned = experiment.tasks if experiment.training.loss_weighting == "uncertainty" else ()
        self.log_variances = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in learned})
        mode = experiment.training.compile
        self.training_loss = self.loss if mode is None else torch.compile(self.loss, mode=mode)
        self.cost_tracker = CostTracker({name: Cost() for name in experiment.tasks})
        self.random_states: list[Tensor] = []
        """States of the random number generators, loaded from the checkpoint of a resumed run."""
        self.stepped = False
        """True after the first training step since the model was created."""
        self.last_clock_time = 0.0
        """Time at the start of the current forward pass, or at the latest call of `_clock` after this start."""
        self.seconds_in_steps = 0.0
        """Seconds spent in forward passes, in backward passes and in the optimizer."""
        self.planned_steps = 1
        """Number of optimizer steps of the run. Not used for a budget in seconds."""
        self.costs: dict[str, CostFn] = {}
        """For each task, a function that maps the lengths of an example to its FLOPs."""
        self.losses: dict[str, list[Tensor]] = {name: [] for name in experiment.tasks}
        """For each task, the losses that have not been logged yet."""
        self.logged: list[dict[str, Any]] = []
        """The rows of metrics.csv."""
        self.lengths = torch.empty(0), torch.empty(0)
        """The lengths N and L (B,) of the examples in the batch that was last moved to the device."""
        self.share: BatchShare | None = None
        """The share of the current batch that this process computes, or None for the whole batch."""
        self.step_losses: list[Tensor] = []
        """The weighted losses of the batches of the current step."""
        self.stop_requested = self.stop_agreed = False
        """True if this process must stop, and if any process must stop. Used only by several processes."""
        self.current_task = ""
        """The task of the current batch."""
        self.parts: list[tuple[int, str, dict[int, Any]]] = []
        """The number, the task and the predictions of each batch that this process has evaluated in the split."""
        self.predictions: dict[str, dict[int, Any]] = {}
        """For each task, a mapping from example index to prediction in the current split."""
        self.targets: dict[tuple[str, SplitName], dict[int, Any]] = {}
        """For each task and split, a mapping from example index to raw target, filled at the first evaluation."""
        self.scores: dict[str, float] = {}
        """The latest value of each score, keyed by its logged name."""
        self.score = 0.0
        """The latest validation score, the mean of the tasks' first metrics in percent (see `score_percent`)."""

    @property
    def total_steps(self) -> int:
        """The number of optimizer steps, which is estimated from the speed so far if the budget is in seconds."""
        seconds = self.training_settings.seconds
        if seconds is None:
            return self.planned_steps
        cost = self.cost_tracker.total()
        return max(round(cost.steps * seconds / cost.seconds), cost.steps + 1) if cost.seconds else INITIAL_TOTAL_STEPS

    def prepare(self, splits: Mapping[str, EncodedSplit]) -> None:
        """Count the FLOPs of training examples without changing the network's state.

        Raises:
            InputError: A task cannot be trained on several processes.
        """
        buffers = [buffer.clone() for buffer in self.buffers()]
        if world().size > 1:
            share_statistics(self)
        for task, split in splits.items():
            parts = self.tasks[task]
            self.costs[task] = flops_of_example(
                lambda batch, task=task: self.loss(task, batch), split, parts.augmentation, parts.objective
            )
            if world().size > 1:
                if parts.head.memory:
                    raise InputError(f'task "{task}": memory={parts.head.memory} needs one process; set memory=0')
                rows = sort_by_length(split.lengths())[:: -(-len(split) // (2 * world().size))]
                batch = collate(split, rows)
                self.check_shares(task, apply_objective(parts.objective, batch) if parts.objective else batch)
        self.zero_grad(set_to_none=True)
        self.streams.clear()
        for buffer, before in zip(self.buffers(), buffers, strict=True):
            buffer.copy_(before)  # FLOP counting must not change the running statistics of batch norms.

    @torch.no_grad()
    def check_shares(self, task: str, batch: Batch) -> None:
        """Check that the weighted losses of the processes' shares of a batch add up to the loss of the batch.

        Raises:
            InputError: The losses differ, for example because a layer draws random numbers for the examples that a
                process has.
        """

        def loss(share: BatchShare | None) -> float:
            with torch.random.fork_rng(devices=[]), use_share(share):
                own = batch if share is None else Batch(*map(share.rows, batch))
                return (1 if share is None else share.weight) * self.loss(task, own).item()

        counts = self.tasks[task].head.target_counts(batch.target).tolist()
        whole, size = loss(None), world().size
        total = sum(gather(lambda: loss(BatchShare.of(counts, world().rank, size))))
        if not math.isclose(whole, total, rel_tol=1e-3, abs_tol=1e-3):
            raise InputError(
                f'task "{task}": the loss of a batch is {whole:.4f}, but {total:.4f} in {size} processes, because a '
                "layer does not treat the examples independently: use one process"
            )

    def weighted_loss(self, task: str, loss: Tensor) -> Tensor:
        """Multiply a loss by the task's weight. For a learned weight, also apply eq. 7 of Kendall et al. 2018."""
        if task in self.log_variances:
            loss = loss * (-self.log_variances[task]).exp() + self.log_variances[task] / 2
        return loss * self.tasks[task].loss_weight

    def transfer_batch_to_device(
        self, batch: tuple[str, Batch], device: torch.device, dataloader_idx: int
    ) -> tuple[str, Batch]:
        """Move a batch to the device. Of several processes, each process takes its share of a training batch."""
        task, data = batch
        self.lengths = data.lengths()  # Copying the lengths from the accelerator would block the CPU.
        if world().size > 1 and self.trainer.training:
            counts = self.tasks[task].head.target_counts(data.target).tolist()
            self.share = BatchShare.of(counts, world().rank, world().size)
            data = Batch(*map(self.share.rows, data))
        return task, data.to(device)

    def on_train_batch_start(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        """Start the clock."""
        self.cost_tracker.start()

    def training_step(self, batch: tuple[str, Batch], batch_idx: int) -> Tensor:
        """Return the weighted loss of a batch."""
        self.stepped = True
        self.last_clock_time = time.perf_counter()
        task, data = batch
        num_examples = self.share.stop - self.share.start if self.share else len(self.lengths[0])
        assert num_examples == len(data.mask), "another batch was moved to the device"
        with use_share(self.share):
            loss = self.training_loss(task, data)
        weight = self.share.weight if self.share else 1
        self.losses[task].append(weight * loss.detach())  # The next run of a CUDA graph overwrites the loss.
        self.step_losses.append(self.losses[task][-1])
        self.current_task = task
        # The cost is counted before the callbacks at the end of the step log and save the cost.
        self.cost_tracker.count(task, self.lengths[0], round(self.costs[task](*self.lengths).sum()))
        return weight * self.weighted_loss(task, loss)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Replace gradients and losses by their sums over the processes: the values of whole batches."""
        if world().size > 1:
            stop = torch.tensor(float(self.stop_requested), device=self.device)
            gradients = (parameter.grad for parameter in self.parameters() if parameter.grad is not None)
            sum_over_processes(*gradients, *self.step_losses, stop)
            self.stop_agreed = bool(stop)
        self.step_losses.clear()

    def on_after_backward(self) -> None:
        """Add the time of the forward and backward passes to the task."""
        self._clock(self.current_task)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Run the forward pass, the backward pass and the optimizer. Stop the training at the end of the budget."""
        super().optimizer_step(*args, **kwargs)
        self._clock(*self.cost_tracker.in_step)  # Divide the optimizer time among the tasks in the step.
        self.cost_tracker.step()
        seconds = self.training_settings.seconds
        if seconds is not None:  # The processes stop and validate at the same step, by the clock of rank 0.
            for task, cost in from_main(self.cost_tracker.by_task).items():
                self.cost_tracker.tasks[task].seconds = cost["seconds"]
        # No validation would follow batches after the last planned step.
        if (
            self.cost_tracker.steps >= self.planned_steps
            if seconds is None
            else self.cost_tracker.total().seconds >= seconds
        ):
            self.trainer.should_stop = True

    def _clock(self, *tasks: str) -> None:
        if len(self.tasks) > 1:
            self._synchronize()  # Without synchronization, pending GPU work would be charged to the next task.
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
        self._collect_predictions(*batch, batch_idx)

    def test_step(self, batch: tuple[str, Batch], batch_idx: int) -> None:
        """Collect the predictions of a batch."""
        self._collect_predictions(*batch, batch_idx)

    def _collect_predictions(self, task: str, batch: Batch, number: int) -> None:
        predictions = self.evaluate_batch(task, batch)
        self.predictions.setdefault(task, {}).update(predictions)
        if world().size > 1:  # The number of the batch among the batches of all processes keeps their order.
            self.parts.append((world().rank + number * world().size, task, predictions))

    def on_validation_epoch_start(self) -> None:
        """Stop the clock and delete the predictions of the previous split."""
        if self.cost_tracker.running and self.device.type != "cpu":
            self._synchronize()
            self.cost_tracker.clock(self.current_task)
        self.cost_tracker.pause()
        self.predictions, self.parts = {}, []

    def on_test_epoch_start(self) -> None:
        """Delete the predictions of the previous split."""
        self.predictions, self.parts = {}, []

    def on_validation_epoch_end(self) -> None:
        """Log the validation scores. With `refit`, the scores are logged as training scores."""
        if self.training_settings.refit:
            self._log_scores("val", prefix="train")
            return
        self._check_equal_weights()
        firsts = self._log_scores("val")
        self.score = mean_score_percent(self._score_percent(task, *first) for task, first in firsts.items())
        self.log("val/score", self.score)

    def _score_percent(self, task: str, metric: str, score: float) -> float:
        head, chance = self.tasks[task].head, self.tasks[task].error_at_chance(metric)
        lower_is_better = metric in head.lower_is_better
        if lower_is_better and chance is None and len(self.tasks) > 1:
            raise InputError(
                f'task "{task}": joint training needs the error at chance: give the source the score_range of {metric}'
            )
        return score_percent(score, head.max_score, lower_is_better=lower_is_better, chance=chance)

    def on_test_epoch_end(self) -> None:
        """Log the scores of the test split."""
        self._log_scores("test")

    def _log_scores(self, split: SplitName, *, prefix: SplitName | None = None) -> dict[str, tuple[str, float]]:
        """Compute and log the scores of the collected predictions.

        Args:
            split: The split of the predictions.
            prefix: The first part of the logged metric names. The default is `split`.

        Returns:
            The name and the value of each task's first metric.
        """
        firsts: dict[str, tuple[str, float]] = {}
        if world().size > 1:
            self._gather_predictions()
        for task, scores in from_main(lambda: self._compute_scores(split)).items():
            start = f"{prefix or split}/{task}/"
            named = {start + metric: score for metric, score in scores.items()}
            self.log_dict(named)  # Lightning rounds the logged values to float32.
            self.scores = {name: score for name, score in self.scores.items() if not name.startswith(start)} | named
            firsts[task] = next(iter(scores.items()))
        return firsts

    def _gather_predictions(self) -> None:
        """Collect the predictions of all processes on rank 0, in the order of one process."""
        gathered = gather_on_main((self.parts, self.stop_requested))
        self.predictions = {}
        for _, task, predictions in sorted((part for parts, _ in gathered for part in parts), key=itemgetter(0)):
            self.predictions.setdefault(task, {}).update(predictions)
        self.stop_agreed = from_main(lambda: any(stop for _, stop in gathered))

    def _compute_scores(self, split: SplitName) -> dict[str, dict[str, float]]:
        """Return the scores of each task from the predictions of all processes."""
        all_scores: dict[str, dict[str, float]] = {}
        for task, predictions in self.predictions.items():
            if (task, split) not in self.targets:
                examples = open_split(self.tasks[task].source, split)
                self.targets[task, split] = {index: target_of(examples, index) for index in predictions}
            targets = self.targets[task, split]
            all_scores[task] = self.tasks[task].head.checked_metrics(
                list(predictions.values()), [targets[index] for index in predictions]
            )
        return all_scores

    def _check_equal_weights(self) -> None:
        """Raise RuntimeError if the weights or the states of the random generators differ between the processes."""
        if world().size > 1 and len(set(gather(lambda: hash_tensors(self._replicated_tensors())))) > 1:
            raise RuntimeError("the weights of the processes differ: use equal devices, or one process")

    def _replicated_tensors(self) -> list[Tensor]:
        """Return the tensors that are equal on all processes: weights and states of random generators."""
        return [*self.state_dict().values(), *(module.get_rng_state() for module in self._random_modules())]

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip the gradient norm to `grad_clip` times the mean loss weight of the step.

        Clipping to `grad_clip` itself would cancel the loss weight in a step with a single task. Lightning's own
        clipping does not support a fused optimizer under autocast.
        """
        factors = {task: math.exp(-variance.item()) for task, variance in self.log_variances.items()}
        weights = [
            self.tasks[task].loss_weight * factors.get(task, 1.0) for task in self.cost_tracker.in_step.elements()
        ]
        torch.nn.utils.clip_grad_norm_(self.parameters(), self.training_settings.grad_clip * fmean(weights))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add costs, pending losses, logged metrics, streams and random states to a checkpoint."""
        checkpoint["costs"] = {
            "tasks": self.cost_tracker.by_task(),
            "peak_memory_bytes": self.cost_tracker.peak_memory_bytes,
        }
        checkpoint["losses"] = self.losses
        checkpoint["metrics"] = self.logged
        checkpoint["streams"] = {task: stream.to_list() for task, stream in self.streams.items()}
        checkpoint["random_states"] = [module.get_rng_state() for module in self._random_modules()]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore costs, pending losses, logged metrics, streams and random states from a checkpoint.

        Raises ValueError if the checkpoint has not the layout of this run. Lightning itself would skip missing parts.
        """
        # The layout of the state of a user's own callbacks is unknown.
        callbacks: list[Callback] = self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
        own = [callback for callback in callbacks if type(callback).__module__.startswith("unifier.")]
        states = {callback.state_key: state for callback in own if (state := callback.state_dict())}
        stored = {key: state for key, state in checkpoint["callbacks"].items() if key in states}
        check_layout(stored, states, "callbacks")
        check_layout(checkpoint["loops"]["fit_loop"], self.trainer.fit_loop.state_dict(), "loops")
        schedule = self.configure_optimizers()["lr_scheduler"]["scheduler"].state_dict()
        check_layout(checkpoint["lr_schedulers"], [schedule], "lr_schedulers")
        check_layout(checkpoint["losses"], self.losses, "losses")
        check_layout(checkpoint["costs"], {"tasks": self.cost_tracker.by_task(), "peak_memory_bytes": 0}, "costs")
        costs = {task: Cost(**cost) for task, cost in checkpoint["costs"]["tasks"].items()}
        self.cost_tracker = CostTracker(costs, checkpoint["global_step"], checkpoint["costs"]["peak_memory_bytes"])
        self.losses = checkpoint["losses"]
        self.logged[:] = checkpoint["metrics"]  # The writer of metrics.csv refers to this list.
        self.random_states = checkpoint["random_states"]
        streams: dict[str, list[Tensor]] = checkpoint.get("streams", {})
        self.streams.update({task: Stream.from_list(tensors) for task, tensors in streams.items()})

    def _random_modules(self) -> list[Any]:
        """Return the modules with random number generators: torch for the CPU, and the accelerator's module."""
        return [torch] if self.device.type == "cpu" else [torch, torch.get_device_module(self.device)]

    def on_train_start(self) -> None:
        """Restore the random states of a resumed run, move its streams to the device, and measure peak memory again."""
        if self.random_states:
            self._check_optimizer()
        self.streams.update({task: stream.to(self.device) for task, stream in self.streams.items()})
        for state, module in zip(self.random_states, self._random_modules(), strict=False):
            module.set_rng_state(state)
        reset_peak_memory(self.device.type)

    def _check_optimizer(self) -> None:
        """Raise ValueError if the restored state of the optimizer does not fit the weights."""
        new = self.configure_optimizers()
        (restored,) = self.trainer.optimizers
        for group, expected in zip(restored.param_groups, new["optimizer"].param_groups, strict=True):
            check_layout(group, expected, "optimizer_states")
        for optimizer in getattr(restored, "parts", [restored]):
            if not isinstance(optimizer, Muon | AdamW):
                continue  # The state of a user's own optimizer has an unknown layout.
            names = {"momentum_buffer"} if isinstance(optimizer, Muon) else {"step", "exp_avg", "exp_avg_sq"}
            for weight, state in optimizer.state.items():
                shapes = {getattr(value, "shape", None) for value in state.values()}
                if state.keys() != names or not shapes <= {weight.shape, torch.Size()}:
                    raise ValueError("optimizer_states: a state does not fit its weight")

    def configure_optimizers(self) -> Any:
        """Create the optimizer and its schedule."""
        optimizer = create_optimizer(self.training_settings, self, self.trunk)
        scheduler = create_schedule(self.training_settings, optimizer, lambda: self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def hash_tensors(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 hash of the bytes of all tensors."""
    digest = sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
