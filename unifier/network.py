"""A module that joins the trunk, tokenizers and heads of an experiment, and computes losses and predictions."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from unifier.data.dataloader import Batch, TestTimeAugmentation
from unifier.data.encoding import encode_units
from unifier.data.source import Example
from unifier.experiment import Experiment, freeze, hold_frozen_statistics
from unifier.heads.head import Head, check_predictions
from unifier.nn.experts import collect_balance_losses, mixtures_of
from unifier.trunks.memory import Stream
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, Tokenizer, Tokens, pad_columns
from unifier_tokenizers.errors import check_choice


class TaskModules(Protocol):
    """Interface of the parts of a task that the network needs. `Task` and the tasks of a trained model implement it."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def head(self) -> Head: ...
    @property
    def tta(self) -> TestTimeAugmentation | None: ...


class Network(nn.Module):
    """Module with a shared trunk, and the tokenizer and head of each task."""

    def __init__(self, trunk: Trunk, tasks: Mapping[str, TaskModules]) -> None:
        super().__init__()
        self.trunk = trunk
        self.tokenizers = nn.ModuleDict({name: task.tokenizer for name, task in tasks.items()})
        self.heads = nn.ModuleDict({name: task.head for name, task in tasks.items()})
        self.tasks = tasks
        self.mixtures = mixtures_of(trunk)
        """The mixtures of experts in the trunk."""
        self.streams: dict[str, Stream] = {}
        """The stream after the last training batch of each task whose head has a memory."""
        self.held_out_streams: dict[str, Stream] = {}
        """The stream after the last batch of validation or test."""
        for task in tasks.values():
            task.head.attach_trunk(trunk)
            task.head.attach_tokenizer(task.tokenizer)

    @classmethod
    def from_experiment(cls, experiment: Experiment) -> "Network":
        """Create the network of an experiment, and turn off the gradients of the parts that are not trained."""
        network = Network(experiment.trunk, experiment.tasks)
        freeze(experiment.training, network.trunk, network.tokenizers.values(), network.heads.values())
        return network

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of all modules, except those whose statistics are frozen."""
        super().train(mode)
        hold_frozen_statistics(self)
        return self

    def forward_features(self, task: str, batch: Batch, streams: dict[str, Stream] | None = None) -> Tokens:
        """Return the head's input tokens for a task: (B, D, N), or (B, D, 1) if the head reads only the first token.

        Args:
            task: The name of the task.
            batch: The examples.
            streams: The streams that the batch continues, if the head has a memory. The task's stream is updated. None
                means that no example has a memory.
        """
        head, tokens = self.tasks[task].head, batch.embed(self.tasks[task].tokenizer)
        if streams is None or not head.memory:
            return head.run_trunk(self.trunk, tokens)
        memory = streams[task].memory_for(batch.example_indices, batch.positions) if task in streams else None
        output, memory = self.trunk.forward_with_memory(tokens, memory, head.memory)
        streams[task] = Stream.after(memory, batch.example_indices, batch.positions)
        return output

    def loss(self, task: str, batch: Batch) -> Tensor:
        """Return the scalar loss of a task on a batch. In training, the balance losses of experts are added."""
        if not (self.training and self.mixtures):
            return self._task_loss(task, batch)
        with collect_balance_losses(self.mixtures) as balance_losses:
            loss = self._task_loss(task, batch)
        return torch.stack([loss, *balance_losses]).sum()

    def _task_loss(self, task: str, batch: Batch) -> Tensor:
        head = self.tasks[task].head
        if self.training and head.num_passes > 1:
            batch = Batch(*(part.expand(head.num_passes, *part.shape).flatten(0, 1) for part in batch))
        loss = head.loss_inputs(self.forward_features(task, batch, self.streams), batch.target, batch.values)
        if loss.ndim:
            name, shape = type(head).__name__, tuple(loss.shape)
            raise InputError(f"{name}.loss returned a tensor of shape {shape}: return a scalar, such as the mean")
        return loss

    def predict_batch(self, task: str, batch: Batch) -> dict[int, Any]:
        """Return a mapping from example index to the task's prediction for this example.

        Predictions are averaged over the views of test-time augmentation.

        Raises:
            InputError: The head does not return one prediction per example.
        """
        return self._predict_views(
            task, batch, lambda tokens, view: self.tasks[task].head.predict_inputs(tokens, view.values)
        )

    def evaluate_batch(self, task: str, batch: Batch) -> dict[int, Any]:
        """Return the predictions for the head's `metrics`, as in `predict_batch`. The batch contains the targets."""
        return self._predict_views(
            task,
            batch,
            lambda tokens, view: self.tasks[task].head.evaluate(tokens, view.target),
            self.held_out_streams,
        )

    def _predict_views(
        self,
        task: str,
        batch: Batch,
        predict: Callable[[Tokens, Batch], Sequence[Any]],
        streams: dict[str, Stream] | None = None,
    ) -> dict[int, Any]:
        head, tta = self.tasks[task].head, self.tasks[task].tta
        by_index: dict[int, list[Any]] = {}
        for view in (batch,) if tta is None else tta(batch):
            predictions = predict(self.forward_features(task, view, streams), view)
            check_predictions(head, predictions, len(view.example_indices))
            for index, prediction in zip(view.example_indices.tolist(), predictions, strict=True):
                by_index.setdefault(index, []).append(prediction)
        return {
            index: views[0] if len(views) == 1 else torch.stack([torch.as_tensor(view) for view in views]).mean(0)
            for index, views in by_index.items()
        }

    @torch.no_grad()
    def predict(self, task: str, raws: Sequence[Any]) -> list[Any]:
        """Return the task's predictions for raw examples, computed as one batch on the network's device.

        The network is in evaluation mode during the prediction, and is then reset to its previous mode.

        Raises:
            InputError: There is no task with the name `task`, or the tokenizer cannot encode an example.
        """
        tokenizer, was_training = self.tasks[check_choice("task", task, tuple(self.tasks))].tokenizer, self.training
        units = [encode_units(tokenizer, Example(raw, None)) for raw in raws]
        if not units:
            return []
        values, positions, mask = pad_columns(units)
        indices = torch.arange(len(units))
        device = next((parameter.device for parameter in self.parameters()), indices.device)
        try:
            predictions = self.eval().predict_batch(task, Batch(values, positions, mask, indices).to(device))
        finally:
            self.train(was_training)
        return [predictions[index] for index in indices.tolist()]


def check_weights(network: nn.Module, weights: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if a weight is not a tensor, has another kind of numbers, or is not finite.

    Another floating-point type is accepted. Infinity is accepted only if the network's own weight contains infinity,
    such as a mask. Missing weights and weights of another shape are not checked.

    Args:
        network: The network into which the weights will be loaded.
        weights: The weights that will be loaded.
        path: The file of the weights, for an error message.
    """
    for name, expected in network.state_dict().items():
        if name in weights and isinstance(expected, Tensor) and (fault := _weight_fault(weights[name], expected)):
            raise InputError(f"{path}: broken (the weight {name} {fault}); restore the file, or start a new run")


def _weight_fault(weight: Any, expected: Tensor) -> str:
    if not isinstance(weight, Tensor) or weight.layout != torch.strided or weight.is_meta:
        return f"is not a tensor with values but a {type(weight).__name__}"
    if weight.dtype != expected.dtype and not (weight.is_floating_point() and expected.is_floating_point()):
        return f"is of type {weight.dtype}, not {expected.dtype}"
    if weight.shape != expected.shape or weight.isfinite().all():
        return ""
    return "contains NaN" if weight.isnan().any() else "" if expected.isinf().any() else "contains infinity"
