"""Which parts of a model are trained, and which stay as they are."""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  of 1, 2 and 3 axes

from unifier.trunks.layers import FeedForward
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PositionalEncoding
from unifier_tokenizers.errors import choose

Part = Literal["norms", "attention", "feed_forward", "positions", "tokenizer", "head"]
"""The trunk's norms, feed-forward networks, and all the rest of it, by which its columns see each other (attention, or
recurrent cells, or kernels); positional encodings; tokenizers, their positions among them; heads."""

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _BatchNorm)

PARTS: tuple[Part, ...] = get_args(Part)


def parts_of(trunk: Trunk) -> dict[Part, list[nn.Parameter]]:
    """A trunk's parameters, each in the one part it belongs to."""
    parts: dict[Part, list[nn.Parameter]] = {
        "norms": parameters_of(trunk, *NORMS),
        "feed_forward": parameters_of(trunk, FeedForward),
    }
    elsewhere = {parameter for parameters in parts.values() for parameter in parameters}
    parts["attention"] = [parameter for parameter in trunk.parameters() if parameter not in elsewhere]
    return parts


def parameters_of(module: nn.Module, *kinds: type[nn.Module]) -> list[nn.Parameter]:
    """The parameters of all modules of these kinds inside."""
    return [parameter for part in module.modules() if isinstance(part, kinds) for parameter in part.parameters()]


def freeze(parts: Sequence[Part], trunk: Trunk, tokenizers: Iterable[nn.Module], heads: Iterable[nn.Module]) -> None:
    """Keep these parts of a model from learning, tables that two parts share among them.

    Raises InputError for a part that has no parameters here, since freezing it would change nothing.
    """
    tokenizers = nn.ModuleList(tokenizers)
    parameters = parts_of(trunk) | {
        "positions": parameters_of(tokenizers, PositionalEncoding),
        "tokenizer": list(tokenizers.parameters()),
        "head": list(nn.ModuleList(heads).parameters()),
    }
    for part in parts:
        if not parameters[choose("frozen", part, PARTS)]:
            raise InputError(f'frozen="{part}": this model has no such part with anything to learn')
        for parameter in parameters[part]:
            parameter.requires_grad_(False)
    whole = [*trunk.parameters(), *parameters["tokenizer"], *parameters["head"]]
    if parts and not any(parameter.requires_grad for parameter in whole):
        raise InputError(f"frozen={', '.join(parts)}: nothing of this model is left to learn")


def hold_frozen_statistics(model: nn.Module) -> None:
    """Keep frozen batch norms in evaluation mode, so that their running statistics stay fixed.

    A batch norm without weights counts as frozen if the module around it is.
    """
    for part in model.modules():
        weights = list(part.parameters())
        if weights and not any(parameter.requires_grad for parameter in weights):
            for norm in part.modules():
                if isinstance(norm, _BatchNorm):
                    norm.eval()
