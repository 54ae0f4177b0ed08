"""The objective that makes each token predict the values of the next token."""

from collections.abc import Sequence
from typing import final

import torch

from unifier.data.dataloader import Batch, Lengths, Objective
from unifier.heads.head import IGNORE_INDEX


@final
class NextStep(Objective):
    """The target of each token is the values of the next token, (B, C, N) int8 for values (B, C, N).

    The last token of an example has the target `IGNORE_INDEX`, because nothing follows.
    """

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        has_next = torch.nn.functional.pad(batch.mask[:, 1:], (0, 1))
        target = batch.values.roll(-1, dims=-1).to(torch.int8).masked_fill(~has_next[:, None], IGNORE_INDEX)
        return batch._replace(target=target)

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        lengths[:, 1] = lengths[:, 0]
        return lengths
