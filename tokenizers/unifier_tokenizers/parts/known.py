"""What is known of a batch without waiting for it."""

import torch
from torch import Tensor


def known(x: Tensor) -> bool:
    """Whether a tensor's numbers can be asked for at no cost.

    On a CPU alone: an accelerator would have to finish all that it was told before, and a compiler has no answer yet.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()
