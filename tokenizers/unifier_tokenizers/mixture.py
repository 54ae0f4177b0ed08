"""A tokenizer that concatenates several modalities in one sequence."""

from collections.abc import Iterable, Mapping
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units, units_error

MIXED_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.float32)
"""The dtypes that are allowed for the values of a member.

A mixture stores all values as int32, below a header. The bits of float values are stored unchanged. Half-precision
training rounds only the float tensors of a batch, so int32 values stay exact.
"""

HEADER = 4
"""The number of header rows above the values of each token.

- Row 0 is the index of the member, counted from 1; 0 means padding.
- Row 1 is the index of the values' dtype in `MIXED_DTYPES`.
- Row 2 is the number of rows of the member's values, or 0 for ids (N,).
- Row 3 is the number of axes of the member's positions.
"""

HASH_FACTOR = 6364136223846793005
"""The hash of a token's values is their sum after multiplication with powers of this number (from Knuth's MMIX)."""


@final
class Mixture(Tokenizer):
    """Tokenizer that concatenates the tokens of several tokenizers, which are its members.

    To each token, the mixture adds a learned vector of the token's member. A raw example is a mapping with one entry
    per member. The tokens of the members are concatenated in the order of the members. Every example must contain all
    members, because all examples of a batch must have the same number of rows.
    """

    def __init__(self, members: Mapping[str, Tokenizer], *, mark_shared: bool = False) -> None:
        """Create the mixture.

        Args:
            members: The tokenizers of the modalities, all with the same D.
            mark_shared: Add a learned vector to the tokens that also occur in another member, as in the exact match of
                Chen et al. 2017 (DrQA), section 3.2. For example, the words of a question are marked in its context.
                Another vector is for tokens that share only their first value, such as the first subword of a word.

        Raises:
            InputError: If there are no members, if the members have different D, or if a name is not possible.
        """
        dims = {name: member.dim for name, member in members.items()}
        if len(set(dims.values())) != 1:
            raise InputError(
                f"all tokenizers of a mixture must have the same dim, but {dims or 'no tokenizer'} was given"
            )
        for name in dims:
            if hasattr(nn.ModuleDict(), name):
                raise InputError(f"a member cannot be called {name!r}, because torch's ModuleDict has this attribute")
        super().__init__(next(iter(dims.values())))
        self.members = cast("Mapping[str, Tokenizer]", nn.ModuleDict(members))
        self.modality = nn.Embedding(len(members), self.dim)
        self.shared = nn.Embedding(3, self.dim, padding_idx=0) if mark_shared else None
        self._layouts: list[list[int]] = []
        nn.init.normal_(self.modality.weight, std=0.02)

    def encode(self, raw: Any) -> Units:
        """Encode all members into one sequence: int32 values (rows, N) at positions (A, N).

        The member with the most rows determines `rows`, and the member with the most axes determines A. If a member has
        fewer axes, the coordinates of the missing axes are 0. Tokens without a position have `NO_POSITION` on every
        axis.

        Raises:
            InputError: If a member is missing or unknown. The error is also raised if the values of a member are not
                (N,) or (P, N), or if the dtype of the values is not in `MIXED_DTYPES`.
        """
        if not isinstance(raw, Mapping):
            raise InputError(
                f"a mapping with the keys {_join_names(self.members)} is expected, not {type(raw).__name__}"
            )
        if unknown := [name for name in raw if name not in self.members]:
            raise InputError(
                f"this mixture has no member {_join_names(unknown)}: its members are {_join_names(self.members)}"
            )
        if missing := [name for name in self.members if name not in raw]:
            raise InputError(
                f"the example has no {_join_names(missing)}: every example needs {_join_names(self.members)}"
            )
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
        columns = weight.new_zeros(values.shape[0], self.dim, values.shape[-1])
        for index, member in enumerate(self.members.values()):
            mine = values[:, 0] == index + 1  # B, N
            is_exporting = torch.compiler.is_exporting()
            if not is_exporting and not mine.any():  # A shortened batch may contain no token of a member.
                continue
            body, member_positions = self._unpack(index, values, positions, mine)
            # In half-precision training, floats are cast to the dtype of the weights.
            body = body.to(weight.dtype) if body.is_floating_point() else body
            embedded = member.embed(body, member_positions) + weight[index, :, None]
            rank = (mine.cumsum(-1) - 1).clamp(min=0)  # The index of each token among the tokens of its member.
            columns = torch.where(mine[:, None], _gather_columns(embedded, rank), columns)
        return columns if self.shared is None else columns + self.shared(_compare_members(values)).mT

    def unpack(self, name: str, values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the tokens of one member, padded on the right to the M tokens of the longest example.

        Args:
            name: The name of the member.
            values: Values (B, rows, N) of the mixture.
            positions: Positions (B, A, N) of the mixture.

        Returns:
            The member's values (B, M) or (B, P, M), its positions (B, A', M), and a mask (B, M), True for its tokens.
            None if no example has a token of the member.
        """
        index = [*self.members].index(name)
        mine = values[:, 0] == index + 1
        if not mine.any():
            return None
        mask = torch.arange(int(mine.sum(-1).max()), device=values.device) < mine.sum(-1, keepdim=True)
        return *self._unpack(index, values, positions, mine), mask

    def pack(self, name: str, values: Tensor, changed: Tensor) -> Tensor:
        """Return a copy of `values` (B, rows, N) in which the tokens of one member have other values.

        Args:
            name: The name of the member.
            values: Values (B, rows, N) of the mixture.
            changed: Values (B, M) or (B, P, M) of the member, with the dtype and the order that `unpack` has returned.
        """
        mine = values[:, 0] == [*self.members].index(name) + 1
        body = changed.view(torch.int32) if changed.is_floating_point() else changed.int()
        body = body.reshape(len(body), -1, body.shape[-1])
        rank = (mine.cumsum(-1) - 1).clamp(min=0)
        packed = values.clone()
        rows = slice(HEADER, HEADER + body.shape[1])
        packed[:, rows] = torch.where(mine[:, None], _gather_columns(body, rank), values[:, rows])
        return packed

    def _unpack(self, index: int, values: Tensor, positions: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values and positions of the tokens `mine` (B, N) of one member, padded on the right."""
        is_exporting = torch.compiler.is_exporting()
        # An exported graph has no shapes that depend on values, so padding fills the columns of other members.
        length = values.shape[-1] if is_exporting else int(mine.sum(-1).max())
        packed, member_positions = _pack_left(values, positions, mine, length)
        # `encode` must not store state in the tokenizer, so the header contains the layout of a member's values.
        dtype, rows, axes = self._layouts[index] if is_exporting else packed[:, 1:HEADER].amax((0, 2)).tolist()
        body = packed[:, HEADER : HEADER + rows] if rows else packed[:, HEADER]
        is_float = MIXED_DTYPES[dtype].is_floating_point
        return _to_float(body) if is_float else body.to(MIXED_DTYPES[dtype]), member_positions[:, :axes]

    def fix_layout(self, values: Tensor) -> None:
        """Store the layout of each member's values, which an exported graph needs as constants.

        Args:
            values: Values (B, rows, N) with tokens of all members.
        """
        headers = (values[:, 1:HEADER].mT[values[:, 0] == index + 1][0] for index in range(len(self.members)))
        self._layouts = [header.tolist() for header in headers]

    def position_values(self, units: Units) -> Tensor:
        """Return the index of each token (1, N), because the members measure positions in different units."""
        return torch.arange(units.values.shape[-1])[None].float()


