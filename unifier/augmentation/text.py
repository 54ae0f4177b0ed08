"""BPE-dropout: random splits of a text into subwords, each time the text is read."""

import json
from collections.abc import Container, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
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
from unifier_tokenizers.subwords import EOS, MAX_WORD_BYTES, PAD

SegmentedWord = tuple[int, ...]
"""The ids of a word's subwords."""

GROWTH_SAMPLES = 512
"""Number of examples used to estimate how many more tokens a text has after BPE-dropout."""

MAX_SEGMENTATIONS = 16
"""Number of random segmentations that are stored for each word. When a text is read, one stored segmentation is
chosen. A word of over `MAX_WORD_BYTES` letters has fewer different segmentations."""

SPACE_MARK = "Ġ"
"""Character that byte-level vocabularies use for the space before a word."""


@final
class BpeDropout(Augmentation):
    """Byte-pair encoding that skips each possible merge with a fixed probability (Provilkov et al. 2020, section 3).

    Inputs and targets are texts with a shared vocabulary. Several segmentations of each word are drawn once and stored,
    which saves time. BPE-dropout of Hugging Face is not used, because its random numbers cannot be seeded.
    """

    def __init__(self, vocabulary: Vocabulary, dropout: float) -> None:
        """Read the merges of a vocabulary.

        Args:
            vocabulary: Vocabulary of inputs and targets, fitted with level=bpe.
            dropout: Probability that a merge is skipped, in [0, 1).

        Raises:
            InputError: The vocabulary has no merges, or `dropout` is out of range.
        """
        self.codec, self.is_special = vocabulary.codec, vocabulary.is_special
        model = json.loads(self.codec.to_str())["model"]
        if not model.get("merges"):
            raise InputError(
                f"bpe_dropout={dropout}: the vocabulary has no merges that could be skipped; choose level=bpe"
            )
        self.ids: dict[str, int] = model["vocab"]
        self.strings = {i: token for token, i in self.ids.items()}
        self.ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
        self.dropout = check_fraction("bpe_dropout", dropout)
        self.segmentations = lru_cache(maxsize=1 << 16)(self._draw_segmentations)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Return the batch with random subwords: ids (B, N), positions (B, 1, N) and targets (B, L)."""
        values, targets = (
            [self._segment(row, generator) for row in ids.tolist()] for ids in (batch.values, batch.target)
        )
        lengths = torch.tensor([len(row) for row in values])
        column = torch.arange(int(lengths.max()))
        mask = column < lengths[:, None]
        positions = column.where(mask, NO_POSITION)[:, None]
        return Batch(_pad(values, PAD), positions, mask, _pad(targets, IGNORE_INDEX), batch.example_indices)

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        """Estimate the growth factors of token counts N and target lengths L from a sample of the split."""
        rows = np.linspace(0, len(split) - 1, min(len(split), GROWTH_SAMPLES)).astype(np.int64)
        before = collate(split, rows)
        after = self(before, torch.Generator().manual_seed(0))
        tokens, targets = (
            float(new.sum() / old.sum()) for new, old in zip(after.lengths(), before.lengths(), strict=True)
        )
        return tokens, targets

    def _segment(self, ids: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return new ids of a padded text, with a random segmentation of each word."""
        words = self._split_words(ids)
        picks = torch.randint(MAX_SEGMENTATIONS, (len(words),), generator=generator).tolist()
        return torch.tensor(
            [i for word, pick in zip(words, picks, strict=True) for i in self.segmentations(word)[pick]]
        )

    def _split_words(self, ids: Sequence[int]) -> list[SegmentedWord]:
        """Split the ids of a padded text into words. The last word is the end token. Merges never join words."""
        words: list[list[int]] = []
        for i in ids[: ids.index(EOS) + 1]:
            if not words or self.is_special(i) or self.strings[i].startswith(SPACE_MARK):
                words.append([])
            words[-1].append(i)
        return [tuple(word) for word in words]

    def _draw_segmentations(self, word: SegmentedWord) -> list[SegmentedWord]:
        """Draw several segmentations of a word. The word's ids are the seed, so all runs draw equal segmentations."""
        if self.is_special(word[0]):
            return [word] * MAX_SEGMENTATIONS
        random = np.random.default_rng(word)
        letters = [*"".join(self.strings[i] for i in word)]
        pieces = self.codec.pre_tokenizer.pre_tokenize_str(self.codec.decode(word)) if self.codec.pre_tokenizer else ()
        if len(letters) > MAX_WORD_BYTES and pieces:
            return self._draw_long_segmentations([[*piece] for piece, _ in pieces], random)
        borders = {*accumulate(len(piece) for piece, _ in pieces)}
        return [self._merge(letters, borders, random) for _ in range(MAX_SEGMENTATIONS)]

    def _draw_long_segmentations(
        self, pieces: Sequence[Sequence[str]], random: np.random.Generator
    ) -> list[SegmentedWord]:
        """Draw segmentations of a word of over `MAX_WORD_BYTES` letters. The time grows linearly with the letters."""
        count = max(1, MAX_SEGMENTATIONS * MAX_WORD_BYTES // sum(map(len, pieces)))
        drawn = [tuple(chain.from_iterable(self._merge(piece, (), random) for piece in pieces)) for _ in range(count)]
        return [drawn[k % count] for k in range(MAX_SEGMENTATIONS)]

    def _merge(self, letters: Sequence[str], borders: Container[int], random: np.random.Generator) -> SegmentedWord:
        """Merge letters into subwords while skipping merges at random.

        Args:
            letters: The letters of a word.
            borders: Letter offsets at which one piece of the word ends and the next piece begins. Merges never cross a
                border.
            random: Source of the random numbers.
        """
        parts = [*letters]
        while True:
            pairs = enumerate(zip(pairwise(parts), accumulate(map(len, parts)), strict=False))
            merges = [(self.ranks[pair], i) for i, (pair, end) in pairs if pair in self.ranks and end not in borders]
            draws = random.random(len(merges))
            kept = [merge for merge, draw in zip(merges, draws, strict=True) if draw >= self.dropout]
            if not kept:
                return tuple(self.ids[part] for part in parts)
            _, i = min(kept)
            parts[i : i + 2] = ["".join(parts[i : i + 2])]


def _pad(rows: Sequence[Tensor], pad_value: int) -> Tensor:
    """Pad rows (L,) of different lengths to (B, L)."""
    return pad_sequence([*rows], batch_first=True, padding_value=pad_value)
