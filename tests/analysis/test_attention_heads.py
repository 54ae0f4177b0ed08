"""Attention heads: passes without a head against changed weights, and recorded weights against the trunk's own."""

import pytest
import torch

from tests.small_models import VOCABULARY, D
from unifier import ClassificationHead, SubwordTokenizer, Task, Transformer, TranslationHead, WordTokenizer
from unifier.analysis.attention_heads import attention_layers, attention_of_heads, recorded_attention, without_head
from unifier.data.dataloader import Batch
from unifier.datasets import GrammarPairs
from unifier.nn.attention import Attention
from unifier_tokenizers import pad_columns


def make_parts() -> tuple[SubwordTokenizer, Transformer, TranslationHead]:
    trunk = Transformer(D, 2, heads=4)
    return SubwordTokenizer(VOCABULARY, D), trunk.eval(), TranslationHead(VOCABULARY, D, depth=2, heads=2).eval()


def test_attention_layers_names_every_layer_of_trunk_and_decoder() -> None:
    _, trunk, head = make_parts()
    layers = attention_layers(trunk, head)
    assert {key: layer.heads for key, layer in layers.items()} == {
        **{("trunk", 1): 4, ("trunk", 2): 4, ("decoder", 1): 2},
        **{("cross", 1): 2, ("decoder", 2): 2, ("cross", 2): 2},
    }


@pytest.mark.parametrize("projections", [True, False])
def test_without_head_equals_zero_weights_and_is_undone(projections: bool) -> None:
    layer, x = Attention(8, 4, projections=projections), torch.randn(2, 5, 8)
    before = layer(x)
    with without_head(layer, 1):
        masked = layer(x)
    torch.testing.assert_close(layer(x), before, rtol=0, atol=0)
    if projections:
        with torch.no_grad():
            layer.out.weight[:, 2:4] = 0
        torch.testing.assert_close(masked, layer(x))
    else:
        expected = before.clone()
        expected[..., 2:4] = 0
        torch.testing.assert_close(masked, expected)
    assert not torch.allclose(masked, before)


def test_recorded_attention_equals_the_weights_of_the_trunk() -> None:
    tokenizer, trunk, head = make_parts()
    values, positions, mask = pad_columns([tokenizer.encode("one two three"), tokenizer.encode("four")])
    tokens = Batch(values, positions, mask, torch.tensor([0, 1])).embed(tokenizer)
    ids = torch.tensor([[5, 6, 7], [8, 9, 5]])
    with torch.no_grad(), recorded_attention(attention_layers(trunk, head)) as weights:
        output = head.run_trunk(trunk, tokens)
        cross = head.attention(output, ids)
    for number, expected in enumerate(trunk.attention(tokens, head.attention_mode)[1], 1):
        torch.testing.assert_close(weights["trunk", number], expected)
    recorded = torch.stack([weights["cross", 1], weights["cross", 2]]).mean((0, 2))
    torch.testing.assert_close(recorded, cross)
    assert weights["decoder", 1].shape == (2, 2, 3, 3)


def test_attention_between_words_has_their_names() -> None:
    tokenizer, trunk = WordTokenizer(VOCABULARY, D), Transformer(D, 1, heads=2).eval()
    units = tokenizer.encode("one two three")
    tokens = Batch(*pad_columns([units]), torch.tensor([0])).embed(tokenizer)
    task = Task(GrammarPairs(), tokenizer, ClassificationHead(("a", "b"), D))
    with torch.no_grad():
        (layer,) = attention_of_heads(trunk, task, units, tokens)
    assert layer.has_words
    assert [*layer.keys] == ["one", "two", "three"]
