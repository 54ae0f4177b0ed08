"""A transformer decoder that generates a text from the trunk's tokens."""

from typing import Unpack, final

import torch
from torch import Tensor, nn

from unifier.heads.text_generation import AttentiveTextHead, State, TextGenerationOptions
from unifier.nn.attention import KVCache, build_attention_mask
from unifier.nn.block import Block, Norm, scale_residual_init
from unifier.nn.feed_forward import Activation
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.transformer import default_heads
from unifier.trunks.trunk import check_depth
from unifier_tokenizers import Dropout, PositionalEncoding, Tokens, Vocabulary
from unifier_tokenizers.subwords import BOS


@final
class TranslationHead(AttentiveTextHead):
    """The decoder of Vaswani et al. 2017, whose blocks attend to the previous text tokens and to the trunk's tokens."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        heads: int | None = None,
        ffn_dim: int | None = None,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        qk_norm: bool = False,
        projections: bool = True,
        scaled_residual_init: bool = False,
        **options: Unpack[TextGenerationOptions],
    ) -> None:
        """Build the head.

        Args:
            vocabulary: The vocabulary of the target texts.
            dim: D, the number of features of a token.
            depth: Number of blocks, at least 1.
            heads: `Transformer` explains the arguments from `heads` to `scaled_residual_init`.
            options: See `TextGenerationOptions`.
        """
        super().__init__(vocabulary, dim, **options)
        check_depth(depth, 1)
        heads = default_heads(dim) if heads is None else heads
        ffn_dim = 4 * dim if ffn_dim is None else ffn_dim
        self.encoding = PositionalEncoding("sinusoid", dim, ())
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                heads,
                ffn_dim,
                cross=True,
                norm=norm,
                activation=activation,
                dropout=dropout,
                qk_norm=qk_norm,
                projections=projections,
            )
            for _ in range(depth)
        )
        if scaled_residual_init:
            scale_residual_init(self.blocks)
        self.norm = LayerNorm(dim) if norm == "pre" else nn.Identity()

    def logits(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """Return the logits (B, L, V) of the next token after each of ids (B, L), given the Tokens (B, D, N)."""
        return self.project(self.hidden_states(tokens, ids))

    def hidden_states(
        self,
        tokens: Tokens,
        ids: Tensor,
        caches: list[tuple[KVCache, KVCache]] | None = None,
        start: int = 0,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the output (B, L, D) of the last block.

        Args:
            tokens: The trunk's tokens (B, D, N).
            ids: Token ids (B, L). With caches, `ids` contains only the ids after the cached tokens.
            caches: For each block, one cache for self-attention and one cache for cross-attention.
            start: The position of the first id in the text.
            weights: A list to which the cross-attention (B, H, L, N) of each block is appended.
        """
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None, None]
        embedded = self.encoding(self.embed(ids).transpose(1, 2), positions)
        x = self.dropout(to_compute_dtype(embedded)).transpose(1, 2)
        visible = torch.ones(ids.shape[1], start + ids.shape[1], dtype=torch.bool, device=ids.device)
        mask = visible.tril(start) if visible.shape[0] > 1 else None
        memory, memory_mask = tokens.matrix.transpose(1, 2), build_attention_mask(tokens.mask, "bidirectional")
        for i, block in enumerate(self.blocks):
            block_caches = caches[i] if caches else None
            x = block(x, mask, memory=memory, memory_mask=memory_mask, caches=block_caches, weights=weights)
        return self.norm(x)

    def start_decoding(self, tokens: Tokens) -> State:
        """Return the state of B empty texts.

        Returns:
            The mask (B, N) of the trunk's tokens, and the keys and values (B, depth, 2, H, N, D/H) of cross-attention.
            The keys and values (B, depth, 2, H, 0, D/H) of self-attention are empty.
        """
        caches = [(KVCache(grows=True), KVCache(grows=False)) for _ in self.blocks]
        begin = torch.full((tokens.mask.shape[0], 1), BOS, device=tokens.mask.device)
        self.hidden_states(tokens, begin, caches)  # The first pass fills the caches.
        own, cross = (torch.stack([cache.joined() for cache in kind], 1) for kind in zip(*caches, strict=True))
        return tokens.mask, cross, own[:, :, :, :, :0]

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        mask, cross, own = state
        caches = [
            (KVCache.restore(mine, grows=True), KVCache.restore(other, grows=False))
            for mine, other in zip(own.unbind(1), cross.unbind(1), strict=True)
        ]
        # The trunk's tokens are not read again, because their keys and values are in the caches.
        tokens = Tokens(cross.new_zeros(mask.shape[0], self.dim, mask.shape[1]), mask, mask[:, None])
        hidden = self.hidden_states(tokens, ids, caches, own.shape[4])
        return hidden, (mask, cross, torch.stack([cache.joined() for cache, _ in caches], 1))

    def start_search(self, tokens: Tokens) -> "_TransformerDecoder":
        return _TransformerDecoder(self, tokens)

    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        weights: list[Tensor] = []
        self.hidden_states(tokens, ids, weights=weights)
        return torch.stack(weights).float().mean((0, 2))


@final
class _TransformerDecoder:
    """The incremental decoder of a `TranslationHead`, with two KV caches per block.

    All examples have the same number of texts, and the texts of an example are neighboring rows of the batch. The texts
    of an example share one copy of the trunk's tokens.
    """

    def __init__(self, head: TranslationHead, tokens: Tokens) -> None:
        self.head, self.tokens, self.length = head, tokens, 0
        self.log_probs = head.next_token_log_probs()
        self.num_rows = len(tokens.mask)
        self.caches = [(KVCache(grows=True), KVCache(grows=False)) for _ in head.blocks]

    def step(self, ids: Tensor) -> Tensor:
        hidden = self.head.hidden_states(self.tokens, ids[:, None], self.caches, self.length)
        self.length += 1
        return self.log_probs(hidden[:, 0])

    def reorder(self, rows: Tensor) -> None:
        num_examples = len(self.tokens.mask)
        examples = (rows * num_examples // max(self.num_rows, 1)).unique_consecutive()
        self.num_rows = len(rows)
        for self_attention, _ in self.caches:
            self_attention.reorder(rows)
        if len(examples) < num_examples:
            self.tokens = Tokens(*(part[examples] for part in self.tokens))
            for _, cross_attention in self.caches:
                cross_attention.reorder(examples)
