"""The objective of a denoising model: spans of a text are cut out of the input, and the head writes the whole text."""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.dataloader import Batch, Lengths, Objective
from unifier.heads.masked_language_modeling import find_mask
from unifier_tokenizers import NO_POSITION, InputError, Units, Vocabulary, pad_columns
from unifier_tokenizers.errors import check_share


@final
class MaskedSpans(Objective):
    """Random spans of a text, each of which one "<mask>" replaces (text infilling, Lewis et al. 2020, section 2.2).

    The targets are not changed. The source gives each text as input and as target, and a head such as `TranslationHead`
    writes the text. The number of hidden tokens and the number of spans are exact, as in T5 (Raffel et al. 2020,
    section 3.1.4). At least one token lies between two spans. The end token is never hidden.
    """

    marked_text = True

    def __init__(self, vocabulary: Vocabulary, share: float = 0.3, *, mean_length: float = 3.0) -> None:
        """Store the settings.

        Args:
            vocabulary: The tokenizer's vocabulary, one of whose entries is "<mask>".
            share: The share of the tokens of an example that are hidden.
            mean_length: The mean number of tokens of a span.
        """
        check_share("share", share)
        if not 1 <= mean_length < np.inf:
            raise InputError(f"mean_length={mean_length}: a span has at least one token; give a number of at least 1")
        self.share, self.mean_length, self.mask_id = share, mean_length, find_mask(vocabulary)

    def check(self, units: Units) -> None:
        if units.values.ndim != 1 or units.values.is_floating_point():
            raise InputError("only ids of subwords can be hidden: use a SubwordTokenizer")

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        lengths = batch.mask.sum(1).tolist()
        units = [
            self._cut(ids[:length], generator)
            for ids, length, generator in zip(batch.values, lengths, generators, strict=True)
        ]
        values, positions, mask = pad_columns([Units(ids, torch.arange(len(ids))[None]) for ids in units])
        assert (positions[~mask[:, None]] == NO_POSITION).all()
        return batch._replace(values=values, positions=positions, mask=mask)

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        hidden, spans = self._num_hidden(lengths[:, 0] - 1)
        return np.stack([lengths[:, 0] - hidden + spans, lengths[:, 1]], 1).astype(lengths.dtype)

    def _cut(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """Return the ids (N,) of one text, with random spans replaced. The last id is the end token."""
        count = len(ids) - 1
        hidden, spans = (int(number) for number in self._num_hidden(np.array(count)))
        hidden_lengths = _split(hidden, spans, generator)
        # The text may begin and end with a span, so the first and the last shown part may be empty.
        shown_lengths = _split(count - hidden + 2, spans + 1, generator)
        shown_lengths[[0, -1]] -= 1
        starts = shown_lengths[:-1].cumsum(0) + hidden_lengths.cumsum(0) - hidden_lengths
        places = torch.arange(len(ids))
        is_start = torch.isin(places, starts)
        span = torch.searchsorted(starts, places, right=True) - 1
        is_hidden = (span >= 0) & (places < (starts + hidden_lengths)[span.clamp(min=0)])
        return ids.masked_fill(is_start, self.mask_id)[is_start | ~is_hidden]

    def _num_hidden(self, counts: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of hidden tokens and of spans of examples with `counts` tokens that may be hidden."""
        hidden = np.rint(self.share * counts).astype(np.int64).clip(1, np.maximum(counts - 1, 1))
        spans = np.rint(hidden / self.mean_length).astype(np.int64).clip(1, counts - hidden + 1)
        return hidden, spans


def _split(total: int, parts: int, generator: torch.Generator) -> Tensor:
    """Return the sizes (parts,) of the parts of a random division of `total`. Each size is at least 1."""
    cuts = torch.randperm(total - 1, generator=generator)[: parts - 1].sort().values + 1
    return torch.diff(cuts, prepend=torch.tensor([0]), append=torch.tensor([total]))
