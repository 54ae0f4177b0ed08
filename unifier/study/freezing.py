"""Which parts of a model are trained, and which stay as they are."""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from torch import nn

from unifier.trunks.layers import FeedForward
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PositionalEncoding
from unifier_tokenizers.errors import choose

Part = Literal["norms", "attention", "feed_forward", "positions", "tokenizer", "head"]
"""The trunk's norms, feed-forward networks, and all the rest of it, by which its columns see each other (attention, or
recurrent cells, or kernels); positional encodings; tokenizers, their positions among them; heads."""

PARTS: tuple[Part, ...] = get_args(Part)


def parts_of(trunk: Trunk) -> dict[Part, list[nn.Parameter]]:
    """A trunk's parameters, each in the one part it belongs to."""
    parts: dict[Part, list[nn.Parameter]] = {
        "norms": parameters_of(trunk, nn.LayerNorm),
        "feed_forward": parameters_of(trunk, FeedForward),
    }
    elsewhere = {parameter for parameters in parts.values() for parameter in parameters}
    parts["attention"] = [parameter for parameter in trunk.parameters() if parameter not in elsewhere]
    return parts


def parameters_of(module: nn.Module, kind: type[nn.Module]) -> list[nn.Parameter]:
    """The parameters of all modules of a kind inside."""
    return [parameter for part in module.modules() if isinstance(part, kind) for parameter in part.parameters()]


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
