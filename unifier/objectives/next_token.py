"""The objective of language models: each token predicts the next token."""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from unifier.data.dataloader import Batch, Lengths, Objective
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import NO_POSITION, InputError, Units


@final
class NextToken(Objective):
    """Prediction of the id after each token. The tokenizer's values must be ids (B, N).

    The last token of each example is dropped, because no id follows it. The target (B, N - 1) contains the ids of all
    tokens except the first. With a begin token, all ids of the raw input are therefore predicted.
    """

    def check(self, units: Units) -> None:
        if units.values.ndim != 1 or units.values.is_floating_point():
            raise InputError("only ids can be predicted: use a tokenizer of ids, such as SubwordTokenizer")
        if len(units.values) < 2:
            raise InputError("the example has a single token, so there is no next token: give a longer example")

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        values, positions, mask, _, example_indices = batch
        has_next = mask[:, 1:]
        return Batch(
            values[:, :-1].masked_fill(~has_next, 0),
            positions[:, :, :-1].masked_fill(~has_next[:, None], NO_POSITION),
            has_next,
            values[:, 1:].long().masked_fill(~has_next, IGNORE_INDEX),
            example_indices,
        )

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        num_targets = lengths[:, 0] - 1
        return np.stack([num_targets, num_targets], 1)
