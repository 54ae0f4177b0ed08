"""The objective of BERT4Rec: some items of a sequence are hidden, and become the targets."""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.dataloader import Batch, Lengths, Objective
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import NO_POSITION, InputError, Units
from unifier_tokenizers.errors import check_share


@final
class MaskedItems(Objective):
    """Random choice of hidden items in training, and of the last item in validation and test (Sun et al. 2019).

    The tokenizer adds a mask token after the items, where a trained model predicts the next item. The objective drops
    this token, and replaces each hidden item by the mask. In training, the target (B, N) contains the hidden items, and
    `IGNORE_INDEX` at all other places. In validation and test, the target contains all items, the last of which is
    hidden, so that the head can leave out the history.
    """

    def __init__(self, num_items: int, share: float = 0.2) -> None:
        """Store the number of items in the catalog, and the share of the items that are hidden in training."""
        check_share("share", share)
        self.mask_item, self.share = num_items + 1, share

    def check(self, units: Units) -> None:
        if units.values.ndim != 1 or units.values[-1] != self.mask_item:
            raise InputError("only sequences of items can be hidden: use an ItemTokenizer with mask=True")

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        counts = batch.mask.sum(1) - 2  # The begin token and the mask are no items.
        is_hidden = torch.zeros(len(counts), batch.mask.shape[1] - 1, dtype=torch.bool)
        for row, generator in enumerate(generators):
            count = int(counts[row])
            hidden = int(self._num_hidden(np.array(count)))
            is_hidden[row, 1 + torch.randperm(count, generator=generator)[:hidden]] = True
        return self._hide(batch, is_hidden, is_hidden)

    def evaluation(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        is_last = torch.arange(batch.mask.shape[1] - 1) == batch.mask.sum(1, keepdim=True) - 2
        return self._hide(batch, is_last, batch.mask[:, 1:])

    def _hide(self, batch: Batch, is_hidden: Tensor, is_target: Tensor) -> Batch:
        """Return the batch without the last token, with the hidden items (B, N) and the targets (B, N)."""
        mask = batch.mask[:, 1:]
        items = batch.values[:, :-1].masked_fill(~mask, 0)
        return Batch(
            items.masked_fill(is_hidden, self.mask_item),
            batch.positions[:, :, :-1].masked_fill(~mask[:, None], NO_POSITION),
            mask,
            items.long().masked_fill(~is_target, IGNORE_INDEX),
            batch.example_indices,
        )

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        return np.stack([lengths[:, 0] - 1, self._num_hidden(lengths[:, 0] - 2)], 1).astype(lengths.dtype)

    def _num_hidden(self, counts: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of hidden items of sequences with `counts` items, at least 1."""
        return np.rint(self.share * counts).astype(np.int64).clip(1, None)
