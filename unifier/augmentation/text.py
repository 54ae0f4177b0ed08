"""BPE-dropout: texts cut into different subwords each time they are read."""

import json
from collections.abc import Container, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unifier.data.dataloader import Augmentation, Batch, collate
from unifier.data.encoding import EncodedSplit
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import NO_POSITION, InputError, Vocabulary
from unifier_tokenizers.errors import check_fraction
from unifier_tokenizers.text import EOS, PAD

SegmentedWord = tuple[int, ...]


GROWTH_SAMPLES = 512
"""Examples that tell how much longer cut texts are."""


MAX_SEGMENTATIONS = 16
"""How many ways of cutting a word are drawn, once, for each time it is read to pick one of."""


@final
class BpeDropout(Augmentation):
    """Byte-pair encoding that leaves each possible merge out with some probability (Provilkov et al. 2020, section 3).

    Source and target, texts in one vocabulary, are both cut anew. Training waits for none of it: a word's ways are
    drawn once. Hugging Face's own dropout takes its random numbers where no seed reaches.
    """

    def __init__(self, vocabulary: Vocabulary, dropout: float) -> None:
        """Raises InputError for a probability outside [0, 1), and for a vocabulary that was not learned by merging."""
        self.codec = vocabulary.codec
        model = json.loads(self.codec.to_str())["model"]
        if not model.get("merges"):
            raise InputError("bpe_dropout needs a vocabulary that was learned by merging: fit it with level=bpe")
        self.ids: dict[str, int] = model["vocab"]
        self.spelled = {i: token for token, i in self.ids.items()}
        self.ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
        self.dropout = check_fraction("bpe_dropout", dropout)
        self.ways = lru_cache(maxsize=1 << 16)(self._ways)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """A batch of ids (B, N) at positions (B, 1, N), whose targets are ids (B, L), in other subwords."""
        values, targets = ([self._cut(row, generator) for row in ids.tolist()] for ids in (batch.values, batch.target))
        lengths = torch.tensor([len(row) for row in values])
        column = torch.arange(int(lengths.max()))
        mask = column < lengths[:, None]
        positions = column.where(mask, NO_POSITION)[:, None]
        return Batch(padded(values, PAD), positions, mask, padded(targets, IGNORE_INDEX), batch.example_indices)

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        """Estimate the growth of token counts N and target lengths L from a sample of the split's examples."""
        rows = np.linspace(0, len(split) - 1, min(len(split), GROWTH_SAMPLES)).astype(np.int64)
        before = collate(split, rows)
        after = self(before, torch.Generator().manual_seed(0))
        columns, tokens = (
            float(now.sum() / then.sum()) for now, then in zip(after.lengths(), before.lengths(), strict=True)
        )
        return columns, tokens

    def _cut(self, ids: Sequence[int], generator: torch.Generator) -> Tensor:
        words = self._words(ids)
        picked = torch.randint(MAX_SEGMENTATIONS, (len(words),), generator=generator).tolist()
        return torch.tensor([i for word, way in zip(words, picked, strict=True) for i in self.ways(word)[way]])

    def _words(self, ids: Sequence[int]) -> list[SegmentedWord]:
        """The words of a padded text, its end mark the last: nothing is merged across their borders."""
        words: list[list[int]] = []
        for i in ids[: ids.index(EOS) + 1]:
            if not words or i <= EOS or self.spelled[i].startswith(SPACE_MARK):
                words.append([])
            words[-1].append(i)
        return [tuple(word) for word in words]

    def _ways(self, word: SegmentedWord) -> list[SegmentedWord]:
        """Ways to cut a word, drawn by its own random numbers: whichever word comes first, they are the same."""
        if word[0] <= EOS:
            return [word] * MAX_SEGMENTATIONS
        random = np.random.default_rng(word)
        letters = [*"".join(self.spelled[i] for i in word)]
        pieces = self.codec.pre_tokenizer.pre_tokenize_str(self.codec.decode(word)) if self.codec.pre_tokenizer else ()
        borders = {*accumulate(len(piece) for piece, _ in pieces)}
        return [self._merged(letters, borders, random) for _ in range(MAX_SEGMENTATIONS)]

    def _merged(self, letters: Sequence[str], borders: Container[int], random: np.random.Generator) -> SegmentedWord:
        """The letters in pairs, none of which is across a border: a number of letters that ends a piece."""
        parts = [*letters]
        while True:
            pairs = enumerate(zip(pairwise(parts), accumulate(map(len, parts)), strict=False))
            known = [(self.ranks[pair], i) for i, (pair, end) in pairs if pair in self.ranks and end not in borders]
            kept = [one for one, chance in zip(known, random.random(len(known)), strict=True) if chance >= self.dropout]
            if not kept:
                return tuple(self.ids[part] for part in parts)
            _, i = min(kept)
            parts[i : i + 2] = ["".join(parts[i : i + 2])]


SPACE_MARK = "Ġ"
"""How byte-level vocabularies spell the space that a word begins with."""


def padded(rows: Sequence[Tensor], padding: int) -> Tensor:
    """Rows of unlike length (L,) -> (B, L)."""
    return pad_sequence([*rows], batch_first=True, padding_value=padding)
