"""An experiment's trunk, tokenizers and heads as one network, which needs no trainer: batch to loss."""

from typing import Self

from torch import Tensor, nn

from unifier.data.loading import Batch
from unifier.study.experiment import Experiment
from unifier.study.freezing import freeze, hold_frozen_statistics
from unifier_tokenizers import InputError, Tokens


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
        head = self.arms[arm].head
        matrix = self.arms[arm].tokenizer.embed(batch.values, batch.positions)
        return head.read(self.trunk, Tokens(matrix, batch.mask, batch.positions))

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
