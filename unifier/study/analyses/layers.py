"""The output of each layer of a trunk, for a batch."""

from typing import Any

from torch import Tensor, nn

from unifier.trunks.trunk import Trunk, Visible
from unifier_tokenizers import Tokens


def by_layer(trunk: Trunk, tokens: Tokens, visible: Visible = "all") -> dict[str, Tensor]:
    """What enters the trunk ("columns"), and what each layer gives back, each (B, N, D).

    A layer is named as the trunk's parameters are: "blocks.0", "layers.0". A trunk that tells of none by `readers` is
    one layer, "trunk".

    The layer itself may be only the part beside the residual path, as a convolution is: hence what reads it is asked.
    """
    found = {"columns": tokens.matrix.transpose(1, 2)}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found[name] = inputs[0]

        return hook

    handles = [module.register_forward_pre_hook(keep(name)) for name, module in trunk.readers().items()]
    try:
        answer = trunk(tokens, visible)
    finally:
        for handle in handles:
            handle.remove()
    if len(found) == 1:
        found["trunk"] = answer.matrix.transpose(1, 2)
    return found


def mean_columns(columns: Tensor, mask: Tensor) -> Tensor:
    """The mean (B, D) of those columns (B, N, D) that are real by mask (B, N)."""
    return columns.float().masked_fill(~mask[:, :, None], 0).sum(1) / mask.sum(1, keepdim=True)
