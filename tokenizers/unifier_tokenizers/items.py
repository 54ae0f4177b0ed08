"""The tokenizer for sequences of items from a catalog, such as the products that a customer bought."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

BEGIN_ITEM = 0
"""The id of the begin token. The ids of items begin at 1."""


@final
class ItemTokenizer(Tokenizer):
    """Tokenizer that turns a begin token and each item of a sequence into tokens.

    The values are ids (N,) at positions (1, N). A token is the embedding of its id plus the encoding of its position.
    With a mask, the last token stands for the unknown next item.
    """

    unit = "items"

    def __init__(
        self,
        num_items: int,
        dim: int,
        *,
        positions: PositionKind = "sinusoid",
        length: int = 512,
        dropout: float = 0.0,
        mask: bool = False,
    ) -> None:
        """Create the tokenizer.

        Args:
            num_items: The number of items in the catalog.
            dim: D, the width of the tokens.
            positions: The kind of positional encoding.
            length: The maximum number of items of a sequence, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
            mask: Add a mask token after the items, with the id `num_items` + 1, for models that predict hidden items.
        """
        super().__init__(dim)
        self.num_items = num_items
        self.mask_item = num_items + 1 if mask else None
        self.embedding = nn.Embedding(num_items + 1 + mask, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.encoding = PositionalEncoding(positions, dim, (length + 1 + mask,))
        self.dropout = Dropout(dropout)

    def encode(self, raw: Sequence[int]) -> Units:
        """Encode a sequence of item numbers, 1 to `num_items`, as ids (N,). The first id is the begin token."""
        if not isinstance(raw, Sequence) or isinstance(raw, str) or not raw:
            raise InputError("a sequence of items is expected: a list of item numbers such as [3, 17]")
        for item in raw:
            if not isinstance(item, int) or not 1 <= item <= self.num_items:
                raise InputError(f"item {item!r} is outside the catalog: a number from 1 to {self.num_items} is needed")
        ids = torch.tensor([BEGIN_ITEM, *raw] + ([] if self.mask_item is None else [self.mask_item]))
        positions = torch.arange(len(ids))[None]
        self.encoding.check(positions)
        return Units(ids, positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn ids (B, N) at positions (B, 1, N) into tokens (B, D, N)."""
        columns = self.embedding(values) * self.dim**0.5
        return self.dropout(self.encoding(columns.mT, positions))
