"""The objective of masked language models: some tokens of a text are replaced, and become the targets."""

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.dataloader import Batch, Lengths, Objective
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.masked_language_modeling import find_mask
from unifier_tokenizers import InputError, Units, Vocabulary
from unifier_tokenizers.errors import check_share
from unifier_tokenizers.subwords import PAD
from unifier_tokenizers.words import MAX_PIECES


@final
class MaskedTokens(Objective):
    """Random choice of hidden tokens (Devlin et al. 2019, section 3.1).

    The number of hidden tokens of an example is the share of its tokens that are no special entries, rounded. At least
    one token is hidden, and at least one of several tokens is shown. Each hidden token is replaced by "<mask>" or by a
    random entry, or is not changed. The target (B, N) contains the ids of the hidden tokens, and `IGNORE_INDEX` at all
    other places. The texts of each epoch get new hidden tokens (Liu et al. 2019, section 4.1).
    """

    def __init__(
        self, vocabulary: Vocabulary, share: float = 0.15, *, mask_share: float = 0.8, random_share: float = 0.1
    ) -> None:
        """Store the settings.

        Args:
            vocabulary: The tokenizer's vocabulary, one of whose entries is "<mask>".
            share: The share of the tokens of an example that are hidden.
            mask_share: The share of the hidden tokens that are replaced by "<mask>".
            random_share: The share of the hidden tokens that are replaced by a random entry.
        """
        check_share("share", share)
        if min(mask_share, random_share) < 0 or not 0 < mask_share + random_share <= 1:
            raise InputError(
                f"mask_share={mask_share}, random_share={random_share}: two shares with a sum above 0 and at most 1 "
                "are expected, because the objective must replace some of the hidden tokens"
            )
        self.share, self.mask_share, self.random_share = share, mask_share, random_share
        self.mask_id = find_mask(vocabulary)
        self.space = next(iter(vocabulary.encode("")), PAD)
        """The id of the space before a word, if it is an entry of its own, as at level "character"."""
        self.may_hide = torch.tensor([not vocabulary.is_special(i) for i in range(len(vocabulary))])
        """(V,), True for the entries that may be hidden."""
        self.words = self.may_hide.nonzero()[:, 0]
        """The ids of the entries that may be hidden."""

    def check(self, units: Units) -> None:
        if units.values.ndim > 2 or units.values.is_floating_point():
            raise InputError("only ids can be hidden: use a SubwordTokenizer or a WordTokenizer")
        if not self._find_hidable(units.values[None]).any():
            raise InputError("the text has no token that can be hidden, because all its words are unknown")

    def __call__(self, batch: Batch, generators: Sequence[torch.Generator]) -> Batch:
        rows, columns = list[int](), list[torch.Tensor]()
        draws, words = list[torch.Tensor](), list[torch.Tensor]()
        may_hide = self._find_hidable(batch.values) & batch.mask
        for row, generator in enumerate(generators):
            places = may_hide[row].nonzero()[:, 0]
            if not len(places):
                raise InputError("a text has no token that can be hidden: give a longer text")
            count = int(self._num_hidden(np.array(len(places))))
            rows += [row] * count
            columns.append(places[torch.randperm(len(places), generator=generator)[:count]])
            draws.append(torch.rand(count, generator=generator))
            words.append(self.words[torch.randint(len(self.words), (count,), generator=generator)])
        chosen = torch.tensor(rows), torch.cat(columns)
        values, target = batch.values.clone(), torch.full_like(batch.positions[:, 0], IGNORE_INDEX)
        places = chosen if values.ndim == 2 else (chosen[0], self._piece_row(values)[chosen], chosen[1])
        draw, word, original = torch.cat(draws), torch.cat(words), values[places]
        replaced = torch.where(draw < self.mask_share + self.random_share, word.to(original.dtype), original)
        values[places] = replaced.masked_fill(draw < self.mask_share, self.mask_id)
        target[chosen] = original.long()
        if values.ndim == 3:  # The letters of a hidden word would show the word.
            values[:, MAX_PIECES:] = values[:, MAX_PIECES:].masked_fill((target != IGNORE_INDEX)[:, None], PAD)
        return batch._replace(values=values, target=target)

    def _find_hidable(self, values: Tensor) -> Tensor:
        """Return (B, N), True for the tokens that may be hidden.

        Args:
            values: The ids (B, N) of a `SubwordTokenizer`, or the ids (B, 8 + letters, N) of a `WordTokenizer`. A word
                of several subwords cannot be hidden, because a target is one id. The space before a word is not
                counted.
        """
        if values.ndim == 2:
            return self.may_hide[values]
        row = self._piece_row(values)
        ids = values.gather(1, row[:, None])[:, 0].long()
        return self.may_hide[ids] & ((values[:, :MAX_PIECES] != PAD).sum(1) == row + 1)

    def _piece_row(self, values: Tensor) -> Tensor:
        """Return the row (B, N) of each word's first subword in ids (B, 8 + letters, N): 1 after a space, else 0."""
        return ((values[:, 0] == self.space) & (values[:, 1] != PAD)).long()

    def planned_lengths(self, lengths: Lengths) -> Lengths:
        num_tokens = lengths[:, 0]
        # The end token cannot be hidden. The number of unknown words is not known here.
        return np.stack([num_tokens, self._num_hidden(num_tokens - 1)], 1).astype(lengths.dtype)

    def _num_hidden(self, counts: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of hidden tokens of examples with `counts` tokens that may be hidden."""
        return np.rint(self.share * counts).astype(np.int64).clip(1, np.maximum(counts - 1, 1))
