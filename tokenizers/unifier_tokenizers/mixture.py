"""Several modalities in one sequence."""

from collections.abc import Iterable, Mapping
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units, units_error

MIXED_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.float32)
"""The dtypes that a member's values may have.

All values are stored as int32 rows below a header: ids as numbers, floats as their bits. Both arrive exactly, because
half-precision training rounds only the float tensors of a batch.
"""

HEADER = 4
"""The rows above a token's values.

They hold the member's number (from 1; 0 is padding), the index of its dtype, its rows (0 for ids (N,)) and its axes.
"""


@final
class Mixture(Tokenizer):
    """Tokens of several tokenizers in one sequence, each with a learned vector of its modality.

    A raw example is a mapping with one entry per member. The tokens are in the order of the members. Every member must
    be present, because examples of a batch must have the same number of rows.
    """

    def __init__(self, members: Mapping[str, Tokenizer]) -> None:
        """Create the mixture; raise InputError if there are no members or if they differ in D."""
        dims = {name: member.dim for name, member in members.items()}
        if len(set(dims.values())) != 1:
            raise InputError(f"a mixture takes tokenizers of one dim, not {dims or 'no tokenizer'}")
        super().__init__(next(iter(dims.values())))
        self.members = cast("Mapping[str, Tokenizer]", nn.ModuleDict(members))
        self.modality = nn.Embedding(len(members), self.dim)
        nn.init.normal_(self.modality.weight, std=0.02)

    def encode(self, raw: Any) -> Units:
        """Encode all members as int32 (rows, N) at positions (A, N), with the most rows and axes of any member.

        A token has coordinate 0 on an axis that its member lacks, or `NO_POSITION` if it has no position.

        Raises:
            InputError: If a member is missing or unknown, or if its values are not (N,) or (P, N) of `MIXED_DTYPES`.
        """
        if not isinstance(raw, Mapping):
            raise InputError(f"a mapping of {_join_names(self.members)} is expected, not {type(raw).__name__}")
        if unknown := [name for name in raw if name not in self.members]:
            raise InputError(f"no member {_join_names(unknown)} in this mixture: it has {_join_names(self.members)}")
        if missing := [name for name in self.members if name not in raw]:
            raise InputError(f"an example without {_join_names(missing)}: every one needs {_join_names(self.members)}")
        units = {name: member.encode(raw[name]) for name, member in self.members.items()}
        for name, encoded in units.items():
            if error := units_error(encoded):
                raise InputError(f"member {name!r}: {error}")
        values = [_pack(name, index, *encoded) for index, (name, encoded) in enumerate(units.items())]
        rows = max(len(packed) for packed in values)
        axes = max(len(encoded.positions) for encoded in units.values())
        return Units(
            torch.cat([functional.pad(packed, (0, 0, 0, rows - len(packed))) for packed in values], dim=-1),
            torch.cat([_with_axes(encoded.positions, axes) for encoded in units.values()], dim=-1),
        )

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn int32 values (B, rows, N) at positions (B, A, N) into tokens (B, D, N)."""
        weight = self.modality.weight
        columns = weight.new_zeros(len(values), self.dim, values.shape[-1])
        for index, member in enumerate(self.members.values()):
            mine = values[:, 0] == index + 1  # B, N
            if not mine.any():  # The batch is the beginning of a sequence, before this member's first token.
                continue
            packed, member_positions = _pack_left(values, positions, mine)
            # `encode` is pure, so the layout of a member's values is stored only in the values themselves.
            _, dtype, rows, axes = packed[:, :HEADER].amax((0, 2)).tolist()
            body = packed[:, HEADER : HEADER + rows] if rows else packed[:, HEADER]
            # Floats take the dtype of the weights, as in every other batch of half-precision training.
            is_float = MIXED_DTYPES[dtype].is_floating_point
            body = body.view(torch.float32).to(weight.dtype) if is_float else body.to(MIXED_DTYPES[dtype])
            embedded = member.embed(body, member_positions[:, :axes]) + weight[index, :, None]
            rank = (mine.cumsum(-1) - 1).clamp(min=0)  # The index of each token among the tokens of its member.
            columns = torch.where(mine[:, None], _gather_columns(embedded, rank), columns)
        return columns

    def position_values(self, units: Units) -> Tensor:
        """Return the index of each token (1, N), because the members measure positions in different units."""
        return torch.arange(units.values.shape[-1])[None].float()


def _join_names(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names))


def _pack(name: str, index: int, values: Tensor, positions: Tensor) -> Tensor:
    """Pack a member's values (N,) or (P, N) as int32 rows (HEADER + P, N), with P = 1 for ids.

    Raises:
        InputError: If the values have another dtype or more dimensions.
    """
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
    """Extend positions (A, N) to (axes, N) with 0, or with `NO_POSITION` for tokens without a position."""
    further = positions.new_zeros(axes - len(positions), positions.shape[1])
    return torch.cat([positions, further.masked_fill((positions == NO_POSITION).all(0), NO_POSITION)])


def _pack_left(values: Tensor, positions: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """Move the tokens with mine (B, N) True to the left and pad: values (B, R, M), positions (B, A, M)."""
    order = mine.int().argsort(dim=-1, descending=True, stable=True)[:, : int(mine.sum(-1).max())]
    padding = ~mine.gather(1, order)[:, None]
    packed, packed_positions = _gather_columns(values, order), _gather_columns(positions, order)
    return packed.masked_fill(padding, 0), packed_positions.masked_fill(padding, NO_POSITION)


def _gather_columns(matrix: Tensor, order: Tensor) -> Tensor:
    """Select the columns order (B, M) of matrix (B, R, N): (B, R, M)."""
    return matrix.gather(2, order[:, None].expand(-1, matrix.shape[1], -1))
