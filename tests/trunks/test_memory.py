"""A text in pieces with a memory has the outputs of one window with a banded mask. No gradient enters the memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from unifier.nn.block import Norm
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.memory import Memory
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import NO_POSITION, InputError, Tokens, rope_frequencies

D, HEADS = 12, 3
PIECES = [[5, 5, 5, 5], [5, 3, 5, 4]]
"""The lengths of the pieces of two texts."""
Draw = Callable[..., Tokens]


def window(trunk: Transformer, text: Tensor, lengths: list[int], length: int) -> Tensor:
    """Run a text (D, N) as one window. A token attends to its piece and to `length` tokens before the piece."""
    index, starts = torch.arange(text.shape[1]), torch.tensor([0, *lengths]).cumsum(0)
    start = torch.cat([torch.full((n,), int(starts[k])) for k, n in enumerate(lengths)])
    mask = (index <= index[:, None]) & (index >= start[:, None] - length)
    if trunk.local is not None:
        mask &= (index[:, None] - index < 3) | ((index[:, None] - index) % 4 == 0)
    angles = rope_frequencies(1000 + index[None, None], D // HEADS) if trunk.rotary else None
    x = text.mT[None]
    for block in trunk.blocks:
        x = block(x, mask, angles=angles)
    return trunk.norm(x)[0].mT


def piece(texts: list[Tensor], starts: list[int], lengths: list[int]) -> Tokens:
    """Return one piece of each text (D, N), with its positions in the text, padded to the longest piece."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    matrix = torch.full((len(texts), D, max(lengths)), 9.0)
    for b, (text, start, n) in enumerate(zip(texts, starts, lengths, strict=True)):
        matrix[b, :, :n] = text[:, start : start + n]
    positions = torch.tensor(starts)[:, None, None] + torch.arange(max(lengths))
    return Tokens(matrix, mask, positions.masked_fill(~mask[:, None], NO_POSITION))


@pytest.mark.parametrize("length", [3, 7, 40])
@pytest.mark.parametrize(
    ("depth", "norm", "options"),
    [
        (1, "pre", {}),
        (3, "pre", {"rotary": True}),
        (2, "post", {"rotary": True, "qk_norm": True}),
        (2, "pre", {"share_layers": True}),
        (2, "pre", {"attention_width": 3, "attention_stride": 4}),
    ],
)
@torch.no_grad()
def test_pieces_equal_one_window(length: int, depth: int, norm: Norm, options: dict[str, Any]) -> None:
    trunk = Transformer(D, depth, HEADS, 20, norm=norm, **options)
    for parameter in trunk.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    texts = [torch.randn(D, sum(lengths)) for lengths in PIECES]
    expected = [window(trunk, text, lengths, length) for text, lengths in zip(texts, PIECES, strict=True)]
    memory, starts = None, [0, 0]
    for lengths in map(list, zip(*PIECES, strict=True)):
        output, memory = trunk.forward_with_memory(piece(texts, starts, lengths), memory, length)
        for b, n in enumerate(lengths):
            found = output.matrix[b, :, :n]
            torch.testing.assert_close(found, expected[b][:, starts[b] : starts[b] + n], atol=1e-5, rtol=1e-4)
        starts = [start + n for start, n in zip(starts, lengths, strict=True)]


def test_no_gradient_enters_the_memory(random_tokens: Draw) -> None:
    trunk, tokens, more = Transformer(D, 2, HEADS), random_tokens([5, 5]), random_tokens([5, 5])
    tokens.matrix.requires_grad_()
    first, memory = trunk.forward_with_memory(tokens, None, 4)
    second, _ = trunk.forward_with_memory(more, memory, 4)
    alone, _ = trunk.forward_with_memory(more, None, 4)
    assert not torch.allclose(second.matrix, alone.matrix)
    second.matrix.square().sum().backward()
    assert tokens.matrix.grad is None
    weight = trunk.get_parameter("blocks.0.attention.key_value.weight")
    assert weight.grad is not None
    assert torch.equal(first.mask, tokens.mask)


def test_only_texts_on_a_transformer_have_a_memory(random_tokens: Draw) -> None:
    with pytest.raises(InputError, match=r"ConvolutionalTrunk.*memory=0"):
        ConvolutionalTrunk(D, 1).forward_with_memory(random_tokens([3]), None, 4)
    with pytest.raises(InputError, match="one position each"):
        Transformer(D, 1, HEADS).forward_with_memory(random_tokens([3], axes=2), None, 4)
    empty = Memory.empty(4, 2, torch.zeros(3, 5, D))
    assert [state.shape for state in empty.states] == [(3, 4, D)] * 2
    assert not empty.mask.any()
