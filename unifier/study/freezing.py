"""Which parts of a model are trained, and which stay as they are."""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from torch import nn

from unifier.trunks.layers import FeedForward
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, PositionalEncoding
from unifier_tokenizers.choice import choose

Part = Literal["norms", "attention", "feed_forward", "positions", "tokenizer", "head"]
"""The trunk's norms, feed-forward networks, and all the rest of it, by which its columns see each other (attention, or
recurrent cells, or kernels); positional encodings; tokenizers, their positions among them; heads."""

PARTS: tuple[Part, ...] = get_args(Part)


def freeze(parts: Sequence[Part], trunk: Trunk, tokenizers: Iterable[nn.Module], heads: Iterable[nn.Module]) -> None:
    """Keep these parts of a model from learning, tables that two parts share among them.

    Raises InputError for a part that has no parameters here, since freezing it would change nothing.
    """
    norms = [module for module in trunk.modules() if isinstance(module, nn.LayerNorm)]
    feed_forward = [module for module in trunk.modules() if isinstance(module, FeedForward)]
    elsewhere = {parameter for module in [*norms, *feed_forward] for parameter in module.parameters()}
    tokenizers, heads = list(tokenizers), list(heads)
    encodings = [
        module for tokenizer in tokenizers for module in tokenizer.modules() if isinstance(module, PositionalEncoding)
    ]
    modules: dict[Part, Sequence[nn.Module]] = {
        "norms": norms,
        "feed_forward": feed_forward,
        "positions": encodings,
        "tokenizer": tokenizers,
        "head": heads,
    }
    for part in parts:
        if choose("frozen", part, PARTS) == "attention":
            parameters = [parameter for parameter in trunk.parameters() if parameter not in elsewhere]
        else:
            parameters = [parameter for module in modules[part] for parameter in module.parameters()]
        if not parameters:
            raise InputError(f'frozen="{part}": this model has no such part with anything to learn')
        for parameter in parameters:
            parameter.requires_grad_(False)
