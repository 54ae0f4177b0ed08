"""What is known of a batch without waiting for it."""

import torch
from torch import Tensor


def known(condition: Tensor) -> bool:
    """Whether a condition () is known to hold.

    On a CPU alone: an accelerator would have to finish all that it was told before, and a compiler has no answer yet.
    """
    return condition.device.type == "cpu" and not torch.compiler.is_compiling() and bool(condition)
