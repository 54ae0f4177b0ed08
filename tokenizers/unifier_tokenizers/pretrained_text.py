"""The tokenizer for text of a pretrained encoder: its vocabulary, special entries, embeddings, positions and norm."""

from collections.abc import Iterable
from itertools import accumulate, groupby
from pathlib import Path
from typing import Self, final

import torch
from torch import Tensor, nn

import tokenizers as hf
from unifier_tokenizers.configurable import StoredFile
from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError, one_line
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units


@final
class PretrainedVocabulary(StoredFile):
    """Vocabulary of a pretrained model, with the special entries and the ids of the model."""

    def __init__(self, codec: hf.Tokenizer) -> None:
        self.codec = codec
        codec.no_truncation()
        codec.no_padding()
        # Without this option, the characters "[SEP]" in a text would become the special entry.
        codec.encode_special_tokens = True
        self.special = frozenset(i for i, token in codec.get_added_tokens_decoder().items() if token.special)
        """The ids of the special entries."""

    def __reduce__(self) -> tuple[type[Self], tuple[hf.Tokenizer]]:
        return type(self), (self.codec,)  # A pickled codec loses its option.

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file in the format of Hugging Face's tokenizer.json."""
        try:
            return cls(hf.Tokenizer.from_file(str(path)))
        except Exception as error:  # Hugging Face's library raises plain Exception.
            raise InputError(f"{path} is not a vocabulary ({one_line(error)}): give a tokenizer.json") from error

    def save(self, path: str | Path) -> None:
        """Write the vocabulary in the format of Hugging Face's tokenizer.json."""
        self.codec.save(str(path))

    def __len__(self) -> int:
        return self.codec.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Encode a text as ids, with the special entries that the model expects, such as [CLS] and [SEP]."""
        try:
            return self.codec.encode(text).ids
        except TypeError as error:  # A text from broken JSON can contain one half of a surrogate pair.
            raise InputError(
                f"{text[:50]!r} is not valid Unicode: repair this text or remove it from the data"
            ) from error

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return a readable text for each id, for example for the axes of a figure."""
        return [self.codec.decode([i], skip_special_tokens=False).strip() for i in ids]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the index of the word in the text for each id.

        Words are separated by spaces in the decoded text. A special entry counts as one word.
        """
        indices: list[int] = []
        for special, group in groupby(ids, self.special.__contains__):
            run, start = list(group), indices[-1] + 1 if indices else 0
            if special:
                indices += range(start, start + len(run))
                continue
            texts = (self.codec.decode(run[:end], skip_special_tokens=False) for end in range(1, len(run) + 1))
            indices += accumulate((start + max(len(text.split()) - 1, 0) for text in texts), max)
        return indices


@final
class PretrainedTextTokenizer(Tokenizer):
    """Tokenizer of a pretrained encoder, such as BERT or RoBERTa.

    The values are ids (N,) at positions (1, N). A token is the norm of the sum of two learned vectors, one for its id
    and one for its position (Devlin et al. 2019, section 3).
    """

    unit = "words"

    def __init__(
        self,
        vocabulary: PretrainedVocabulary,
        dim: int,
        num_entries: int,
        length: int,
        *,
        norm_eps: float = 1e-12,
        dropout: float = 0.0,
    ) -> None:
        """Create the tokenizer with random weights. `load_hf_tokenizer` loads the weights of a model.

        Args:
            vocabulary: The vocabulary of the model.
            dim: D, the width of the tokens.
            num_entries: The number of rows of the embedding table, which may be larger than the vocabulary.
            length: The maximum number of tokens of a text, with the special entries.
            norm_eps: The number that the norm adds to the variance.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        if num_entries < len(vocabulary):
            raise InputError(
                f"the vocabulary has {len(vocabulary):,} entries, but the embedding table has {num_entries:,} rows: "
                "give the vocabulary and the embeddings of one model"
            )
        self.vocabulary, self.length = vocabulary, length
        self.embedding = nn.Embedding(num_entries, dim)
        self.positions = nn.Embedding(length, dim)
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.dropout = Dropout(dropout)

    def encode(self, raw: str) -> Units:
        """Encode a text as ids (N,), with the special entries of the model."""
        if not isinstance(raw, str):
            raise InputError(f"a text is expected, not {type(raw).__name__}")
        if not raw.strip():
            raise InputError("the text is empty: at least one word is needed")
        ids = torch.tensor(self.vocabulary.encode(raw))
        if len(ids) > self.length:
            raise InputError(
                f"the text has {len(ids):,} tokens, but the model reads at most {self.length:,}: shorten the text"
            )
        return Units(ids, torch.arange(len(ids))[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn ids (B, N) at positions (B, 1, N) into tokens (B, D, N)."""
        rows = positions[:, 0].where(positions[:, 0] != NO_POSITION, 0)
        return self.dropout(self.norm(self.embedding(values) + self.positions(rows))).mT

    def position_values(self, units: Units) -> Tensor:
        """Return the word index of each token (1, N). A special entry counts as one word."""
        return torch.tensor(self.vocabulary.word_ids(units.values.tolist())).float()[None]