def _join_names(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names))


def _pack(name: str, index: int, values: Tensor, positions: Tensor) -> Tensor:
    """Pack the values (P, N) of a member as int32 rows (HEADER + P, N). If the values are ids (N,), P is 1.

    Raises:
        InputError: If the dtype of the values is not in `MIXED_DTYPES`, or if the values have more than two dimensions.
    """
    if values.dtype not in MIXED_DTYPES or values.dim() > 2:
        raise InputError(
            f"member {name!r} has {values.dtype} values of {values.dim()} dimensions: "
            f"give (N,) or (P, N) with one of the dtypes {', '.join(map(str, MIXED_DTYPES))}"
        )
    rows = len(values) if values.dim() == 2 else 0
    header = torch.tensor([index + 1, MIXED_DTYPES.index(values.dtype), rows, len(positions)], dtype=torch.int32)
    body = values.view(torch.int32) if values.is_floating_point() else values.int()
    return torch.cat([header[:, None].expand(-1, values.shape[-1]), body.reshape(-1, values.shape[-1])])


def _with_axes(positions: Tensor, axes: int) -> Tensor:
    """Extend positions (A, N) to (axes, N)."""
    further = positions.new_zeros(axes - len(positions), positions.shape[1])
    return torch.cat([positions, further.masked_fill((positions == NO_POSITION).all(0), NO_POSITION)])


