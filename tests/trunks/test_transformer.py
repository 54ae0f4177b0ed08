"""The transformer trunk against torch's encoder, and each of its options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unifier.analysis.activations import layer_activations
from unifier.data.inputs import reader_of
from unifier.heads.classification import ClassificationHead
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier.nn.attention import AttentionMode, KVCache
from unifier.nn.block import Block, DropPath, Norm
from unifier.nn.feed_forward import Activation, FeedForward
from unifier.trunks.factory import create_trunk
from unifier.trunks.transformer import SIZES, Size, Transformer, default_heads
from unifier_tokenizers import InputError, PatchTokenizer, Tokens

B, D, N, DEPTH, HEADS, FFN_DIM = 3, 12, 7, 2, 3, 20
Draw = Callable[..., Tokens]
BOTH_NORMS = pytest.mark.parametrize("norm", ["pre", "post"])
BOTH_MODES = pytest.mark.parametrize("mode", ["bidirectional", "causal"])


def transformer(norm: Norm = "pre", activation: Activation = "gelu", rotary: bool = False) -> Transformer:
    return Transformer(D, DEPTH, HEADS, FFN_DIM, norm=norm, activation=activation, rotary=rotary)


def copy_weights(block: nn.Module, reference: nn.TransformerEncoderLayer) -> None:
    assert isinstance(block, Block)
    assert isinstance(block.feed_forward, FeedForward)
    attention = block.attention
    with torch.no_grad():
        reference.self_attn.in_proj_weight.copy_(torch.cat([attention.query.weight, attention.key_value.weight]))
        reference.self_attn.in_proj_bias.copy_(torch.cat([attention.query.bias, attention.key_value.bias]))
    reference.self_attn.out_proj.load_state_dict(attention.out.state_dict())
    reference.norm1.load_state_dict(block.attention_norm.state_dict())
    reference.norm2.load_state_dict(block.feed_forward_norm.state_dict())
    reference.linear1.load_state_dict(block.feed_forward[0].state_dict())
    reference.linear2.load_state_dict(block.feed_forward[3].state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[N, N, N], [N, 3, 5]])
def test_transformer_compiles_as_one_graph(lengths: list[int], random_tokens: Draw) -> None:
    trunk, tokens = transformer(), random_tokens(lengths)
    compiled = torch.compile(trunk, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens).matrix, trunk(tokens).matrix)


@BOTH_NORMS
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@BOTH_MODES
def test_transformer_equals_torch_encoder(
    norm: Norm, activation: Activation, mode: AttentionMode, random_tokens: Draw
) -> None:
    trunk, tokens = transformer(norm, activation), random_tokens([N, 3, 5])
    for parameter in trunk.parameters():  # Random norms and biases show if one of them is used in the wrong place.
        nn.init.normal_(parameter, std=0.3)
    x = tokens.matrix.mT
    future = ~torch.ones(N, N, dtype=torch.bool).tril() if mode == "causal" else None
    for block in trunk.blocks:
        reference = nn.TransformerEncoderLayer(
            D, HEADS, FFN_DIM, 0.0, activation, batch_first=True, norm_first=norm == "pre"
        )
        copy_weights(block, reference)
        x = reference(x, src_mask=future, src_key_padding_mask=~tokens.mask)
    torch.testing.assert_close(trunk(tokens, mode).matrix, trunk.norm(x).mT, atol=1e-5, rtol=1e-4)


def shared(**options: Any) -> tuple[Transformer, Transformer]:
    """Return a trunk with one shared layer, and a trunk whose layers are copies of the layer."""
    one = Transformer(D, 3, HEADS, FFN_DIM, share_layers=True, **options)
    for parameter in one.parameters():
        nn.init.normal_(parameter, std=0.3)
    copies = Transformer(D, 3, HEADS, FFN_DIM, **options)
    for block in copies.blocks:
        block.load_state_dict(one.blocks[0].state_dict())
    copies.norm.load_state_dict(one.norm.state_dict())
    return one, copies


def test_shared_layers_equal_copies_of_one_layer(random_tokens: Draw) -> None:
    (one, copies), tokens = shared(rotary=True), random_tokens([N, 3, 5])
    assert sum(p.numel() for p in one.blocks.parameters()) * 3 == sum(p.numel() for p in copies.blocks.parameters())
    assert set(one.state_dict()) == {
        name for name in copies.state_dict() if "blocks.1" not in name and "blocks.2" not in name
    }
    torch.testing.assert_close(one(tokens).matrix, copies(tokens).matrix)
    torch.testing.assert_close(one.forward_first_token(tokens).matrix, copies.forward_first_token(tokens).matrix)
    for layer, other in zip(one.attention(tokens)[1], copies.attention(tokens)[1], strict=True):
        torch.testing.assert_close(layer, other)
    found, expected = (layer_activations(trunk, tokens, "bidirectional") for trunk in (one, copies))
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in found)
    caches = [KVCache(grows=True) for _ in one.blocks]
    seen = torch.ones(1, N, dtype=torch.bool)
    steps = [
        one.forward_cached(Tokens(*(part[:1, ..., n : n + 1] for part in tokens)), seen[:, : n + 1], caches).matrix
        for n in range(N)
    ]
    torch.testing.assert_close(torch.cat(steps, 2), copies(Tokens(*(part[:1] for part in tokens)), "causal").matrix)
    # The gradient of the shared layer is the sum of the gradients of its copies.
    for trunk in (one, copies):
        trunk(tokens).matrix[:, :, 0].square().sum().backward()
    gradients = [copies.get_parameter(f"blocks.{k}.attention.out.weight").grad for k in range(3)]
    weight = one.get_parameter("blocks.0.attention.out.weight").grad
    assert weight is not None
    torch.testing.assert_close(
        weight, sum(gradient for gradient in gradients if gradient is not None), atol=1e-4, rtol=1e-4
    )


def test_shared_layers_keep_their_options(random_tokens: Draw, tmp_path: Path) -> None:
    head = ClassificationHead(["a", "b"], D)
    trunk = create_trunk("transformer", D, 3, HEADS, FFN_DIM, share_layers=True, scaled_residual_init=True)
    tokenizer = PatchTokenizer(D)
    task = ModelTask(tokenizer, head, reader_of(None, tokenizer), 9)
    write_model(tmp_path / "model", StoredModel("shared", trunk, {"a": task}, 9, {}), "card")
    tokens, again = random_tokens([N, 3]), read_model(tmp_path / "model").trunk
    torch.testing.assert_close(again(tokens).matrix, trunk(tokens).matrix)
    assert len(Transformer(D, 0, share_layers=True).blocks) == 0
    with pytest.raises(InputError, match="drop_path"):
        Transformer(D, 2, share_layers=True, drop_path=0.1)
    with pytest.raises(InputError, match="share_layers"):
        create_trunk("gru", D, 2, share_layers=True)


@pytest.mark.parametrize("axes", [1, 2])
def test_rotary_depends_on_relative_positions(axes: int, random_tokens: Draw) -> None:
    trunk, tokens = transformer(rotary=True), random_tokens([N, N], axes)
    output = trunk(tokens).matrix
    shifted = tokens._replace(positions=tokens.positions + 5)
    torch.testing.assert_close(trunk(shifted).matrix, output, atol=1e-5, rtol=1e-4)
    reversed_positions = tokens._replace(positions=tokens.positions.flip(2))
    assert (trunk(reversed_positions).matrix - output).abs().max() > 1e-3


@BOTH_MODES
def test_attention_has_the_output_of_forward(mode: AttentionMode, random_tokens: Draw) -> None:
    trunk, tokens = transformer(), random_tokens([N, 3, 5])
    output, weights = trunk.attention(tokens, mode)
    torch.testing.assert_close(output.matrix, trunk(tokens, mode).matrix)
    assert [layer.shape for layer in weights] == [(B, HEADS, N, N)] * DEPTH
    assert not any(layer.masked_select(~tokens.mask[:, None, None].expand_as(layer)).any() for layer in weights)


@BOTH_NORMS
@pytest.mark.parametrize("rotary", [False, True])
@BOTH_MODES
@pytest.mark.parametrize("depth", [0, 1, DEPTH])
def test_first_token_equals_that_of_forward(
    norm: Norm, rotary: bool, mode: AttentionMode, depth: int, random_tokens: Draw
) -> None:
    trunk, tokens = Transformer(D, depth, HEADS, FFN_DIM, norm=norm, rotary=rotary), random_tokens([N, 4, 5])
    tokens.matrix.requires_grad_()
    full, first = trunk(tokens, mode), trunk.forward_first_token(tokens, mode)
    gradients: list[dict[str, Tensor | None]] = []
    for output in (full, first):
        trunk.zero_grad()
        output.matrix[:, :, 0].square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in trunk.named_parameters()})
    torch.testing.assert_close(first.matrix, full.matrix[:, :, :1])
    assert torch.equal(first.mask, tokens.mask[:, :1])
    assert torch.equal(first.positions, tokens.positions[:, :, :1])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_depth_0_is_the_final_norm_alone(random_tokens: Draw) -> None:
    tokens = random_tokens([N, 3])
    pre, post = (Transformer(D, 0, norm=norm) for norm in ("pre", "post"))
    assert torch.equal(post(tokens).matrix, tokens.matrix)
    torch.testing.assert_close(pre(tokens).matrix, nn.functional.layer_norm(tokens.matrix.mT, (D,)).mT)
    assert post.attention(tokens)[1] == []


def test_drop_path_drops_examples_and_keeps_mean() -> None:
    x = torch.randn(5000, 2, 3)
    output = DropPath(0.3)(x)
    is_kept = output.flatten(1).any(1)
    torch.testing.assert_close(output[is_kept], x[is_kept] / 0.7)
    assert is_kept.float().mean().item() == pytest.approx(0.7, abs=0.02)
    assert DropPath(0.3).eval()(x) is x


@BOTH_NORMS
def test_drop_path_rises_with_depth_in_training(norm: Norm, random_tokens: Draw) -> None:
    plain, trunk = (Transformer(D, 4, HEADS, FFN_DIM, norm=norm, drop_path=p) for p in (0.0, 0.4))
    rates = [part.dropout.p for part in trunk.modules() if isinstance(part, DropPath)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4])
    tokens = random_tokens([N, 3])
    assert not torch.equal(trunk(tokens).matrix, plain(tokens).matrix)
    assert torch.equal(trunk.eval()(tokens).matrix, plain(tokens).matrix)


def test_drop_path_draws_for_each_branch(random_tokens: Draw) -> None:
    """Attention and feed-forward are dropped independently, so a quarter of the examples skips both."""
    trunk, tokens = Transformer(D, 1, HEADS, FFN_DIM, drop_path=0.5), random_tokens([N] * 400)
    skipped = nn.functional.layer_norm(tokens.matrix.mT, (D,)).mT
    is_skipped = (trunk(tokens).matrix - skipped).abs().amax((1, 2)) < 1e-6
    assert is_skipped.float().mean().item() == pytest.approx(0.25, abs=0.07)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "heads"), [(1, 1), (12, 1), (100, 1), (128, 2), (192, 3), (200, 2), (512, 8)])
def test_default_sizes_follow_dim(dim: int, heads: int) -> None:
    assert str(Transformer(dim, 2)) == str(Transformer(dim, 2, heads, 4 * dim))
    assert default_heads(dim) == heads


REFUSED: dict[str, Callable[[], object]] = {
    r"drop_path=-0\.1": lambda: Transformer(D, 2, drop_path=-0.1),
    r"drop_path=1\.0": lambda: Transformer(D, 2, drop_path=1.0),
    "ffn_dim=0": lambda: Transformer(D, 1, 2, 0),
    "D = 0|dim=0": lambda: Transformer(0, 1, 2, 8),
    "5 heads|heads=5": lambda: Transformer(D, 1, 5),
    "0 heads|heads=0": lambda: Transformer(D, 1, 0),
    "norm 'before'": lambda: Transformer(D, 1, norm="before"),  # pyright: ignore[reportArgumentType]
    "activation 'swish'": lambda: Transformer(D, 1, activation="swish"),  # pyright: ignore[reportArgumentType]
    "size 'huge'": lambda: Transformer.preset("huge"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_options_are_refused(message: str) -> None:
    with pytest.raises(InputError, match=message):
        REFUSED[message]()


def test_wrong_mode_and_odd_rotary_are_refused(random_tokens: Draw) -> None:
    with pytest.raises(InputError, match="mode 'all'"):
        transformer()(random_tokens([3]), "all")
    with pytest.raises(InputError, match="not 3"):
        Transformer(D, 1, 4, rotary=True)(random_tokens([3]))


@pytest.mark.parametrize("size", SIZES)
def test_preset_has_the_parameters_of_torch(size: Size) -> None:
    dim, depth, heads, ffn_dim = SIZES[size]
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(dim, heads, ffn_dim)
        reference = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        trunk = Transformer.preset(size, norm="post")
    assert all(isinstance(block, Block) and block.attention.heads == heads for block in trunk.blocks)
    assert sum(map(Tensor.numel, trunk.parameters())) == sum(map(Tensor.numel, reference.parameters()))


def test_scaled_residual_init_divides_by_root() -> None:
    """Eight blocks have 16 residual projections, so their standard deviation is a quarter."""
    plain, scaled = (Transformer(64, 8, 4, 64, scaled_residual_init=scale) for scale in (False, True))
    for (name, weight), other in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        if weight.ndim == 2:
            factor = 4 if name.endswith((".out.weight", "feed_forward.3.weight")) else 1
            assert other.std().item() == pytest.approx(weight.std().item() / factor, rel=0.05), name
