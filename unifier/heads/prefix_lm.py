"""A prefix language model: the trunk itself writes the text, after its input."""

from typing import Unpack, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.text_generation import AttentiveTextHead, TextGenerationOptions
from unifier.nn.attention import KVCache
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import Dropout, InputError, PositionalEncoding, Tokens, Vocabulary


@final
class PrefixHead(AttentiveTextHead):
    """One stack for both texts (Raffel et al. 2020, section 3.2.1, the prefix language model).

    The columns of the text so far stand beside those of the input, and the trunk reads them together: the input sees
    itself, and the text sees the input and what comes before. The head adds embeddings, and no layer.
    """

    trunk_output = "input"

    def __init__(
        self, vocabulary: Vocabulary, dim: int, *, dropout: float = 0.0, **options: Unpack[TextGenerationOptions]
    ) -> None:
        super().__init__(vocabulary, dim, **options)
        self.encoding = PositionalEncoding("sinusoid", dim, ())
        self.side = nn.Parameter(torch.zeros(dim))
        """Tells the columns of the text from those of the input, which stand at the same places."""
        self.dropout = Dropout(dropout)
        self._lent: list[Transformer] = []  # in a list, or its parameters would be this head's too

    def attach_trunk(self, trunk: Trunk) -> None:
        if not isinstance(trunk, Transformer):
            raise InputError(f"a prefix is read on by a Transformer alone, and the trunk is a {type(trunk).__name__}")
        self._lent = [trunk]

    @property
    def trunk(self) -> Transformer:
        """The trunk of the experiment that this head is part of."""
        assert self._lent, "the head was lent no trunk"
        return self._lent[0]

    def hidden_states(self, tokens: Tokens, ids: Tensor) -> Tensor:
        both, prefix = self._beside(tokens, ids)
        return self.trunk(both, prefix).matrix[:, :, tokens.mask.shape[1] :].transpose(1, 2)

    def start_search(self, tokens: Tokens) -> "_Walk":
        return _Walk(self, tokens)

    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """What goes to the columns of the input; the text's own are left out."""
        n = tokens.mask.shape[1]
        weights = torch.stack(self.trunk.attention(*self._beside(tokens, ids))[1]).float()[..., n:, :n].mean((0, 2))
        return weights / weights.sum(-1, keepdim=True)

    def _beside(self, tokens: Tokens, ids: Tensor) -> tuple[Tokens, Tensor]:
        """The columns of both texts, and how many of them are the input's (B,)."""
        parts = zip(tokens, self.prefix_and_text(tokens, ids, 0), strict=True)
        prefix = torch.full((len(ids),), tokens.mask.shape[1], device=ids.device)
        return Tokens(*(torch.cat(part, -1) for part in parts)), prefix

    def prefix_and_text(self, tokens: Tokens, ids: Tensor, start: int) -> Tokens:
        """Ids (B, L), the first at place `start` of the text, as columns of the kind that the trunk reads."""
        places = torch.arange(start, start + ids.shape[1], device=ids.device).expand(len(ids), 1, -1)
        matrix = self.dropout(self.encoding(self.embed(ids).transpose(1, 2), places) + self.side[:, None])
        return Tokens(matrix, torch.ones_like(ids, dtype=torch.bool), places.expand(-1, tokens.positions.shape[1], -1))


@final
class _Walk:
    """A search's rows: what each block of the trunk has seen of the input and of the texts so far."""

    def __init__(self, head: PrefixHead, tokens: Tokens) -> None:
        self.head, self.tokens, self.length = head, tokens, 0
        self.seen, self.upcoming = tokens.mask, head.next_token_log_probs()
        self.caches = [KVCache(grows=True) for _ in head.trunk.blocks]
        head.trunk.forward_cached(tokens, self.seen, self.caches)

    def step(self, ids: Tensor) -> Tensor:
        columns = self.head.prefix_and_text(self.tokens, ids[:, None], self.length)
        self.length += 1
        self.seen = functional.pad(self.seen, (0, 1), value=True)
        hidden = self.head.trunk.forward_cached(columns, self.seen, self.caches).matrix[:, :, 0]
        return self.upcoming(hidden)

    def reorder(self, rows: Tensor) -> None:
        self.seen = self.seen[rows]
        for cache in self.caches:
            cache.reorder(rows)
