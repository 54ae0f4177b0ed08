"""The output of each layer, for every kind of trunk and with padding."""

import pytest
import torch

from unifier.analysis.activations import layer_activations, mean_tokens
from unifier.nn.attention import AttentionMode
from unifier.trunks.factory import create_trunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import NO_POSITION, Tokens

D, N, DEPTH = 8, 7, 3
NAMES = ("transformer", "post_norm", "mean_attention", "lstm", "convolutional")


def build(name: str) -> Trunk:
    trunk = Transformer(D, DEPTH, 2, norm="post") if name == "post_norm" else create_trunk(name, D, DEPTH, 2)
    return trunk.eval()


def random_tokens(lengths: list[int]) -> Tokens:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    positions = torch.arange(max(lengths)).expand(len(lengths), 1, -1).masked_fill(~mask[:, None], NO_POSITION)
    return Tokens(torch.randn(len(lengths), D, max(lengths)), mask, positions)


@pytest.mark.parametrize("name", NAMES)
def test_layers_have_the_parameters_names(name: str) -> None:
    trunk, tokens = build(name), random_tokens([N, 3])
    output, layers = trunk(tokens), layer_activations(trunk, tokens)
    prefix = "layers" if name in ("lstm", "convolutional") else "blocks"
    assert list(layers) == ["columns", *(f"{prefix}.{i}" for i in range(DEPTH))]
    assert torch.equal(layers["columns"], tokens.matrix.mT)
    assert torch.equal(trunk.get_submodule("norm")(layers[f"{prefix}.{DEPTH - 1}"]), output.matrix.mT)
    recorded = dict(layers)
    trunk(random_tokens([2]))
    assert all(layers[layer] is activations for layer, activations in recorded.items()), "a hook was not removed"
    if name not in ("transformer", "mean_attention"):
        return
    layers = layer_activations(trunk, random_tokens([N, N]))
    for i, block in enumerate(trunk.get_submodule("blocks").children()):
        x = layers["columns" if i == 0 else f"blocks.{i - 1}"]
        torch.testing.assert_close(layers[f"blocks.{i}"], block(x, None))


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_mean(name: str) -> None:
    trunk, lengths = build(name), [N, 2, 4]
    tokens = random_tokens(lengths)
    batch = layer_activations(trunk, tokens)
    for b, length in enumerate(lengths):
        single = Tokens(*(part[b : b + 1, ..., :length] for part in tokens))
        for layer, activations in layer_activations(trunk, single).items():
            mean = mean_tokens(batch[layer], tokens.mask)[b]
            torch.testing.assert_close(mean, activations[0].mean(0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", ["causal", torch.tensor([2, 0])], ids=["causal", "prefix"])
def test_mode_is_passed_to_the_trunk(mode: AttentionMode) -> None:
    trunk, tokens = build("transformer"), random_tokens([N, 4])
    layers = layer_activations(trunk, tokens, mode)
    last = layers[f"blocks.{DEPTH - 1}"]
    assert torch.equal(trunk.get_submodule("norm")(last).mT, trunk(tokens, mode).matrix)
    assert not torch.equal(layers["blocks.0"], layer_activations(trunk, tokens)["blocks.0"])


def test_trunk_without_layers_is_one_layer() -> None:
    class DoublingTrunk(Trunk):
        dim = D

        def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
            return tokens._replace(matrix=2 * tokens.matrix)

    trunk, tokens = DoublingTrunk(), random_tokens([D, D])
    layers = layer_activations(trunk, tokens)
    assert list(layers) == ["columns", "trunk"]
    assert torch.equal(layers["trunk"], trunk(tokens).matrix.mT)
