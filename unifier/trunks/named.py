"""make_trunk: a trunk by its name, so that an experiment's setting is one word."""

from typing import Literal

from unifier.trunks.bag import Bag
from unifier.trunks.convolutional import Convolutional
from unifier.trunks.recurrent import Recurrent
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import choose
from unifier_tokenizers.positions import PositionKind

NAMES = ("transformer", "bag", "recurrent", "convolutional", "timm:<model>")

Positions = PositionKind | Literal["rotary"]
"""How columns tell their place: by what a tokenizer adds to them, or by how a transformer turns queries and keys."""


def added(positions: Positions) -> PositionKind:
    """What of the positions is the tokenizer's to add."""
    return "none" if positions == "rotary" else positions


def make_trunk(
    name: str,
    dim: int,
    depth: int,
    heads: int,
    hidden: int,
    dropout: float,
    *,
    positions: Positions = "none",
    qk_norm: bool = False,
    quiet: bool = False,
    stochastic_depth: float = 0.0,
) -> Trunk:
    """The trunk of one of `NAMES`, of D = `dim` and so many layers; each takes of the other numbers what it has.

    Equal numbers are not equal sizes: layers of attention, of means, of memory and of convolution differ in their
    parameters, and nothing widens the smaller ones; the ledger counts them. "timm:" and the name of a model is
    `Trunk.from_timm` with its trained weights; all numbers are then the model's.
    Raises InputError for another name, a model of another D, and for rotary positions, `stochastic_depth`, `qk_norm`
    and `quiet` with any but "transformer".
    """
    rotary = positions == "rotary"
    asked = {"positions=rotary": rotary, "stochastic_depth": stochastic_depth, "qk_norm": qk_norm, "quiet": quiet}
    for option, given in asked.items():
        if given and name != "transformer":
            raise InputError(f"{option} is for trunk=transformer alone, and this is {name}: leave it out")
    if name.startswith("timm:"):
        trunk = Trunk.from_timm(name.removeprefix("timm:"))
        if trunk.dim != dim:
            raise InputError(f"the trunk {name} reads D = {trunk.dim}, and dim={dim}: take dim={trunk.dim}")
        return trunk
    match choose("trunk", name, NAMES):
        case "bag":
            return Bag(dim, depth, hidden, dropout=dropout)
        case "recurrent":
            return Recurrent(dim, depth, dropout=dropout)
        case "convolutional":
            return Convolutional(dim, depth, dropout=dropout)
        case _:
            return Transformer(
                dim,
                depth,
                heads,
                hidden,
                dropout=dropout,
                stochastic_depth=stochastic_depth,
                rotary=rotary,
                qk_norm=qk_norm,
                quiet=quiet,
            )
