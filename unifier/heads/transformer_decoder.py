"""A text, by a transformer's decoder."""

from typing import Unpack, final

import torch
from torch import Tensor, nn

from unifier.heads.text_generation import AttentiveTextHead, TextGenerationOptions
from unifier.nn.attention import KVCache, build_attention_mask
from unifier.nn.block import Activation, Block, Norm, scale_residual_init
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.trunk import check_depth
from unifier_tokenizers import Dropout, PositionalEncoding, Tokens, Vocabulary


@final
class TranslationHead(AttentiveTextHead):
    """The decoder of Vaswani et al. 2017: blocks that see the text so far, and attend to the trunk's columns."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        heads: int,
        ffn_dim: int,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        qk_norm: bool = False,
        projections: bool = True,
        scaled_residual_init: bool = False,
        **options: Unpack[TextGenerationOptions],
    ) -> None:
        """The shape's options are as those of `Transformer`, and `projections` as that of `Attention`."""
        super().__init__(vocabulary, dim, **options)
        check_depth(depth, 1)
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
        """What follows each of ids (B, L) after Tokens (B, D, N): (B, L, V)."""
        return self.project(self.hidden_states(tokens, ids))

    def hidden_states(
        self,
        tokens: Tokens,
        ids: Tensor,
        caches: list[tuple[KVCache, KVCache]] | None = None,
        start: int = 0,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """The last block's columns (B, L, D) for ids (B, L), the first at position `start`, after Tokens (B, D, N).

        With caches, ids are those not yet seen. `weights` receives each block's attention (B, H, L, N) to the columns.
        """
        places = torch.arange(start, start + ids.shape[1], device=ids.device)[None, None]
        columns = self.encoding(self.embed(ids).transpose(1, 2), places)
        x = self.dropout(to_compute_dtype(columns)).transpose(1, 2)
        seen = torch.ones(ids.shape[1], start + ids.shape[1], dtype=torch.bool, device=ids.device)
        past = seen.tril(start) if len(seen) > 1 else None
        memory, memory_mask = tokens.matrix.transpose(1, 2), build_attention_mask(tokens.mask, "bidirectional")
        for i, block in enumerate(self.blocks):
            own = caches[i] if caches else None
            x = block(x, past, memory=memory, memory_mask=memory_mask, caches=own, weights=weights)
        return self.norm(x)

    def start_search(self, tokens: Tokens) -> "_Walk":
        return _Walk(self, tokens)

    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        weights: list[Tensor] = []
        self.hidden_states(tokens, ids, weights=weights)
        return torch.stack(weights).float().mean((0, 2))


@final
class _Walk:
    """A search's rows: the columns they translate, and what each block has seen of the texts so far.

    Rows that translate the same columns are neighbors, and as many for each: they share one memory.
    """

    def __init__(self, head: TranslationHead, tokens: Tokens) -> None:
        self.head, self.tokens, self.length = head, tokens, 0
        self.upcoming = head.next_token_log_probs()
        self.rows = len(tokens.mask)
        self.caches = [(KVCache(grows=True), KVCache(grows=False)) for _ in head.blocks]

    def step(self, ids: Tensor) -> Tensor:
        hidden = self.head.hidden_states(self.tokens, ids[:, None], self.caches, self.length)
        self.length += 1
        return self.upcoming(hidden[:, 0])

    def reorder(self, rows: Tensor) -> None:
        sources = len(self.tokens.mask)
        kept = (rows * sources // max(self.rows, 1)).unique_consecutive()
        self.rows = len(rows)
        for own, _ in self.caches:
            own.reorder(rows)
        if len(kept) < sources:
            self.tokens = Tokens(*(part[kept] for part in self.tokens))
            for _, far in self.caches:
                far.reorder(kept)
