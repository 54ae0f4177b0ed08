import math
from typing import Any

import pytest
import torch

from unifier.nn.attention import apply_rope
from unifier_tokenizers import Audio, FrameTokenizer, PatchTokenizer, SubwordTokenizer, Tokenizer, Vocabulary
from unifier_tokenizers import positions as module
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.positions import PositionalEncoding, PositionKind, rope_frequencies, sinusoidal_encoding
from unifier_tokenizers.tokens import NO_POSITION

D, N = 12, 7


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_sinusoid_is_published_formula(axes: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d)) and PE(pos, 2i + 1) its cosine, d = D / A; the order of rows is free."""
    positions = torch.randint(0, 500, (2, axes, N))
    encoded, depth = sinusoidal_encoding(positions, D), D // axes
    assert encoded.shape == (2, D, N)
    for b, axis, n in torch.cartesian_prod(torch.arange(2), torch.arange(axes), torch.arange(N)).tolist():
        angles = [int(positions[b, axis, n]) / 10000 ** (2 * i / depth) for i in range(depth // 2)]
        expected = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
        torch.testing.assert_close(encoded[b, axis * depth : (axis + 1) * depth, n], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("dim", "axes"), [(7, 1), (10, 2), (8, 3)])
def test_sinusoid_indivisible_dim_refused(dim: int, axes: int) -> None:
    with pytest.raises(InputError, match=f"{axes} axes .*divisible by {2 * axes}.* {dim}"):
        sinusoidal_encoding(torch.zeros(1, axes, N, dtype=torch.long), dim)


def test_none_changes_nothing() -> None:
    columns = torch.randn(2, D, N)
    assert torch.equal(PositionalEncoding("none", D, (N,))(columns, torch.arange(N).expand(2, 1, N)), columns)


def test_learned_vector_per_coordinate() -> None:
    encoding = PositionalEncoding("learned", D, (4, 5))
    positions = torch.tensor([[0, 0, 3, NO_POSITION, 0], [0, 4, 4, NO_POSITION, 0]])
    vectors = encoding(torch.zeros(1, D, 5), positions[None])[0]
    assert torch.equal(vectors[:, 0], vectors[:, 4])
    corners = encoding(torch.zeros(1, D, 4), torch.tensor([[[0, 0, 3, 3], [0, 4, 0, 4]]]))[0]
    torch.testing.assert_close(corners[:, 3] - corners[:, 1], corners[:, 2] - corners[:, 0])
    assert len({tuple(vector.tolist()) for vector in vectors.T}) == 4


@pytest.mark.parametrize("axes", [1, 2])
def test_concat_holds_positions_in_a_quarter_of_the_rows(axes: int) -> None:
    encoding, columns = PositionalEncoding("concat", 32, ()), torch.randn(2, 32, N)
    positions = torch.randint(0, 9, (2, axes, N))
    encoded = encoding(columns, positions)
    assert torch.equal(encoded[:, :24], columns[:, :24])
    assert torch.equal(encoded[:, 24:], sinusoidal_encoding(positions, 8))
    with pytest.raises(InputError, match=f"concat .*divisible by {8 * axes}.* {D}"):
        PositionalEncoding("concat", D, ())(torch.randn(2, D, N), positions)


@pytest.mark.parametrize("kind", ["sinusoid", "learned"])
def test_shared_positions_encoded_once(kind: PositionKind, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, columns = PositionalEncoding(kind, D, (5, 5)), torch.randn(3, D, N)
    positions = torch.randint(NO_POSITION, 4, (1, 2, N)).repeat(3, 1, 1)
    batch_sizes: list[int] = []

    def counted(positions: torch.Tensor, dim: int) -> torch.Tensor:
        batch_sizes.append(len(positions))
        return sinusoidal_encoding(positions, dim)

    monkeypatch.setattr(module, "sinusoidal_encoding", counted)
    for table in encoding.tables:
        table.register_forward_pre_hook(lambda _, inputs: batch_sizes.append(len(inputs[0])))
    equal = encoding(columns, positions)
    assert set(batch_sizes) == {1}
    batch_sizes.clear()
    positions[2] = NO_POSITION
    unequal = encoding(columns, positions)
    assert set(batch_sizes) == {3}
    assert torch.equal(unequal[:2], equal[:2])
    assert not torch.equal(unequal[2], equal[2])


@pytest.mark.parametrize(
    ("tokenizer", "longest", "longer"),
    [
        (SubwordTokenizer(Vocabulary.fit(["a girl run"], level="word"), D, positions="learned", length=4), 3, 4),
        (PatchTokenizer(D, length=4), 13, 17),
        (FrameTokenizer(D, win_length=0.016, hop_length=0.008, n_mels=20, positions="learned", length=4), 640, 768),
    ],
    ids=lambda part: type(part).__name__,
)
def test_encode_beyond_learned_length_refused(tokenizer: Tokenizer, longest: int, longer: int) -> None:
    def raw(size: int) -> Any:
        if isinstance(tokenizer, SubwordTokenizer):
            return "girl " * size
        return Audio(torch.randn(size), 16000) if size > 100 else torch.zeros(size, 1, 3)

    tokenizer.encode(raw(longest))
    with pytest.raises(InputError, match=r"5 .*axis 0\b.*4 learned.*length"):
        tokenizer.encode(raw(longer))


def test_check_beyond_learned_length_refused() -> None:
    encoding = PositionalEncoding("learned", D, (4, 5))
    encoding.check(torch.tensor([[3], [4]]))
    with pytest.raises(InputError, match=r"6 .*axis 1\b.*5 learned.*length.*sinusoid") as error:
        encoding.check(torch.tensor([[3], [5]]))
    assert "\n" not in str(error.value)
    PositionalEncoding("sinusoid", D, (4,)).check(torch.tensor([[1000]]))


@pytest.mark.parametrize("axes", [1, 2])
def test_rope_scores_depend_on_differences(axes: int) -> None:
    depth = 8
    positions = torch.randint(0, 30, (2, axes, N))
    query, key = torch.randn(2, 2, 3, N, depth).double()

    def scores(positions: torch.Tensor) -> torch.Tensor:
        angles = rope_frequencies(positions, depth)
        assert angles.shape == (2, N, depth // 2)
        return apply_rope(query, angles) @ apply_rope(key, angles).mT

    near, moved = scores(positions), scores(positions + torch.randint(0, 30, (2, axes, 1)))
    torch.testing.assert_close(near, moved, atol=1e-3, rtol=0)
    assert (near - query @ key.mT).abs().max() > 0.1
    for axis in range(axes):
        other = positions.clone()
        other[:, axis, 0] += 1
        assert (scores(other)[:, :, 0, 1:] - near[:, :, 0, 1:]).abs().max() > 0.01, f"axis {axis} is not read"


def test_rope_keeps_lengths_and_position_0() -> None:
    query = torch.randn(1, 3, N, 8)
    rotated = apply_rope(query, rope_frequencies(torch.arange(N)[None, None], 8))
    torch.testing.assert_close(rotated.norm(dim=-1), query.norm(dim=-1))
    assert torch.equal(rotated[:, :, 0], query[:, :, 0])


@pytest.mark.parametrize(("depth", "axes"), [(7, 1), (2, 2)])
def test_rope_narrow_head_refused(depth: int, axes: int) -> None:
    with pytest.raises(InputError, match=f"at least {2 * axes}.* {depth}"):
        rope_frequencies(torch.zeros(1, axes, N, dtype=torch.long), depth)