def _to_float(bits: Tensor) -> Tensor:
    """Return the float32 numbers whose bits are stored as int32."""
    if not torch.compiler.is_exporting():
        return bits.view(torch.float32)
    # ONNX cannot reinterpret bits, so a graph computes mantissa * 2 ** exponent. Numbers below 1e-38 become 0.
    exponent = (bits >> 23) & 0xFF
    mantissa = torch.where(exponent > 0, ((bits & 0x7FFFFF) | 0x800000).float(), 0.0)
    half = (exponent - 150).float() / 2  # 2 ** -150 is no float32 number, but its square root is one.
    return torch.where(bits < 0, -mantissa, mantissa) * half.exp2() * half.exp2()


def _compare_members(values: Tensor) -> Tensor:
    """Compare each token with the tokens of other members.

    Args:
        values: Values (B, HEADER + P, N).

    Returns:
        For each token (B, N): 2 if another member has the same token, 1 if another member has a token with the same
        first value, and 0 otherwise.
    """
    member, first = values[:, 0], values[:, HEADER]
    # Comparing one hash per token is three times as fast as comparing all of its values.
    factors = [pow(HASH_FACTOR, row, 2**63) for row in range(values.shape[1] - HEADER)]
    hashes = (values[:, HEADER:].long() * torch.tensor(factors, device=values.device)[:, None]).sum(1)
    is_token = member > 0
    is_other = (member[:, :, None] != member[:, None]) & is_token[:, :, None] & is_token[:, None]
    same_first, same = (is_other & (key[:, :, None] == key[:, None]) for key in (first, hashes))
    return same_first.any(-1).int() + same.any(-1).int()


def _pack_left(values: Tensor, positions: Tensor, mine: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Select the tokens for which `mine` (B, N) is True, and pad the selected tokens on the right.

    Args:
        values: Values (B, R, N).
        positions: Positions (B, A, N).
        mine: The selected tokens.
        length: M, at least the number of selected tokens of each example.

    Returns:
        Values (B, R, M) and positions (B, A, M) of the selected tokens.
    """
    places = torch.arange(mine.shape[1], device=mine.device)
    order = torch.where(mine, places, places + mine.shape[1]).argsort(-1)[:, :length]
    padding = ~mine.gather(1, order)[:, None]
    packed, packed_positions = _gather_columns(values, order), _gather_columns(positions, order)
    return packed.masked_fill(padding, 0), packed_positions.masked_fill(padding, NO_POSITION)


def _gather_columns(matrix: Tensor, order: Tensor) -> Tensor:
    """Return the columns (B, R, M) of `matrix` (B, R, N) that have the indices `order` (B, M)."""
    return matrix.gather(2, order[:, None].expand(-1, matrix.shape[1], -1))
