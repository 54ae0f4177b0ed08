"""A prefix language model, in which the trunk itself generates the text after the input."""

from typing import Unpack, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.text_generation import AttentiveTextHead, State, TextGenerationOptions
from unifier.nn.attention import KVCache
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import Dropout, InputError, PositionalEncoding, Tokens, Vocabulary


@final
class PrefixHead(AttentiveTextHead):
    """The prefix language model of Raffel et al. 2020, section 3.2.1.

    The input of the trunk consists of input tokens, followed by text tokens. Input tokens attend to all input tokens. A
    text token attends to the input tokens and to the text so far. The head adds embeddings but no layers to the trunk.
    """

    trunk_output = "input"

    def __init__(
        self, vocabulary: Vocabulary, dim: int, *, dropout: float = 0.0, **options: Unpack[TextGenerationOptions]
    ) -> None:
        super().__init__(vocabulary, dim, **options)
        self.encoding = PositionalEncoding("sinusoid", dim, ())
        self.segment = nn.Parameter(torch.zeros(dim))
        """An embedding that marks text tokens. Input tokens and text tokens have equal positions."""
        self.dropout = Dropout(dropout)
        # nn.Module ignores lists, so the trunk's parameters are not registered in the head.
        self._attached: list[Transformer] = []

    def attach_trunk(self, trunk: Trunk) -> None:
        if not isinstance(trunk, Transformer):
            raise InputError(f"PrefixHead needs a Transformer as the trunk, not a {type(trunk).__name__}")
        self._attached = [trunk]

    @property
    def trunk(self) -> Transformer:
        """The trunk of the head's experiment."""
        assert self._attached, "no trunk was attached to the head"
        return self._attached[0]

    def hidden_states(self, tokens: Tokens, ids: Tensor) -> Tensor:
        combined, prefix = self._append_text(tokens, ids)
        return self.trunk(combined, prefix).matrix[:, :, tokens.mask.shape[1] :].transpose(1, 2)

    def start_decoding(self, tokens: Tokens) -> State:
        """Return the state of B empty texts.

        Returns:
            The positions (B, A, N) of the input, the mask (B, N) of input and text, and the keys and values (B, depth,
            2, H, N, D/H) of the trunk.
        """
        caches = [KVCache(grows=True) for _ in self.trunk.blocks]
        self.trunk.forward_cached(tokens, tokens.mask, caches)
        return tokens.positions, tokens.mask, torch.stack([cache.joined() for cache in caches], 1)

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Append ids (R, 1) to R texts (see `TextGenerationHead.step`)."""
        positions, mask, cached = state
        text = self.embed_text(Tokens(positions, mask, positions), ids, mask.shape[1] - positions.shape[2])
        seen = functional.pad(mask, (0, 1), value=True)
        caches = [KVCache.restore(buffer, grows=True) for buffer in cached.unbind(1)]
        hidden = self.trunk.forward_cached(text, seen, caches).matrix.transpose(1, 2)
        return hidden, (positions, seen, torch.stack([cache.joined() for cache in caches], 1))

    def start_search(self, tokens: Tokens) -> "_PrefixDecoder":
        return _PrefixDecoder(self, tokens)

    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """Return the attention of each written token to the input (see `AttentiveTextHead`)."""
        n = tokens.mask.shape[1]
        weights = torch.stack(self.trunk.attention(*self._append_text(tokens, ids))[1]).float()
        weights = weights[..., n:, :n].mean((0, 2))
        return weights / weights.sum(-1, keepdim=True)

    def embed_text(self, tokens: Tokens, ids: Tensor, start: int) -> Tokens:
        """Embed ids (B, L) as tokens (B, D, L) for the trunk. The first id has the position `start` in the text."""
        positions = torch.arange(start, start + ids.shape[1], device=ids.device).expand(ids.shape[0], 1, -1)
        matrix = self.dropout(self.encoding(self.embed(ids).transpose(1, 2), positions) + self.segment[:, None])
        mask = torch.ones_like(ids, dtype=torch.bool)
        return Tokens(matrix, mask, positions.expand(-1, tokens.positions.shape[1], -1))

    def _append_text(self, tokens: Tokens, ids: Tensor) -> tuple[Tokens, Tensor]:
        """Return the tokens of input and text, and the lengths (B,) of the inputs, including padding."""
        parts = zip(tokens, self.embed_text(tokens, ids, 0), strict=True)
        prefix = torch.full((ids.shape[0],), tokens.mask.shape[1], device=ids.device)
        return Tokens(*(torch.cat(part, -1) for part in parts)), prefix


@final
class _PrefixDecoder:
    """The incremental decoder of a `PrefixHead`, with one KV cache per block of the trunk."""

    def __init__(self, head: PrefixHead, tokens: Tokens) -> None:
        self.head, self.tokens, self.length = head, tokens, 0
        self.mask, self.log_probs = tokens.mask, head.next_token_log_probs()
        self.caches = [KVCache(grows=True) for _ in head.trunk.blocks]
        head.trunk.forward_cached(tokens, self.mask, self.caches)

    def step(self, ids: Tensor) -> Tensor:
        text = self.head.embed_text(self.tokens, ids[:, None], self.length)
        self.length += 1
        self.mask = functional.pad(self.mask, (0, 1), value=True)
        return self.log_probs(self.head.trunk.forward_cached(text, self.mask, self.caches).matrix[:, :, 0])

    def reorder(self, rows: Tensor) -> None:
        self.mask = self.mask[rows]
        for cache in self.caches:
            cache.reorder(rows)
