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
        assert (values.dtype, values.shape) == (torch.int64, (len(positions), positions.shape[2]))
        assert positions.shape[1] == 1
        return (self.table(values) + positions[:, 0, :, None]).mT


@final
class Grid(Tokenizer):
    """Cells (P, N) of a grid at positions (2, N), after a class token; a cell sees its row."""

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__(D)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.project = nn.Linear(3, D)
        self.summary = nn.Parameter(torch.randn(D))

    def encode(self, raw: Tensor) -> Units:
        cells = nn.functional.pad(raw.flatten(1), (1, 0)).to(self.dtype)
        positions = torch.cartesian_prod(*(torch.arange(side) for side in raw.shape[1:])).T
        return Units(cells, nn.functional.pad(positions, (1, 0), value=NO_POSITION))

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        weight = self.project.weight
        assert values.dtype == (weight.dtype if self.dtype.is_floating_point else self.dtype)
        assert (values.shape[1], positions.shape[1]) == (3, 2)
        absent = positions[:, :1] == NO_POSITION
        columns = self.project(values.to(weight.dtype).mT).mT.masked_fill(absent, 0)
        same_row = (positions[:, 0, :, None] == positions[:, 0, None, :]).to(columns.dtype)
        return torch.where(absent, self.summary[:, None], columns @ same_row)


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
    """A member that encodes fixed values and records the values that it embeds."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(D)
        self.values = values
        self.embedded = torch.empty(0)

    def encode(self, raw: Any) -> Units:
        del raw
        return Units(self.values, torch.arange(self.values.shape[-1])[None])

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        self.embedded = values
        return torch.zeros(len(values), D, positions.shape[-1])


def examples() -> list[dict[str, Any]]:
    """Return three examples; in each, another member is the longer."""
    sides = [(2, 3), (1, 2), (4, 2)]
    texts = ["unequal", "several letters", "ab"]
    return [{"text": text, "image": torch.randn(3, *side)} for text, side in zip(texts, sides, strict=True)]


@pytest.fixture
def mixture() -> Mixture:
    return Mixture({"image": Grid(), "text": Letters()})


def test_mixture_keeps_contract(mixture: Mixture) -> None:
    check_tokenizer(mixture, examples())
    check_tokenizer(Mixture({"text": Letters()}), [{"text": "one"}, {"text": "two"}, {"text": "three"}])
    pairs = [{"left": "one", "right": "no"}, {"left": "t", "right": "three"}, {"left": "five", "right": "even"}]
    check_tokenizer(Mixture({"left": Letters(), "right": Letters()}, mark_shared=True), pairs)


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32"])
def test_tokens_are_members_plus_modality(dtype: str) -> None:
    image, text = Grid(dtype), Letters()
    mixture = Mixture({"image": image, "text": text})
    raws = [{**raw, "image": raw["image"].abs()} for raw in examples()]
    values, positions, mask = pad_columns([mixture.encode(raw) for raw in raws])
    columns = mixture.embed(values, positions)
    assert columns.shape == (3, D, mask.shape[1])
    first, second = mixture.modality.weight[..., None]
    for b, raw in enumerate(raws):
        expected = torch.cat([image(raw["image"]) + first, text(raw["text"]) + second], dim=1)
        torch.testing.assert_close(columns[b, :, mask[b]], expected)
        assert not columns[b, :, ~mask[b]].any()


def test_tokens_follow_order_of_members() -> None:
    image, text, raw = Grid(), Letters(), examples()[0]
    left, right = Mixture({"image": image, "text": text}), Mixture({"text": text, "image": image})
    right.modality.weight.data = left.modality.weight.data.flip(0)
    cells = image.encode(raw["image"]).values.shape[1]
    assert torch.equal(left(raw), left(dict(reversed(raw.items()))))
    torch.testing.assert_close(left(raw).roll(-cells, dims=1), right(raw))


def test_positions_are_members_with_0_on_new_axes(mixture: Mixture) -> None:
    raw = examples()[0]
    positions = mixture.encode(raw).positions
    image, text = Grid().encode(raw["image"]).positions, Letters().encode(raw["text"]).positions
    assert torch.equal(positions, torch.cat([image, torch.cat([text, torch.zeros_like(text)])], dim=1))
    assert (positions[:, 0] == NO_POSITION).all()
    # A class token of a member with fewer axes has no position on the new axes either.
    wider = Mixture({"line": Line(), "image": Grid()})
    assert (wider.encode({"line": 4, "image": raw["image"]}).positions[:, 0] == NO_POSITION).all()


def test_mixture_as_member_keeps_contract(mixture: Mixture) -> None:
    line = Line()
    outer = Mixture({"line": line, "page": mixture})
    raws = [{"line": 3 + b, "page": raw} for b, raw in enumerate(examples())]
    check_tokenizer(outer, raws)
    expected = torch.cat([line(3), mixture(raws[0]["page"])], dim=1)
    modality = outer.modality.weight[[0] * 3 + [1] * (expected.shape[1] - 3)].mT
    torch.testing.assert_close(outer(raws[0]), expected + modality)


def test_ids_and_floats_arrive_exactly() -> None:
    ids = Recorder(torch.tensor([2**24 + 1, 2**31 - 1]))
    floats = Recorder(torch.tensor([[0.1, -0.0], [1e-40, float("inf")]]))
    Mixture({"ids": ids, "floats": floats})({"ids": None, "floats": None})
    assert torch.equal(ids.embedded[0], ids.values)
    assert torch.equal(floats.embedded[0].view(torch.int32), floats.values.view(torch.int32))


@pytest.mark.parametrize("name", ["image", "text"])
def test_members_are_unpacked_and_packed(name: str, mixture: Mixture) -> None:
    raws = examples()
    values, positions, mask = pad_columns([mixture.encode(raw) for raw in raws])
    tokens = mixture.unpack(name, values, positions)
    assert tokens is not None
    expected = pad_columns([mixture.members[name].encode(raw[name]) for raw in raws])
    for given, wanted in zip(tokens, expected, strict=True):
        assert torch.equal(given, wanted)
    alone = tokens[0]
    doubled = mixture.pack(name, values, alone * 2)
    repeated = mixture.unpack(name, doubled, positions)
    assert repeated is not None
    assert torch.equal(repeated[0], alone * 2)
    assert torch.equal(mixture.pack(name, doubled, alone)[:, :, mask[0]], values[:, :, mask[0]])


def test_position_values_count_tokens(mixture: Mixture) -> None:
    units = mixture.encode(examples()[0])
    assert mixture.position_values(units).tolist() == [list(range(units.values.shape[-1]))]
    assert mixture.unit == "columns"
    assert mixture.bfloat16()(examples()[0]).dtype == torch.bfloat16, "half-precision weights get half floats"


def test_member_gradient_as_alone(mixture: Mixture) -> None:
    raw, grid = examples()[0], mixture.members["image"]
    mixture(raw).square().sum().backward()
    gradients = [parameter.grad for parameter in grid.parameters()]
    grid.zero_grad()
    (grid(raw["image"]) + mixture.modality.weight[0, :, None].detach()).square().sum().backward()
    torch.testing.assert_close(gradients, [parameter.grad for parameter in grid.parameters()])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"text": "a"}, "'image'"),
        ({"text": "a", "image": None, "sound": None}, "'sound'.*'image', 'text'"),
        ("a", "'image', 'text'.*not str"),
    ],
)
def test_example_of_other_members_refused(raw: Any, message: str, mixture: Mixture) -> None:
    with pytest.raises(InputError, match=message):
        mixture.encode(raw)


def test_members_of_unequal_dims_refused() -> None:
    with pytest.raises(InputError, match=r"\{'a': 7, 'b': 8\}"):
        Mixture({"a": Letters(7), "b": Letters(8)})
    with pytest.raises(InputError, match="no tokenizer"):
        Mixture({})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(2, 0), r"'odd': .*\(2, 0\)"),
        (torch.zeros(2, dtype=torch.float64), r"'odd' .*torch.float"),
        (torch.zeros(2, 3, 2), r"'odd' .*torch.float"),
    ],
)
def test_unsupported_values_refused(values: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Mixture({"odd": Recorder(values)}).encode({"odd": None})


def test_beginning_without_a_member_embeds() -> None:
    mixture = Mixture({"left": Letters(), "right": Letters()})
    values, positions = mixture.encode({"left": "abc", "right": "de"})
    complete = mixture.embed(values[None], positions[None])
    beginning = mixture.embed(values[None, :, :3], positions[None, :, :3])
    torch.testing.assert_close(beginning, complete[:, :, :3])


def test_shared_tokens_are_marked() -> None:
    left = Recorder(torch.tensor([[1, 2, 3, 4], [0, 5, 5, 5]]))
    right = Recorder(torch.tensor([[7, 3, 2, 2], [0, 5, 6, 6]]))
    mixture = Mixture({"left": left, "right": right}, mark_shared=True)
    assert mixture.shared is not None
    mixture.modality.weight.data.zero_()
    mixture.shared.weight.data[1:] = torch.tensor([1.0, 2.0])[:, None]
    # 2 is a shared token, and 1 is a token whose first value occurs in the other member.
    assert mixture({"left": None, "right": None})[0].tolist() == [0, 1, 2, 0, 0, 2, 1, 1]


def test_padding_is_not_shared() -> None:
    mixture = Mixture({"left": Recorder(torch.zeros(1, 1)), "right": Recorder(torch.ones(1, 1))}, mark_shared=True)
    short = mixture.encode({"left": None, "right": None})
    values, positions, mask = pad_columns([short, Units(short.values.tile(2), short.positions.tile(2))])
    assert not mixture.embed(values, positions)[~mask[:, None].expand(-1, D, -1)].any()
