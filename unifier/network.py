"""An experiment's trunk, tokenizers and heads as one network, without a trainer: batch to loss, raw to prediction."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from unifier.data.dataloader import Batch
from unifier.data.encoding import encode_units
from unifier.data.source import Example
from unifier.experiment import Experiment, freeze, hold_frozen_statistics
from unifier_tokenizers import InputError, Tokens, pad_columns
from unifier_tokenizers.errors import check_choice


class Network(nn.Module):
    """The tasks of an experiment on their one trunk."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__()
        self.trunk = experiment.trunk
        self.tokenizers = nn.ModuleDict({name: task.tokenizer for name, task in experiment.tasks.items()})
        self.heads = nn.ModuleDict({name: task.head for name, task in experiment.tasks.items()})
        self.tasks = experiment.tasks
        freeze(experiment.training, self.trunk, self.tokenizers.values(), self.heads.values())

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        hold_frozen_statistics(self)
        return self

    def forward_features(self, task: str, batch: Batch) -> Tokens:
        """A batch as its head takes it: Tokens (B, D, N), or (B, D, 1) where that reads the first column alone."""
        return self.tasks[task].head.run_trunk(self.trunk, self.tasks[task].embed(batch))

    def loss(self, task: str, batch: Batch) -> Tensor:
        """An task's own loss of a batch, a scalar."""
        head = self.tasks[task].head
        if self.training and head.num_passes > 1:
            batch = Batch(*(part.expand(head.num_passes, *part.shape).flatten(0, 1) for part in batch))
        loss = head.loss(self.forward_features(task, batch), batch.target)
        if loss.ndim:
            raise InputError(
                f"{type(head).__name__}.loss gives {tuple(loss.shape)}: it must be a scalar, such as a mean"
            )
        return loss

    def predict_batch(self, task: str, batch: Batch) -> dict[int, Any]:
        """An task's predictions for a batch by the examples' places, each the mean over its views where it has some."""
        one, found = self.tasks[task], dict[int, list[Any]]()
        for view in (batch,) if one.tta is None else one.tta(batch):
            predictions, examples = one.head.predict(self.forward_features(task, view)), len(view.example_indices)
            if len(predictions) != examples:
                said = f"{type(one.head).__name__}.predict gives {len(predictions)} predictions"
                raise InputError(f"{said} for {examples} examples: one for each is expected")
            for place, prediction in zip(view.example_indices.tolist(), predictions, strict=True):
                found.setdefault(place, []).append(prediction)
        return {
            place: each[0] if len(each) == 1 else torch.stack([torch.as_tensor(one) for one in each]).mean(0)
            for place, each in found.items()
        }

    @torch.no_grad()
    def predict(self, task: str, raws: Sequence[Any]) -> list[Any]:
        """What an task's head says of raw examples, read as one batch where the network's weights are.

        It is done in evaluation mode, and the network left as it was. Raises InputError for an task that is none, and
        as the tokenizer's `encode` does.
        """
        tokenizer, training = self.tasks[check_choice("task", task, tuple(self.tasks))].tokenizer, self.training
        units = [encode_units(tokenizer, Example(raw, None)) for raw in raws]
        if not units:
            return []
        values, positions, mask = pad_columns(units)
        places = torch.arange(len(units))
        device = next((parameter.device for parameter in self.parameters()), places.device)
        try:
            found = self.eval().predict_batch(task, Batch(values, positions, mask, places).to(device))
        finally:
            self.train(training)
        return [found[place] for place in places.tolist()]
