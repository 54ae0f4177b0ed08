"""Text to columns, one subword a column."""

import math
from collections import defaultdict
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.parts.dropout import Dropout
from unifier_tokenizers.parts.vocabulary import END, Vocabulary
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units


@final
class SubwordTokenizer(Tokenizer):
    """Subwords of a text, and an end mark, as columns: ids (N,) at positions (1, N).

    The columns are rows of a table, scaled by sqrt(D) (Vaswani et al. 2017, section 3.4), plus their positions.
    """

    unit = "words"

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        positions: PositionKind = "sinusoid",
        length: int = 512,
        dropout: float = 0.0,
        vectors: Tensor | None = None,
    ) -> None:
        """`vectors` (V, E) presets the table and keeps it fixed, under a learned E -> D projection where E is not D.

        `length` is the longest text, in subwords, for positions="learned".
        """
        super().__init__(dim)
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(len(vocabulary), dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.project = nn.Identity()
        if vectors is not None:
            if vectors.shape[0] != len(vocabulary):
                raise InputError(f"{vectors.shape[0]} word vectors for a vocabulary of {len(vocabulary)} entries")
            self.embedding = nn.Embedding.from_pretrained(vectors.float(), freeze=True)
            if vectors.shape[1] != dim:
                self.project = nn.Linear(vectors.shape[1], dim, bias=False)
        self.encoding = PositionalEncoding(positions, dim, (length,))
        self.dropout = Dropout(dropout)

    def encode(self, raw: str) -> Units:
        if not isinstance(raw, str):
            raise InputError(f"a text is expected, not {type(raw).__name__}")
        if not raw.strip():
            raise InputError("an empty text has no tokens")
        ids = torch.tensor([*self.vocabulary.encode(raw), END])
        positions = torch.arange(len(ids))[None]
        self.encoding.check(positions)
        return Units(ids, positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        columns = self.project(self.embedding(values)) * math.sqrt(self.dim)
        return self.dropout(self.encoding(columns.transpose(1, 2), positions))

    def coordinates(self, units: Units) -> Tensor:
        """Which word of the text each subword belongs to (1, N); the end mark stands after the last."""
        return torch.tensor(self.vocabulary.words(units.values.tolist())).float()[None]


def load_vectors(path: str | Path, vocabulary: Vocabulary) -> Tensor:
    """Read word vectors in the text format of word2vec or GloVe: one word a line, then its E numbers.

    Returns (V, E), unit root mean square times E**-0.5; entries of the vocabulary that the file lacks are drawn from
    a normal distribution of the same spread. Raises InputError naming the line where the file breaks.
    """
    entries = defaultdict[str, list[int]](list)  # a subword that begins a word reads as the same one within a word
    for i, token in enumerate(vocabulary.tokens(range(len(vocabulary)))):
        entries[token].append(i)
    found: dict[str, Tensor] = {}
    width = 0
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                word, *numbers = line.decode("utf-8").rstrip().split(" ")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}, line {number}: not UTF-8; is it word2vec's binary format?") from error
            if number == 1 and len(numbers) == 1:  # word2vec's header: how many words, how many numbers
                continue
            width = width or len(numbers)
            if len(numbers) > width > 0 and not _is_number(numbers[-width - 1]):  # some of GloVe's words have spaces
                continue
            if not numbers or len(numbers) != width:
                raise InputError(f"{path}, line {number}: {len(numbers)} numbers where {width or 'some'} are expected")
            if word in entries:
                try:
                    found[word] = torch.tensor([float(n) for n in numbers])
                except ValueError as error:
                    raise InputError(f"{path}, line {number}: {error}") from error
    if not found:
        raise InputError(f"{path}: none of its words is in the vocabulary; is it a file of word vectors?")
    table = torch.randn(len(vocabulary), width, generator=torch.Generator().manual_seed(0))
    spread = torch.stack(list(found.values())).square().mean().sqrt()
    for word, vector in found.items():
        table[entries[word]] = vector / spread
    return table * width**-0.5


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
