"""Linear layers whose weights are stored as 8-bit integers, for inference."""

from typing import final

import torch
from torch import Tensor, nn

from unifier.nn.linear import linear

MAX_INT8 = 127
"""Largest weight as an integer. The weights of a row are divided by the largest weight of the row."""


@final
class Int8Linear(nn.Module):
    """Linear layer with weights as int8 (L, D) and one scale per output feature.

    Only the weights are rounded. The products are computed in the dtype of the tokens, so the output for a token does
    not depend on the other tokens of the batch.
    """

    values: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        """Round the weights of a linear layer."""
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / MAX_INT8
        self.register_buffer("values", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        """The weights (L, D) as floats."""
        return self.values * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (..., D) to (..., L)."""
        return linear(x, self.weight, self.bias)


def round_linear_layers(module: nn.Module) -> None:
    """Replace every linear layer in a module by an `Int8Linear`. A shared layer stays shared."""
    rounded: dict[nn.Module, Int8Linear] = {}
    for parent in list(module.modules()):
        # `named_children` would list a shared layer only once.
        for name, child in list(parent._modules.items()):  # pyright: ignore[reportPrivateUsage]
            if isinstance(child, nn.Linear):
                if child not in rounded:
                    rounded[child] = Int8Linear(child)
                setattr(parent, name, rounded[child])
