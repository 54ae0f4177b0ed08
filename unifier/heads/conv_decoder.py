"""A convolutional decoder with attention in each layer."""

from typing import Unpack, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.rnn_decoders import AttentiveIncrementalHead
from unifier.heads.text_generation import State, TextGenerationOptions
from unifier.nn.block import init_weights
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.trunk import check_depth
from unifier_tokenizers import Dropout, InputError, PositionalEncoding, Tokens, Vocabulary


@final
class ConvDecoderHead(AttentiveIncrementalHead):
    """The decoder of Gehring et al. 2017, sections 3.2 and 3.3.

    Each layer consists of a gated convolution and an attention layer. Three details differ from the paper. Each layer
    normalizes its input, as in `ConvolutionalTrunk`. The attention scores are scaled by 1 / sqrt(D). The input
    embeddings are not added to the attention's values, because the trunk's output already contains the embeddings.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        kernel_size: int = 3,
        dropout: float = 0.0,
        **options: Unpack[TextGenerationOptions],
    ) -> None:
        """Build the head.

        Each convolution reads the current token and the `kernel_size` - 1 previous tokens.
        """
        super().__init__(vocabulary, dim, **options)
        check_depth(depth, 1)
        if kernel_size < 1:
            raise InputError(f"kernel_size={kernel_size}: at least 1 token is needed")
        self.kernel_size = kernel_size
        self.encoding = PositionalEncoding("sinusoid", dim, ())
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(nn.Conv1d(dim, 2 * dim, kernel_size) for _ in range(depth))
        self.queries = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.norms = nn.ModuleList(LayerNorm(dim) for _ in range(depth))
        self.norm = LayerNorm(dim)
        init_weights(self)

    def start_decoding(self, tokens: Tokens) -> State:
        """Return the state of B empty texts.

        Returns:
            The values (B, N, D) and the mask (B, 1, N) of attention, the lengths (B,) of the texts, and the last
            `kernel_size` - 1 inputs of each layer.
        """
        values = tokens.matrix.transpose(1, 2)
        window = values.new_zeros(values.shape[0], self.kernel_size - 1, self.dim)
        lengths = torch.zeros(values.shape[0], dtype=torch.long, device=values.device)
        return values, tokens.mask[:, None], lengths, *[window] * len(self.layers)

    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        values, mask, lengths, *windows = state
        positions = lengths[:, None] + torch.arange(ids.shape[1], device=ids.device)
        embedded = self.encoding(self.embed(ids).transpose(1, 2), positions[:, None])
        embedded = self.dropout(to_compute_dtype(embedded)).transpose(1, 2)
        x, new_windows, attention = embedded, list[Tensor](), list[Tensor]()
        for layer, query, norm, window in zip(self.layers, self.queries, self.norms, windows, strict=True):
            inputs = torch.cat([window, norm(x)], 1)
            new_windows.append(inputs[:, ids.shape[1] :])
            y = functional.glu(layer(inputs.transpose(1, 2)), dim=1).transpose(1, 2)
            scores = (query(y) + embedded) @ values.mT * self.dim**-0.5
            attention.append(scores.float().masked_fill(~mask, -torch.inf).softmax(-1))
            x = x + self.dropout(y + attention[-1].to(values.dtype) @ values)
        return self.norm(x), attention, (values, mask, lengths + ids.shape[1], *new_windows)
