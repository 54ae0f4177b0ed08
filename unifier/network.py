"""An experiment's trunk, tokenizers and heads as one network, without a trainer: batch to loss, raw to prediction."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from unifier.data.dataloader import Batch
from unifier.data.encoding import units_of
from unifier.data.source import Example
from unifier.experiment import Experiment, freeze, hold_frozen_statistics
from unifier_tokenizers import InputError, Tokens, pad_columns
from unifier_tokenizers.errors import choose


class Network(nn.Module):
    """The arms of an experiment on their one trunk."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__()
        self.trunk = experiment.trunk
        self.tokenizers = nn.ModuleDict({name: arm.tokenizer for name, arm in experiment.arms.items()})
        self.heads = nn.ModuleDict({name: arm.head for name, arm in experiment.arms.items()})
        self.arms = experiment.arms
        freeze(experiment.training.frozen, self.trunk, self.tokenizers.values(), self.heads.values())

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        hold_frozen_statistics(self)
        return self

    def read(self, arm: str, batch: Batch) -> Tokens:
        """A batch as its head takes it: Tokens (B, D, N), or (B, D, 1) where that reads the first column alone."""
        return self.arms[arm].head.read(self.trunk, self.arms[arm].embed(batch))

    def loss(self, arm: str, batch: Batch) -> Tensor:
        """An arm's own loss of a batch, a scalar."""
        head = self.arms[arm].head
        if self.training and head.readings > 1:
            batch = Batch(*(part.expand(head.readings, *part.shape).flatten(0, 1) for part in batch))
        loss = head.loss(self.read(arm, batch), batch.target)
        if loss.ndim:
            raise InputError(
                f"{type(head).__name__}.loss gives {tuple(loss.shape)}: it must be a scalar, such as a mean"
            )
        return loss

    def answers(self, arm: str, batch: Batch) -> dict[int, Any]:
        """An arm's predictions for a batch by the examples' places, each the mean over its views where it has some."""
        one, found = self.arms[arm], dict[int, list[Any]]()
        for view in (batch,) if one.views is None else one.views(batch):
            predictions, examples = one.head.predict(self.read(arm, view)), len(view.places)
            if len(predictions) != examples:
                said = f"{type(one.head).__name__}.predict gives {len(predictions)} predictions"
                raise InputError(f"{said} for {examples} examples: one for each is expected")
            for place, prediction in zip(view.places.tolist(), predictions, strict=True):
                found.setdefault(place, []).append(prediction)
        return {
            place: each[0] if len(each) == 1 else torch.stack([torch.as_tensor(one) for one in each]).mean(0)
            for place, each in found.items()
        }

    @torch.no_grad()
    def predict(self, arm: str, raws: Sequence[Any]) -> list[Any]:
        """What an arm's head says of raw examples, read as one batch where the network's weights are.

        It is done in evaluation mode, and the network left as it was. Raises InputError for an arm that is none, and
        as the tokenizer's `encode` does.
        """
        tokenizer, training = self.arms[choose("arm", arm, tuple(self.arms))].tokenizer, self.training
        units = [units_of(tokenizer, Example(raw, None)) for raw in raws]
        if not units:
            return []
        values, positions, mask = pad_columns(units)
        places = torch.arange(len(units))
        device = next((parameter.device for parameter in self.parameters()), places.device)
        try:
            found = self.eval().answers(arm, Batch(values, positions, mask, places).to(device))
        finally:
            self.train(training)
        return [found[place] for place in places.tolist()]
