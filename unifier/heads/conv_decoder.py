"""A convolutional decoder with attention in each layer."""

from typing import Unpack, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.rnn_decoders import AttentiveIncrementalHead, State
from unifier.heads.text_generation import TextGenerationOptions
from unifier.nn.block import init_weights
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.trunk import check_depth
from unifier_tokenizers import Dropout, InputError, PositionalEncoding, Tokens, Vocabulary


@final
class ConvDecoderHead(AttentiveIncrementalHead):
    """The decoder of Gehring et al. 2017, sections 3.2 and 3.3: gated convolutions, each with attention of its own.

    It differs in what keeps the sums in bounds: norms, as the trunk `Convolutional` has, and 1 / sqrt(D) before the
    softmax. The columns, which hold their words by the trunk's residual path, get no embedding added.
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
        """`kernel_size` is that of a kernel, in tokens."""
        super().__init__(vocabulary, dim, **options)
        check_depth(depth, 1)
        if kernel_size < 1:
            raise InputError(f"kernel_size={kernel_size}: a kernel is at least 1 token wide")
        self.kernel_size = kernel_size
        self.encoding = PositionalEncoding("sinusoid", dim, ())
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(nn.Conv1d(dim, 2 * dim, kernel_size) for _ in range(depth))
        self.queries = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.norms = nn.ModuleList(LayerNorm(dim) for _ in range(depth))
        self.norm = LayerNorm(dim)
        init_weights(self)

    def start_decoding(self, tokens: Tokens) -> State:
        """The columns (B, N, D), their mask (B, 1, N), how long the texts are (B,), and each layer's last inputs."""
        columns = tokens.matrix.transpose(1, 2)
        nothing = columns.new_zeros(len(columns), self.kernel_size - 1, self.dim)
        length = torch.zeros(len(columns), dtype=torch.long, device=columns.device)
        return columns, tokens.mask[:, None], length, *[nothing] * len(self.layers)

    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        columns, mask, length, *windows = state
        places = length[:, None] + torch.arange(ids.shape[1], device=ids.device)
        words = self.encoding(self.embed(ids).transpose(1, 2), places[:, None])
        words = self.dropout(to_compute_dtype(words)).transpose(1, 2)
        x, kept, looks = words, list[Tensor](), list[Tensor]()
        for layer, query, norm, window in zip(self.layers, self.queries, self.norms, windows, strict=True):
            near = torch.cat([window, norm(x)], 1)
            kept.append(near[:, ids.shape[1] :])
            y = functional.glu(layer(near.transpose(1, 2)), dim=1).transpose(1, 2)
            scores = (query(y) + words) @ columns.mT * self.dim**-0.5
            looks.append(scores.float().masked_fill(~mask, -torch.inf).softmax(-1))
            x = x + self.dropout(y + looks[-1].to(columns.dtype) @ columns)
        return self.norm(x), looks, (columns, mask, length + ids.shape[1], *kept)
