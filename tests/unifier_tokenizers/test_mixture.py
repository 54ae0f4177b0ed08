"""A mixture's columns are its members' columns, told apart by modality, whatever the members' dtypes and axes are."""

from typing import Any, final

import pytest
import torch
from torch import Tensor, nn

from unifier_tokenizers.errors import InputError
from unifier_tokenizers.mixture import Mixture
from unifier_tokenizers.testing import check_tokenizer
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import NO_POSITION, Units, pad_columns

D = 7


@final
class Letters(Tokenizer):
    """Ids (N,) at positions (1, N)."""

    def __init__(self, dim: int = D) -> None:
        super().__init__(dim)
        self.table = nn.Embedding(128, dim)

    def encode(self, raw: str) -> Units:
        return Units(torch.tensor([ord(letter) for letter in raw]), torch.arange(len(raw))[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        assert values.dtype == torch.int64
        assert values.shape == (len(positions), positions.shape[2])
        assert positions.shape[1] == 1
        return (self.table(values) + positions[:, 0, :, None]).mT


@final
class Grid(Tokenizer):
    """Cells (P, N) of a grid at positions (2, N), after a class token; each sees the cells of its row, by position."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(D)
        self.dtype = dtype
        self.project = nn.Linear(3, D)
        self.summary = nn.Parameter(torch.randn(D))

    def encode(self, raw: Tensor) -> Units:
        cells = nn.functional.pad(raw.flatten(1), (1, 0)).to(self.dtype)
        places = torch.cartesian_prod(*(torch.arange(side) for side in raw.shape[1:])).T
        return Units(cells, nn.functional.pad(places, (1, 0), value=NO_POSITION))

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        weight = self.project.weight
        assert values.dtype == (weight.dtype if self.dtype.is_floating_point else self.dtype)
        assert values.shape[1] == 3
        assert positions.shape[1] == 2
        nowhere = positions[:, :1] == NO_POSITION
        columns = self.project(values.to(weight.dtype).mT).mT.masked_fill(nowhere, 0)
        same_row = (positions[:, 0, :, None] == positions[:, 0, None, :]).to(columns.dtype)
        return torch.where(nowhere, self.summary[:, None], columns @ same_row)


@final
class Line(Tokenizer):
    """A class token, then ids at positions (1, N)."""

    def __init__(self) -> None:
        super().__init__(D)
        self.table = nn.Embedding(128, D)

    def encode(self, raw: int) -> Units:
        return Units(torch.arange(raw), torch.arange(raw)[None] - 1)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        assert positions.shape[1] == 1
        return self.table(values).mT


@final
class Recorder(Tokenizer):
    """Gives fixed values, and keeps under its name what comes back."""

    def __init__(self, values: Tensor, name: str, seen: dict[str, Tensor]) -> None:
        super().__init__(D)
        self.values, self.name, self.seen = values, name, seen

    def encode(self, raw: Any) -> Units:
        del raw
        return Units(self.values, torch.arange(self.values.shape[-1])[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        self.seen[self.name] = values
        return torch.zeros(len(values), D, positions.shape[-1])


def examples() -> list[dict[str, Any]]:
    """Three examples in which one member or the other is the longer."""
    torch.manual_seed(1)
    sides = [(2, 3), (1, 2), (4, 2)]
    texts = ["unequal", "several letters", "ab"]
    return [{"text": text, "image": torch.randn(3, *side)} for text, side in zip(texts, sides, strict=True)]


def mixture() -> Mixture:
    torch.manual_seed(0)
    return Mixture({"image": Grid(), "text": Letters()})


def test_mixtures_keep_the_contract() -> None:
    check_tokenizer(mixture(), examples())
    check_tokenizer(Mixture({"text": Letters()}), [{"text": "one"}, {"text": "two"}, {"text": "three"}])


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int32])
def test_columns_are_the_members_own_plus_the_vector_of_their_modality(dtype: torch.dtype) -> None:
    image, text = Grid(dtype), Letters()
    both = Mixture({"image": image, "text": text})
    raws = [{**raw, "image": raw["image"].abs()} for raw in examples()]
    values, positions, mask = pad_columns([both.encode(raw) for raw in raws])
    columns = both.embed(values, positions)
    assert columns.shape == (3, D, mask.shape[1])
    for b, raw in enumerate(raws):
        first, second = both.modality.weight
        expected = torch.cat([image(raw["image"]) + first[:, None], text(raw["text"]) + second[:, None]], dim=1)
        torch.testing.assert_close(columns[b, :, mask[b]], expected)
        assert not columns[b, :, ~mask[b]].any()


def test_columns_stand_in_the_order_of_the_members_not_of_the_example() -> None:
    image, text, raw = Grid(), Letters(), examples()[0]
    turned = dict(reversed(raw.items()))
    one, other = Mixture({"image": image, "text": text}), Mixture({"text": text, "image": image})
    other.modality.weight.data = one.modality.weight.data.flip(0)
    cells = image.encode(raw["image"]).values.shape[1]
    assert torch.equal(one(raw), one(turned))
    torch.testing.assert_close(one(raw).roll(-cells, dims=1), other(raw))


def test_positions_are_the_members_own_with_0_on_axes_they_lack_and_nowhere_kept() -> None:
    raw = examples()[0]
    positions = mixture().encode(raw).positions
    image, text = Grid().encode(raw["image"]).positions, Letters().encode(raw["text"]).positions
    assert torch.equal(positions, torch.cat([image, torch.cat([text, torch.zeros_like(text)])], dim=1))
    assert (positions[:, 0] == NO_POSITION).all()
    # Seen from a member with fewer axes: what stands nowhere does so on the axes of the others too.
    both = Mixture({"line": Line(), "image": Grid()})
    assert (both.encode({"line": 4, "image": raw["image"]}).positions[:, 0] == NO_POSITION).all()


def test_a_mixture_may_be_a_member() -> None:
    inner, line = mixture(), Line()
    outer = Mixture({"line": line, "page": inner})
    raws = [{"line": 3 + b, "page": raw} for b, raw in enumerate(examples())]
    check_tokenizer(outer, raws)
    expected = torch.cat([line(3), inner(raws[0]["page"])], dim=1)
    kind = outer.modality.weight[[0] * 3 + [1] * (expected.shape[1] - 3)].mT
    torch.testing.assert_close(outer(raws[0]), expected + kind)


def test_ids_and_floats_travel_exactly() -> None:
    ids, floats = torch.tensor([2**24 + 1, 2**31 - 1]), torch.tensor([[0.1, -0.0], [1e-40, float("inf")]])
    seen: dict[str, Tensor] = {}
    members = {name: Recorder(units, name, seen) for name, units in {"ids": ids, "floats": floats}.items()}
    Mixture(members)({"ids": None, "floats": None})
    assert torch.equal(seen["ids"][0], ids)
    assert torch.equal(seen["floats"][0].view(torch.int32), floats.view(torch.int32))


def test_half_precision_weights_get_half_precision_floats() -> None:
    both = mixture().bfloat16()
    assert both(examples()[0]).dtype == torch.bfloat16


def test_a_gradient_comes_to_each_member_as_if_it_were_alone() -> None:
    both, raw = mixture(), examples()[0]
    both(raw).square().sum().backward()
    grid = both.members["image"]
    grown = [parameter.grad for parameter in grid.parameters()]
    grid.zero_grad()
    (grid(raw["image"]) + both.modality.weight[0, :, None].detach()).square().sum().backward()
    torch.testing.assert_close(grown, [parameter.grad for parameter in grid.parameters()])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"text": "a"}, "without 'image': every one needs 'image', 'text'"),
        ({"text": "a", "image": None, "sound": None}, "no member 'sound' in this mixture: it has 'image', 'text'"),
        ("a", "a mapping of 'image', 'text' is expected, not str"),
    ],
)
def test_an_example_of_other_members_is_refused(raw: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mixture().encode(raw)


def test_members_of_unequal_dims_are_refused() -> None:
    with pytest.raises(InputError, match=r"of one dim, not \{'a': 7, 'b': 8\}"):
        Mixture({"a": Letters(7), "b": Letters(8)})
    with pytest.raises(InputError, match="no tokenizer"):
        Mixture({})


@pytest.mark.parametrize("values", [torch.zeros(2, dtype=torch.float64), torch.zeros(2, 3, 2)])
def test_values_that_cannot_travel_are_refused(values: Tensor) -> None:
    member = Recorder(values, "odd", {})
    with pytest.raises(InputError, match=r"member 'odd' has torch.float"):
        Mixture({"odd": member}).encode({"odd": None})


def test_coordinates_are_the_order_of_the_columns() -> None:
    tokenizer, (raw, *_) = mixture(), examples()
    units = tokenizer.encode(raw)
    assert tokenizer.position_values(units).tolist() == [list(range(units.values.shape[-1]))]
    assert tokenizer.unit == "columns"


def test_the_beginning_of_an_example_needs_no_column_of_every_member() -> None:
    mixture = Mixture({"left": Letters(), "right": Letters()})
    values, positions = mixture.encode({"left": "abc", "right": "de"})
    whole = mixture.embed(values[None], positions[None])
    part = mixture.embed(values[None, :, :3], positions[None, :, :3])
    torch.testing.assert_close(part, whole[:, :, :3])
