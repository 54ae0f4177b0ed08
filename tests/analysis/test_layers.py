"""What each layer gives back, for every trunk, with padding left out."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from unifier.analysis.activations import layer_activations, mean_tokens
from unifier.nn.attention import AttentionMode
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.recurrent import RecurrentTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import NO_POSITION, Tokens

D, N, DEPTH = 8, 7, 3
TRUNKS: dict[str, Callable[[], Trunk]] = {
    "pre": lambda: Transformer(D, DEPTH, 2, 12),
    "post": lambda: Transformer(D, DEPTH, 2, 12, norm="post"),
    "bag": lambda: MeanAttentionTrunk(D, DEPTH, 12),
    "recurrent": lambda: RecurrentTrunk(D, DEPTH),
    "convolutional": lambda: ConvolutionalTrunk(D, DEPTH, kernel_size=3),
}


def tokens_of(lengths: list[int]) -> Tokens:
    columns = max(lengths)
    mask = torch.arange(columns) < torch.tensor(lengths)[:, None]
    positions = torch.arange(columns).expand(len(lengths), 1, -1).masked_fill(~mask[:, None], NO_POSITION)
    return Tokens(torch.randn(len(lengths), D, columns), mask, positions)


@pytest.mark.parametrize("name", TRUNKS)
def test_layers_have_names_and_the_last_one_is_what_the_answer_is_made_of(name: str) -> None:
    trunk, tokens = TRUNKS[name]().eval(), tokens_of([N, 3])
    answer, layers = trunk(tokens), layer_activations(trunk, tokens)
    kind = "layers" if name in ("recurrent", "convolutional") else "blocks"
    assert list(layers) == ["columns", *(f"{kind}.{i}" for i in range(DEPTH))]
    assert torch.equal(layers["columns"], tokens.matrix.mT)
    assert torch.equal(trunk.get_submodule("norm")(layers[f"{kind}.{DEPTH - 1}"]), answer.matrix.mT)
    kept = dict(layers)
    trunk(tokens_of([2]))  # nobody watches any more
    assert all(layers[layer] is columns for layer, columns in kept.items())


@pytest.mark.parametrize("name", ["pre", "bag"])
def test_a_layer_is_what_its_block_gives_back(name: str) -> None:
    trunk, tokens = TRUNKS[name]().eval(), tokens_of([N, N])
    layers = layer_activations(trunk, tokens)
    for i, block in enumerate(trunk.get_submodule("blocks").children()):
        x = layers["columns" if i == 0 else f"blocks.{i - 1}"]
        torch.testing.assert_close(layers[f"blocks.{i}"], block(x, None))


@pytest.mark.parametrize("name", TRUNKS)
def test_padding_changes_no_mean(name: str) -> None:
    trunk, lengths = TRUNKS[name]().eval(), [N, 2, 4]
    tokens = tokens_of(lengths)
    together = layer_activations(trunk, tokens)
    for b, length in enumerate(lengths):
        alone = Tokens(*(part[b : b + 1, ..., :length] for part in tokens))
        for layer, columns in layer_activations(trunk, alone).items():
            means = mean_tokens(together[layer], tokens.mask)[b]
            torch.testing.assert_close(means, columns[0].mean(0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", ["causal", torch.tensor([2, 0])], ids=["causal", "prefix"])
def test_what_may_be_seen_is_passed_on(mode: AttentionMode) -> None:
    trunk, tokens = TRUNKS["pre"]().eval(), tokens_of([N, 4])
    layers = layer_activations(trunk, tokens, mode)
    last = layers[f"blocks.{DEPTH - 1}"]
    assert torch.equal(trunk.get_submodule("norm")(last).mT, trunk(tokens, mode).matrix)
    assert not torch.equal(layers["blocks.0"], layer_activations(trunk, tokens)["blocks.0"])


class Doubles(Trunk):
    """Of somebody else, without a list of layers."""

    dim = D

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        return tokens._replace(matrix=2 * tokens.matrix)


class Convolves(Trunk):
    """Of somebody else, with blocks and a norm that read columns (B, D, N)."""

    dim = D

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv1d(D, D, 1) for _ in range(DEPTH))
        self.norm = nn.BatchNorm1d(D)

    def forward(self, tokens: Tokens, mode: AttentionMode = "bidirectional") -> Tokens:
        x = tokens.matrix
        for block in self.blocks:
            x = block(x)
        return tokens._replace(matrix=self.norm(x))


@pytest.mark.parametrize("build", [Doubles, Convolves])
def test_a_trunk_that_tells_of_no_layers_is_one(build: Callable[[], Trunk]) -> None:
    trunk, tokens = build().eval(), tokens_of([D, D])
    layers = layer_activations(trunk, tokens)
    assert list(layers) == ["columns", "trunk"]
    assert torch.equal(layers["trunk"], trunk(tokens).matrix.mT)
