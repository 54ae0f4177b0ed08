"""A norm of every column that leaves it in the type it came in."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional


@final
class LayerNorm(nn.LayerNorm):
    """torch's, whose statistics are float32 inside.

    On an accelerator autocast would have float32 outside too: a cast before each norm, one after it, and between them
    twice the bytes, in all five times as many. There the weight and the bias are rounded as those of a linear map are.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(..., D) -> the same shape and type."""
        device = input.device.type
        if device == "cpu" or not torch.is_autocast_enabled(device):
            return super().forward(input)
        own = {name: part.to(input.dtype) for name, part in self.named_parameters()}
        with torch.autocast(device, enabled=False):
            return functional.layer_norm(input, self.normalized_shape, eps=self.eps, **own)
