"""The objective of word vectors that are trained on counts: only the inputs of validation and test become targets."""

from collections.abc import Sequence
from typing import final

import torch

from unifier.data.dataloader import Batch, Objective
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import InputError, Units


@final
class WordsAsTargets(Objective):
    """Training batches without a change. In validation and test, the target (B, N) contains the ids of the words."""

    def check(self, units: Units) -> None:
        if units.values.ndim != 1 or units.values.is_floating_point():
            raise InputError("only words have word vectors: use a SubwordTokenizer")

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        return batch

    def evaluation(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        return batch._replace(target=batch.values.long().masked_fill(~batch.mask, IGNORE_INDEX))
