"""Low-rank updates of frozen linear layers (LoRA: Hu et al. 2022, section 4.1)."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from unifier_tokenizers import InputError


@final
class LowRankUpdate(nn.Module):
    """Parametrization that adds the product of two learned matrices to a frozen weight (L, D)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        """Create the matrices `up` (L, R), which starts at 0, and `down` (R, D).

        Args:
            weight: The frozen weight (L, D).
            rank: R, the rank of the update.
        """
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1], device=weight.device) * weight.shape[1] ** -0.5)
        self.up = nn.Parameter(torch.zeros(len(weight), rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def add_lora(module: nn.Module, rank: int) -> None:
    """Add a low-rank update to every linear layer that has none. With rank 0, the module is not changed.

    Raises:
        InputError: The module has no linear layer.
    """
    layers = [layer for layer in list(module.modules()) if isinstance(layer, nn.Linear)]
    if not layers:
        raise InputError(f"trainable=lora: {type(module).__name__} has no linear layers; set trainable=all or none")
    for layer in layers if rank else ():
        if not parametrize.is_parametrized(layer, "weight"):
            parametrize.register_parametrization(layer, "weight", LowRankUpdate(layer.weight, rank))


def merge_lora(module: nn.Module) -> None:
    """Add every low-rank update to its weight, and remove the update."""
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear) and parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
