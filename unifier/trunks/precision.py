"""The type that columns travel in."""

import torch
from torch import Tensor


def working(x: Tensor) -> Tensor:
    """x in the type that products are computed in: bfloat16 under autocast, else its own.

    Cast once where columns enter a stack, residual sums and norms read half the memory; the norms' statistics, softmax
    and loss stay float32 inside, and so do the parameters.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
