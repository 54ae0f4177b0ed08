"""Positions: the published formula, one vector a place, and rotary angles that only tell distances."""

import math

import pytest
import torch

from unifier.nn.attention import apply_rope
from unifier_tokenizers import positions as module
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.positions import PositionalEncoding, PositionKind, rope_frequencies, sinusoidal_encoding
from unifier_tokenizers.tokens import NO_POSITION

D, N = 12, 7


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_sinusoid_is_the_published_formula_on_each_axis(axes: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d)), PE(pos, 2i + 1) = cos(the same), d = D / A; order is free."""
    positions = torch.randint(0, 500, (2, axes, N))
    found, depth = sinusoidal_encoding(positions, D), D // axes
    assert found.shape == (2, D, N)
    for b in range(2):
        for n in range(N):
            for axis in range(axes):
                place = int(positions[b, axis, n])
                angles = [place / 10000 ** (2 * i / depth) for i in range(depth // 2)]
                expected = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
                torch.testing.assert_close(found[b, axis * depth : (axis + 1) * depth, n], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("dim", "axes"), [(7, 1), (10, 2), (8, 3)])
def test_a_dim_that_the_axes_do_not_divide(dim: int, axes: int) -> None:
    with pytest.raises(InputError, match=f"on {axes} axes need D divisible by {2 * axes}, and D is {dim}"):
        sinusoidal_encoding(torch.zeros(1, axes, N, dtype=torch.long), dim)


def test_no_positions_change_nothing() -> None:
    columns = torch.randn(2, D, N)
    assert torch.equal(PositionalEncoding("none", D, (N,))(columns, torch.arange(N).expand(2, 1, N)), columns)


def test_learned_positions_are_one_vector_a_place_and_axis() -> None:
    encoding = PositionalEncoding("learned", D, (4, 5))
    places = torch.tensor([[0, 0, 3, NO_POSITION, 0], [0, 4, 4, NO_POSITION, 0]])
    found = encoding(torch.zeros(1, D, 5), places[None])[0]
    assert torch.equal(found[:, 0], found[:, 4])
    corners = encoding(torch.zeros(1, D, 4), torch.tensor([[[0, 0, 3, 3], [0, 4, 0, 4]]]))[0]
    torch.testing.assert_close(corners[:, 3] - corners[:, 1], corners[:, 2] - corners[:, 0])
    assert len({tuple(column.tolist()) for column in found.T}) == 4


@pytest.mark.parametrize("kind", ["sinusoid", "learned"])
def test_places_that_all_examples_share_are_found_once(kind: PositionKind, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, columns = PositionalEncoding(kind, D, (5, 5)), torch.randn(3, D, N)
    positions = torch.randint(NO_POSITION, 4, (1, 2, N)).repeat(3, 1, 1)
    asked: list[int] = []

    def counted(positions: torch.Tensor, dim: int) -> torch.Tensor:
        asked.append(len(positions))
        return sinusoidal_encoding(positions, dim)

    monkeypatch.setattr(module, "sinusoid", counted)
    for table in encoding.tables:
        table.register_forward_pre_hook(lambda _, given: asked.append(len(given[0])))
    alike = encoding(columns, positions)
    assert set(asked) == {1}
    asked.clear()
    positions[2] = NO_POSITION
    unlike = encoding(columns, positions)
    assert set(asked) == {3}
    assert torch.equal(unlike[:2], alike[:2])
    assert not torch.equal(unlike[2], alike[2])


def test_columns_too_far_out_are_refused_with_the_way_out() -> None:
    encoding = PositionalEncoding("learned", D, (4, 5))
    encoding.check(torch.tensor([[3], [4]]))
    with pytest.raises(
        InputError, match=r"6 places on axis 1 and only 5 learned.*larger length, or .*sinusoid"
    ) as error:
        encoding.check(torch.tensor([[3], [5]]))
    assert "\n" not in str(error.value)
    PositionalEncoding("sinusoid", D, (4,)).check(torch.tensor([[1000]]))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="no positions 'sine': choose one of none, sinusoid, learned"):
        PositionalEncoding("sine", D, (4,))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("axes", [1, 2])
def test_rotary_scores_depend_on_differences_of_positions_alone(axes: int) -> None:
    depth = 8
    positions = torch.randint(0, 30, (2, axes, N))
    query, key = torch.randn(2, 2, 3, N, depth).double()

    def scores(places: torch.Tensor) -> torch.Tensor:
        angles = rope_frequencies(places, depth)
        assert angles.shape == (2, N, depth // 2)
        return apply_rope(query, angles) @ apply_rope(key, angles).mT

    near, moved = scores(positions), scores(positions + torch.randint(0, 30, (2, axes, 1)))
    torch.testing.assert_close(near, moved, atol=1e-3, rtol=0)
    assert (near - query @ key.mT).abs().max() > 0.1
    for axis in range(axes):
        other = positions.clone()
        other[:, axis, 0] += 1
        assert (scores(other)[:, :, 0, 1:] - near[:, :, 0, 1:]).abs().max() > 0.01, "an axis is not read"


def test_rotation_keeps_lengths_and_place_0_as_it_is() -> None:
    query = torch.randn(1, 3, N, 8)
    turned = apply_rope(query, rope_frequencies(torch.arange(N)[None, None], 8))
    torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], query[:, :, 0])


@pytest.mark.parametrize(("depth", "axes"), [(7, 1), (2, 2)])
def test_a_head_too_narrow_to_turn(depth: int, axes: int) -> None:
    with pytest.raises(InputError, match=f"an even head depth of at least {2 * axes}, not {depth}"):
        rope_frequencies(torch.zeros(1, axes, N, dtype=torch.long), depth)
