"""Several modalities in one sequence, their columns side by side."""

from collections.abc import Iterable, Mapping
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units, units_error

# A member's units travel as int32 rows below a header: ids as they are, floats as their bits. So both arrive exact,
# and a half-precision trainer, which rounds every float of a batch, rounds no id.
MIXED_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.float32)
"""What a member's values may be."""


HEADER = 4
"""Rows above a column's values: its member, from 1 on (0 is padding); its dtype; its rows, 0 for ids (N,); its axes."""


@final
class Mixture(Tokenizer):
    """Columns of several tokenizers side by side, each with a learned vector that tells its modality.

    A raw example is a mapping that has every member's name; the columns stand in the order of the members. All members
    must be there because only then do all examples have the same number of rows, and fit one batch.
    """

    def __init__(self, members: Mapping[str, Tokenizer]) -> None:
        """Raises InputError where the members differ in D, or where there are none."""
        dims = {name: member.dim for name, member in members.items()}
        if len(set(dims.values())) != 1:
            raise InputError(f"a mixture takes tokenizers of one dim, not {dims or 'no tokenizer'}")
        super().__init__(next(iter(dims.values())))
        self.members = cast("Mapping[str, Tokenizer]", nn.ModuleDict(members))
        self.modality = nn.Embedding(len(members), self.dim)
        nn.init.normal_(self.modality.weight, std=0.02)

    def encode(self, raw: Any) -> Units:
        """All members' units: int32 (rows, N) at positions (A, N), with the most rows and axes that a member has.

        A column has coordinate 0 on an axis that its member lacks, or `NOWHERE` if it stands nowhere. Raises InputError
        where a member is missing or unknown, or has values that are not (N,) or (P, N) of one of `DTYPES`.
        """
        if not isinstance(raw, Mapping):
            raise InputError(f"a mapping of {_named(self.members)} is expected, not {type(raw).__name__}")
        if unknown := [name for name in raw if name not in self.members]:
            raise InputError(f"no member {_named(unknown)} in this mixture: it has {_named(self.members)}")
        if missing := [name for name in self.members if name not in raw]:
            raise InputError(f"an example without {_named(missing)}: every one needs {_named(self.members)}")
        units = {name: member.encode(raw[name]) for name, member in self.members.items()}
        for name, each in units.items():
            if wrong := units_error(each):
                raise InputError(f"member {name!r}: {wrong}")
        values = [_pack(name, index, *each) for index, (name, each) in enumerate(units.items())]
        rows = max(len(each) for each in values)
        axes = max(len(each.positions) for each in units.values())
        return Units(
            torch.cat([functional.pad(each, (0, 0, 0, rows - len(each))) for each in values], dim=-1),
            torch.cat([_with_axes(each.positions, axes) for each in units.values()], dim=-1),
        )

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        weight = self.modality.weight
        columns = weight.new_zeros(len(values), self.dim, values.shape[-1])
        for index, member in enumerate(self.members.values()):
            mine = values[:, 0] == index + 1  # B, N
            if not mine.any():  # of an example's beginning alone
                continue
            packed, places = _pack_left(values, positions, mine)
            # The layout is read from the values, which encode, being pure, could not keep anywhere else.
            _, dtype, rows, axes = packed[:, :HEADER].amax((0, 2)).tolist()
            own = packed[:, HEADER : HEADER + rows] if rows else packed[:, HEADER]
            # Floats take the dtype of the weights, as a half-precision trainer gives it to any other float batch.
            is_float = MIXED_DTYPES[dtype].is_floating_point
            own = own.view(torch.float32).to(weight.dtype) if is_float else own.to(MIXED_DTYPES[dtype])
            embedded = member.embed(own, places[:, :axes]) + weight[index, :, None]
            rank = (mine.cumsum(-1) - 1).clamp(min=0)  # which of its member's columns a column is
            columns = torch.where(mine[:, None], _gather_columns(embedded, rank), columns)
        return columns

    def position_values(self, units: Units) -> Tensor:
        """The order of the columns (1, N): what members count in has no common measure."""
        return torch.arange(units.values.shape[-1])[None].float()


def _named(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names))


def _pack(name: str, index: int, values: Tensor, positions: Tensor) -> Tensor:
    """A member's values (N,) or (P, N) as int32 rows (HEADER + P, N), P = 1 for ids; raises InputError for others."""
    if values.dtype not in MIXED_DTYPES or values.dim() > 2:
        raise InputError(
            f"member {name!r} has {values.dtype} values of {values.dim()} dimensions: "
            f"a mixture takes (N,) or (P, N) of {', '.join(map(str, MIXED_DTYPES))}"
        )
    rows = len(values) if values.dim() == 2 else 0
    header = torch.tensor([index + 1, MIXED_DTYPES.index(values.dtype), rows, len(positions)], dtype=torch.int32)
    body = values.view(torch.int32) if values.is_floating_point() else values.int()
    return torch.cat([header[:, None].expand(-1, values.shape[-1]), body.reshape(-1, values.shape[-1])])


def _with_axes(positions: Tensor, axes: int) -> Tensor:
    """Positions (A, N) with coordinate 0 on further axes, up to (axes, N), and `NOWHERE` there for what is nowhere."""
    further = positions.new_zeros(axes - len(positions), positions.shape[1])
    return torch.cat([positions, further.masked_fill((positions == NO_POSITION).all(0), NO_POSITION)])


def _pack_left(values: Tensor, positions: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """The columns where mine (B, N) is True, moved to the left and padded: values (B, R, M), positions (B, A, M)."""
    order = mine.int().argsort(dim=-1, descending=True, stable=True)[:, : int(mine.sum(-1).max())]
    padding = ~mine.gather(1, order)[:, None]
    packed, places = _gather_columns(values, order), _gather_columns(positions, order)
    return packed.masked_fill(padding, 0), places.masked_fill(padding, NO_POSITION)


def _gather_columns(matrix: Tensor, order: Tensor) -> Tensor:
    """Columns order (B, M) of matrix (B, R, N): (B, R, M)."""
    return matrix.gather(2, order[:, None].expand(-1, matrix.shape[1], -1))
