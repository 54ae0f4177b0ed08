"""What can be known of a batch without waiting for an accelerator."""

import torch
from torch import Tensor


def known(x: Tensor) -> bool:
    """Whether a tensor's numbers can be asked for at no cost.

    On a CPU alone: an accelerator would have to finish all that it was told before, and a compiler has no answer yet.
    What a CPU knew of a batch is told to them by its strides: one of 0 says that it is the same all along that axis.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def alike(x: Tensor) -> bool:
    """Whether it is known that x (B, ...) holds the same for every example."""
    return len(x) == 1 or x.stride(0) == 0 or (known(x) and bool((x == x[:1]).all()))


def all_real(mask: Tensor) -> bool:
    """Whether it is known that no column of a mask (B, N) is padding."""
    same = all(stride == 0 or side == 1 for stride, side in zip(mask.stride(), mask.shape, strict=True))
    return same or (known(mask) and bool(mask.all()))  # each example has a real column: the same is True
