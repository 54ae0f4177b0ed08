"""A trunk of gated convolutions over neighboring tokens."""

from typing import final

from torch import nn
from torch.nn import functional

from unifier.nn.attention import AttentionMode
from unifier.nn.block import init_weights
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.trunk import Trunk, check_depth, check_tokens, isolated_seed, numbered_layers
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.errors import check_choice


@final
class ConvolutionalTrunk(Trunk):
    """Trunk of gated convolutions over the sequence of tokens, with residual connections.

    The convolutions follow Gehring et al. 2017, section 3.2. In mode "bidirectional" with depth d and kernel size k, an
    output token depends on d (k - 1) / 2 input tokens on each side. In mode "causal", an output token depends on the d
    (k - 1) previous input tokens. The tokens of a picture are in row-major order.

    With a dilation of 2, the distance between the tokens that a convolution reads doubles at each layer, as in WaveNet
    (van den Oord et al. 2016, section 2.1). The number of tokens in reach then grows exponentially with d.
    """

    def __init__(self, dim: int, depth: int, *, kernel_size: int = 5, dilation: int = 1, dropout: float = 0.0) -> None:
        """Build the trunk.

        Args:
            dim: D, the width of the tokens.
            depth: The number of layers.
            kernel_size: The number of tokens that a convolution reads, an odd number.
            dilation: The factor from layer to layer of the distance between the tokens that a convolution reads.
            dropout: The dropout probability at the end of each residual branch.
        """
        super().__init__()
        check_depth(depth)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise InputError(f"kernel_size={kernel_size}: kernel_size must be an odd number of at least 1")
        if dilation < 1:
            raise InputError(f"dilation={dilation}: at least 1 is needed, which reads neighboring tokens in each layer")
        self.dim = dim
        self.reaches = [(kernel_size - 1) * dilation**layer for layer in range(depth)]
        with isolated_seed():
            self.layers = nn.ModuleList(
                nn.Conv1d(dim, 2 * dim, kernel_size, dilation=dilation**layer) for layer in range(depth)
            )
            init_weights(self)
        self.norms = nn.ModuleList(LayerNorm(dim) for _ in range(depth))
        self.dropout = Dropout(dropout)
        self.norm = LayerNorm(dim)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        check_tokens(tokens, self.dim)
        if not isinstance(mode, str):
            raise InputError(
                "a convolutional trunk supports only the modes bidirectional and causal: use another trunk for a prefix"
            )
        check_choice("mode", mode, ("bidirectional", "causal"))
        x = to_compute_dtype(tokens.matrix).transpose(1, 2)
        mask = tokens.mask[:, None].to(x.dtype)
        for layer, norm, reach in zip(self.layers, self.norms, self.reaches, strict=True):
            padding = (reach // 2, reach // 2) if mode == "bidirectional" else (reach, 0)
            padded = functional.pad(norm(x).transpose(1, 2) * mask, padding)
            x = x + self.dropout(functional.glu(layer(padded), dim=1).transpose(1, 2))
        return tokens._replace(matrix=self.norm(x).transpose(1, 2))

    def layer_outputs(self) -> dict[str, nn.Module]:
        return numbered_layers("layers", [*self.norms, self.norm][1:])
