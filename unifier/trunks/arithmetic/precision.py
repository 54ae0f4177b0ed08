"""The number type of columns, and which types are fast on which device."""

import torch
from torch import Tensor, nn


def working(x: Tensor) -> Tensor:
    """x in the type that products are computed in: bfloat16 under autocast, else its own.

    Cast once where columns enter a stack, residual sums and norms read half the memory; the norms' statistics, softmax
    and loss stay float32 inside, and so do the parameters.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def exactly(layer: nn.Module, x: Tensor) -> Tensor:
    """What a layer makes of x in float32: scores by which examples are ranked tie in bfloat16."""
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float())


def device_here() -> str:
    """What this machine computes on: "cuda", "mps" (Apple's), or "cpu"."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator else "cpu"


def fast_bfloat16(device: str) -> bool:
    """Whether products of bfloat16 are fast on "cuda" or on this processor; without instructions of their own they take
    many times as long as those of float32. On "mps" nobody has measured them: there they are not."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device != "cpu":
        return False
    known = torch.cpu.get_capabilities()
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
