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
    """Prediction of the values after each token: ids (B, N), or several integers per token (B, C, N).

    The last token of each example is dropped, because no token follows it. The target (B, ..., N - 1) contains the
    values of all tokens except the first. With a begin token, all values of the raw input are therefore predicted.
    """

    def check(self, units: Units) -> None:
        if units.values.is_floating_point():
            raise InputError("only integers can be predicted: use a tokenizer of ids, such as SubwordTokenizer")
        if units.values.shape[-1] < 2:
            raise InputError("the example has a single token, so there is no next token: give a longer example")

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        values, positions, mask, _, example_indices = batch
        has_next = mask[:, 1:]
        is_last = ~has_next.view(len(mask), *[1] * (values.ndim - 2), -1)
        return Batch(
            values[..., :-1].masked_fill(is_last, 0),
            positions[:, :, :-1].masked_fill(~has_next[:, None], NO_POSITION),
            has_next,
            values[..., 1:].long().masked_fill(is_last, IGNORE_INDEX),
            example_indices,
        )

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        num_targets = lengths[:, 0] - 1
        return np.stack([num_targets, num_targets], 1)
