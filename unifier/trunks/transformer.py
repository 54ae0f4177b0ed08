"""The transformer trunk."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, final

import torch
from torch import Tensor, nn

from unifier.nn.attention import AttentionMode, KVCache, build_attention_mask
from unifier.nn.block import Block, Norm, SharedBlock, scale_residual_init
from unifier.nn.experts import BALANCE_WEIGHT
from unifier.nn.feed_forward import Activation
from unifier.nn.local_attention import Local, LocalMask
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.memory import Memory
from unifier.trunks.trunk import AttentiveTrunk, check_depth, check_tokens, isolated_seed, numbered_layers
from unifier_tokenizers import InputError, Tokens, rope_frequencies
from unifier_tokenizers.errors import check_choice, check_fraction
from unifier_tokenizers.tokens import has_no_padding

Size = Literal["tiny", "small", "base"]

SIZES: dict[Size, tuple[int, int, int, int]] = {
    "tiny": (128, 4, 4, 256),
    "small": (256, 6, 4, 1024),
    "base": (512, 6, 8, 2048),
}
"""The `dim`, `depth`, `heads` and `ffn_dim` of each preset. "base" is as in Vaswani et al. 2017, table 3."""


@final
class Transformer(AttentiveTrunk):
    """Trunk of transformer blocks and a final norm. With depth 0, the trunk has only the final norm.

    The initial weights depend only on the last seed, so experiments with equal seeds start from equal trunks.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int | None = None,
        ffn_dim: int | None = None,
        *,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        rotary: bool = False,
        qk_norm: bool = False,
        projections: bool = True,
        scaled_residual_init: bool = False,
        share_layers: bool = False,
        norm_eps: float = 1e-5,
        attention_width: int | None = None,
        attention_stride: int | None = None,
        experts: int = 1,
        experts_per_token: int = 1,
        balance_weight: float = BALANCE_WEIGHT,
    ) -> None:
        """Build the trunk from blocks (see `Block` and `Attention`).

        Args:
            dim: D, the width of the tokens.
            depth: The number of blocks.
            heads: The number of attention heads, which must divide `dim`. The default is `default_heads(dim)`.
            ffn_dim: The width of the feed-forward networks. The default is 4 * `dim`.
            norm: "pre" or "post". Only "pre" has a final norm.
            activation: "gelu" or "relu".
            dropout: The dropout probability at the end of each residual branch.
            drop_path: The probability that training drops a residual branch of the last block for an example. The
                probability increases linearly from block to block (Huang et al. 2016, eq. 4).
            rotary: Rotate queries and keys by the positions of the tokens.
            qk_norm: Normalize queries and keys.
            projections: Project queries, keys and values. If False, use the tokens without projections.
            scaled_residual_init: Initialize the residual branches as in GPT-2 (see `scale_residual_init`).
            share_layers: Run one block `depth` times, with the same weights (Lan et al. 2020, section 3.1).
            norm_eps: The number that is added to the variance in every norm.
            attention_width: The width of local attention (see `Local`). None means attention to all tokens.
            attention_stride: The distance from one far token to the next, which needs `attention_width`.
            experts: The number of feed-forward networks in each block, of which a router selects `experts_per_token`
                for each token (see `MixtureOfExperts`).
            experts_per_token: 1 (Switch, Fedus et al. 2021) or 2.
            balance_weight: The factor of the load-balancing loss, which is added to the loss of a task in training.
        """
        super().__init__()
        if attention_stride is not None and attention_width is None:
            raise InputError(f"attention_stride={attention_stride} needs local attention: set attention_width too")
        self.local = None if attention_width is None else Local(attention_width, attention_stride)
        check_depth(depth)
        check_fraction("drop_path", drop_path)
        if share_layers and drop_path:
            raise InputError(f"drop_path={drop_path}: shared layers cannot have different probabilities; leave it out")
        heads = default_heads(dim) if heads is None else heads
        ffn_dim = 4 * dim if ffn_dim is None else ffn_dim
        self.dim, self.rotary = dim, rotary
        with isolated_seed():
            self.blocks = nn.ModuleList(
                Block(
                    dim,
                    heads,
                    ffn_dim,
                    norm=norm,
                    activation=activation,
                    dropout=dropout,
                    qk_norm=qk_norm,
                    projections=projections,
                    drop_path=drop_path * (layer + 1) / depth,
                    experts=experts,
                    experts_per_token=experts_per_token,
                    balance_weight=balance_weight,
                )
                for layer in range(min(depth, 1) if share_layers else depth)
            )
            if share_layers:
                self.blocks.extend(
                    SharedBlock(block) for block in [*self.blocks] * (depth - 1) if isinstance(block, Block)
                )
            if scaled_residual_init:
                scale_residual_init(self.blocks)
        self.head_dim = dim // heads
        self.norm = LayerNorm(dim) if norm == "pre" else nn.Identity()
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = norm_eps

    @classmethod
    def preset(cls, size: Size, *, norm: Norm = "pre", dropout: float = 0.0, rotary: bool = False) -> "Transformer":
        """Create a trunk with the sizes of a preset in `SIZES`."""
        return cls(*SIZES[check_choice("size", size, tuple(SIZES))], norm=norm, dropout=dropout, rotary=rotary)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        return self._run_blocks(tokens, self._attention_mask(tokens.mask, mode))

    def forward_first_token(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        """Return only the first output token. The last block computes no other output token."""
        return self._run_blocks(tokens, self._attention_mask(tokens.mask, mode), num_outputs=1)

    def attention(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> tuple[Tokens, list[Tensor]]:
        weights: list[Tensor] = []
        return self._run_blocks(tokens, self._attention_mask(tokens.mask, mode), weights), weights

    def effective_mode(self, mode: AttentionMode) -> AttentionMode:
        if self.local is None or isinstance(mode, Local):
            return mode
        if isinstance(mode, Tensor):
            raise InputError("a prefix language model needs attention to the whole prefix: leave out attention_width")
        return replace(self.local, causal=mode == "causal")

    def layer_outputs(self) -> dict[str, nn.Module]:
        return numbered_layers("blocks", [*self.blocks, self.norm][1:])

    def forward_cached(
        self, tokens: Tokens, mask: Tensor, caches: Sequence[KVCache], *, causal: bool = False
    ) -> Tokens:
        """Run new tokens (B, D, M) with the KV caches of earlier tokens, and extend the caches.

        Args:
            tokens: The new tokens. The field `mask` of `tokens` is not used.
            mask: (B, N + M), True for every cached or new token that all new tokens may attend to. Local attention is
                causal in addition.
            caches: One cache per block, with the keys and values of N earlier tokens.
            causal: If True, a new token attends to no later token. If False, new tokens attend to all new tokens.
        """
        allowed = mask[:, None, None]
        if causal:
            new, total = tokens.matrix.shape[2], mask.shape[1]
            allowed = allowed & mask.new_ones(new, total).tril(total - new)
        if self.local is not None:
            index = torch.arange(mask.shape[1], device=mask.device)
            allowed = allowed & replace(self.local, causal=True).allows(index[-tokens.mask.shape[1] :, None], index)
        return self._run_blocks(tokens, allowed, caches=caches, token_mask=mask[:, -tokens.matrix.shape[2] :])

    def forward_with_memory(self, tokens: Tokens, memory: Memory | None, length: int) -> tuple[Tokens, Memory]:
        check_tokens(tokens, self.dim)
        if tokens.positions.shape[1] != 1:
            raise InputError("a memory needs tokens with one position each, such as the tokens of a text")
        x = to_compute_dtype(tokens.matrix).mT
        memory = Memory.empty(length, len(self.blocks), x) if memory is None else memory
        # The memory follows the new tokens, because the first tokens of a block's input have the queries.
        n, device = x.shape[1], x.device
        queries = torch.arange(n, device=device)
        keys = torch.cat([queries, torch.arange(-length, 0, device=device)])
        past = (
            queries[:, None] >= keys
            if self.local is None
            else replace(self.local, causal=True).allows(queries[:, None], keys)
        )
        is_real = torch.cat([tokens.mask, memory.mask], 1)
        mask = past[None, None] if has_no_padding(is_real) else past & is_real[:, None, None]
        angles = rope_frequencies(keys[None, None], self.head_dim) if self.rotary else None
        states: list[Tensor] = []
        for block, earlier in zip(self.blocks, memory.states, strict=True):
            states.append(x)
            x = block(torch.cat([x, earlier], 1), mask, angles=angles, num_tokens=n, token_mask=tokens.mask)
        return tokens._replace(matrix=self.norm(x).mT), memory.extended(states, tokens.mask)

    def _attention_mask(self, mask: Tensor, mode: AttentionMode) -> Tensor | LocalMask | None:
        mode = self.effective_mode(mode)
        return LocalMask(mode, mask) if isinstance(mode, Local) else build_attention_mask(mask, mode)

    def _run_blocks(
        self,
        tokens: Tokens,
        mask: Tensor | LocalMask | None,
        weights: list[Tensor] | None = None,
        num_outputs: int | None = None,
        caches: Sequence[KVCache] = (),
        token_mask: Tensor | None = None,
    ) -> Tokens:
        check_tokens(tokens, self.dim)
        x = to_compute_dtype(tokens.matrix).transpose(1, 2)
        angles = rope_frequencies(tokens.positions, self.head_dim) if self.rotary else None
        for i, block in enumerate(self.blocks):
            num_tokens = num_outputs if block is self.blocks[-1] else None
            block_caches = (caches[i], None) if caches else None
            x = block(
                x,
                mask,
                angles=angles,
                caches=block_caches,
                weights=weights,
                num_tokens=num_tokens,
                token_mask=tokens.mask if token_mask is None else token_mask,
            )
        # If there are no blocks, the first tokens must be selected here.
        x = x[:, :num_outputs]
        return Tokens(self.norm(x).transpose(1, 2), tokens.mask[:, :num_outputs], tokens.positions[:, :, :num_outputs])


def default_heads(dim: int) -> int:
    """Return the default number of attention heads: one head per 64 features, and at least one head.

    If the default does not divide `dim`, return the next smaller divisor of `dim`.
    """
    heads = max(1, dim // 64)
    while dim % heads:
        heads -= 1
    return heads
