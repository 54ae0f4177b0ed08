"""The reach of the convolutional trunk, and its refusals."""

from collections.abc import Callable

import pytest
import torch

from unifier.nn.attention import AttentionMode
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.factory import create_trunk
from unifier_tokenizers import InputError, Tokens

D = 12


@pytest.mark.parametrize("mode", ["bidirectional", "causal"])
def test_reach_is_depth_times_kernel_size(mode: AttentionMode, random_tokens: Callable[..., Tokens]) -> None:
    trunk, tokens = ConvolutionalTrunk(D, 2, kernel_size=5), random_tokens([20, 4])
    matrix = tokens.matrix.requires_grad_()
    # Output n of the first example depends on token m if the gradient is not zero.
    outputs = trunk(tokens, mode).matrix[0].mT @ torch.randn(D)
    visible = torch.stack([torch.autograd.grad(y, matrix, retain_graph=True)[0][0].any(0) for y in outputs])
    distance = torch.arange(20)[:, None] - torch.arange(20)
    expected = distance.abs() <= 4 if mode == "bidirectional" else (distance >= 0) & (distance <= 8)
    assert torch.equal(visible, expected)


@pytest.mark.parametrize("mode", ["bidirectional", "causal"])
def test_reach_doubles_at_each_layer_with_dilation(mode: AttentionMode, random_tokens: Callable[..., Tokens]) -> None:
    trunk, tokens = ConvolutionalTrunk(D, 3, kernel_size=3, dilation=2), random_tokens([20, 4])
    matrix = tokens.matrix.requires_grad_()
    outputs = trunk(tokens, mode).matrix[0].mT @ torch.randn(D)
    visible = torch.stack([torch.autograd.grad(y, matrix, retain_graph=True)[0][0].any(0) for y in outputs])
    distance = torch.arange(20)[:, None] - torch.arange(20)
    # The three layers reach 1, 2 and 4 tokens on each side.
    assert torch.equal(visible, distance.abs() <= 7 if mode == "bidirectional" else (distance >= 0) & (distance <= 14))


def test_prefix_and_even_kernels_are_refused(random_tokens: Callable[..., Tokens]) -> None:
    with pytest.raises(InputError, match="prefix"):
        ConvolutionalTrunk(D, 1)(random_tokens([4]), torch.tensor([2]))
    for kernel_size in (0, 4):
        with pytest.raises(InputError, match=f"kernel_size={kernel_size}"):
            ConvolutionalTrunk(D, 1, kernel_size=kernel_size)
    with pytest.raises(InputError, match="dilation=0"):
        ConvolutionalTrunk(D, 1, dilation=0)
    with pytest.raises(InputError, match="dilation=2"):
        create_trunk("gru", D, 1, dilation=2)
