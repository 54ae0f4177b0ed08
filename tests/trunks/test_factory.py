"""Trunks by name, and timm's vision transformers as trunks."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, cast

import pytest
import timm
import torch
from timm.layers.mlp import SwiGLU
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from unifier import ConvolutionalTrunk, MeanAttentionTrunk, RecurrentTrunk, Transformer, Trunk
from unifier.trunks import factory
from unifier.trunks.factory import TRUNK_NAMES, check_supported, convert_timm_weights, create_trunk, load_timm_trunk
from unifier_tokenizers import InputError, Tokens

N = 7
TIMM_BUILDER = import_module("timm.models._builder")
DIRECT: dict[str, Callable[[], Trunk]] = {
    "transformer": lambda: Transformer(12, 2, 3, 20, dropout=0.5),
    "mean_attention": lambda: MeanAttentionTrunk(12, 2, 20, dropout=0.5),
    "gru": lambda: RecurrentTrunk(12, 2, cell="gru", dropout=0.5),
    "lstm": lambda: RecurrentTrunk(12, 2, cell="lstm", dropout=0.5),
    "sha_rnn": lambda: RecurrentTrunk(12, 2, dropout=0.5, attention_heads=3, ffn_dim=20),
    "convolutional": lambda: ConvolutionalTrunk(12, 2, dropout=0.5),
}


@pytest.mark.parametrize("name", DIRECT)
def test_create_trunk_equals_the_class(name: str) -> None:
    trunk, expected = create_trunk(name, 12, 2, 3, 20, 0.5), DIRECT[name]()
    assert str(trunk) == str(expected)
    torch.testing.assert_close(trunk.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert str(create_trunk(name, 128, 1)) == str(create_trunk(name, 128, 1, 2, 512)), "the default sizes"


@pytest.mark.parametrize("name", ["gru", "lstm", "sha_rnn"])
def test_recurrent_trunks_can_be_causal(name: str) -> None:
    trunk = create_trunk(name, 12, 2, causal=True)
    assert isinstance(trunk, RecurrentTrunk)
    assert not trunk.bidirectional
    assert trunk.block is None or trunk.block.attention.heads == 1


@pytest.mark.parametrize("name", ["recurrent", "bag", "timm"])
def test_unknown_name_lists_the_names(name: str) -> None:
    with pytest.raises(InputError, match=f"trunk '{name}'.*{', '.join(TRUNK_NAMES)}"):
        create_trunk(name, 12, 2)


@pytest.mark.slow
def test_timm_trunk_requires_its_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "load_timm_trunk", partial(load_timm_trunk, pretrained=False))
    assert create_trunk("timm:test_vit", 64, 2).dim == 64
    with pytest.raises(InputError, match=r"dim=128.*timm:test_vit.*dim=64"):
        create_trunk("timm:test_vit", 128, 2)


@pytest.mark.parametrize(
    ("options", "direct"),
    [
        ({"positions": "rotary"}, {"rotary": True}),
        ({"drop_path": 0.5}, {"drop_path": 0.5}),
        ({"qk_norm": True}, {"qk_norm": True}),
        ({"scaled_residual_init": True}, {"scaled_residual_init": True}),
    ],
)
def test_transformer_options_need_a_transformer(options: dict[str, Any], direct: dict[str, Any]) -> None:
    trunk, expected = create_trunk("transformer", 12, 2, 3, 20, **options), Transformer(12, 2, 3, 20, **direct)
    assert isinstance(trunk, Transformer)
    assert (str(trunk), trunk.rotary) == (str(expected), expected.rotary)
    torch.testing.assert_close(trunk.state_dict(), expected.state_dict(), rtol=0, atol=0)
    for name in TRUNK_NAMES[1:]:
        with pytest.raises(InputError, match=f"{next(iter(options))}.*trunk={name}"):
            create_trunk(name, 12, 1, **options)


def randomize_vectors(model: nn.Module) -> Any:
    """Randomize norms and biases, so that a misplaced one changes the output."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.3)
    return model.eval()


def both_outputs(trunk: Trunk, model: Any, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, N, D) of a trunk, and of timm's own blocks and final norm, for the same tokens."""
    x = torch.randn(2, N, trunk.dim) * scale
    tokens = Tokens(x.mT, torch.ones(2, N, dtype=torch.bool), torch.arange(N).expand(2, 1, -1))
    with torch.no_grad():
        return trunk.eval()(tokens).matrix.mT, model.norm(model.blocks(x))


def load_from(model: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> Trunk:
    monkeypatch.setattr("timm.create_model", lambda *_, **__: model)
    return load_timm_trunk(name, pretrained=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "test_vit",
        "deit_tiny_distilled_patch16_224",
        "vit_base_patch32_clip_224",  # It has another epsilon, and a norm before the blocks.
        "vit_base_patch16_siglip_224",  # It has no class token.
        "vit_base_patch16_224_miil",  # It has no biases for queries, keys and values.
    ],
)
def test_timm_trunk_equals_timm_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = randomize_vectors(cast(Any, timm.create_model(name, depth=2)))
    torch.testing.assert_close(*both_outputs(load_from(model, name, monkeypatch), model), atol=1e-5, rtol=1e-5)


def test_timm_trunk_has_the_models_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epsilon decides the output of the first norm for tokens close to 0."""
    model = cast(Any, timm.create_model("test_vit", depth=1)).eval()
    for part in (model.blocks[0].attn.proj, model.blocks[0].mlp.fc2):
        nn.init.zeros_(part.weight)
    trunk = load_from(model, "test_vit", monkeypatch)
    torch.testing.assert_close(*both_outputs(trunk, model, scale=1e-3), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_timm_weights_arrive_once_from_the_seed() -> None:
    torch.manual_seed(0)
    model = cast(Any, timm.create_model("test_vit"))
    torch.manual_seed(0)
    torch.randn(5)  # The weights must not depend on numbers drawn since the seed was set.
    trunk = load_timm_trunk("test_vit", pretrained=False)
    expected = [*model.blocks.parameters(), *model.norm.parameters()]
    assert sum(map(torch.numel, trunk.parameters())) == sum(map(torch.numel, expected))
    torch.testing.assert_close(*both_outputs(trunk, model.eval()), atol=1e-5, rtol=1e-5)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*blocks\.0\.ls1\.gamma"):
        trunk.load_state_dict(convert_timm_weights({"blocks.0.ls1.gamma": torch.ones(trunk.dim)}, trunk.dim))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("resnet18", "ResNet"),
        ("test_vit2", r"blocks\.0\.ls1 .*LayerScale"),
        ("test_vit4", r"blocks\.0\.norm1 .*RmsNorm"),
        ("vit_base_patch16_rpn_224", r"blocks\.0 .*ResPostBlock"),
        ("vit_base_patch16_xp_224", r"blocks\.0 .*ParallelScalingBlock"),
        ("vit_base_patch32_clip_quickgelu_224", r"mlp\.act .*QuickGELU"),
    ],
)
def test_unsupported_timm_model_is_refused(name: str, part: str) -> None:
    """Refuse the model before its weights are downloaded, since tests cannot download."""
    with pytest.raises(InputError, match=f"^.*{name}.*{part}.*$"):
        load_timm_trunk(name)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"qk_norm": True}, r"attn\.q_norm .*LayerNorm"),
        ({"scale_attn_norm": True}, r"attn\.norm .*LayerNorm"),
        ({"attn_layer": "diff"}, r"attn .*DiffAttention"),
        ({"mlp_layer": SwiGLU}, r"mlp .*SwiGLU"),
        ({"final_norm": False}, "norm .*Identity"),
    ],
)
def test_every_timm_part_is_checked(options: dict[str, Any], part: str) -> None:
    model = VisionTransformer(embed_dim=32, depth=1, num_heads=2, norm_layer=partial(LayerNorm, eps=1e-6), **options)
    with pytest.raises(InputError, match=part):
        check_supported("mine", model)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("vit_tiny_patch16_225", "vit_tiny_patch16_224"),
        ("vit_tiny_patch16_224.augreg_in21", r"vit_tiny_patch16_224\.augreg_in21k"),
        ("%", r"timm\.list_models"),
    ],
)
def test_unknown_timm_model_has_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(InputError, match=f"'{name}'.*{suggestion}"):
        load_timm_trunk(name)


def test_unreachable_timm_weights_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(TIMM_BUILDER, "load_pretrained", unreachable)
    with pytest.raises(InputError, match=r"^[^\n]*test_vit[^\n]*no route to the hub$"):
        load_timm_trunk("test_vit")


@pytest.mark.slow
def test_pretrained_timm_weights_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: nn.Module, **_: Any) -> None:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.25)

    monkeypatch.setattr(TIMM_BUILDER, "load_pretrained", load)
    trunk = load_timm_trunk("test_vit")
    assert trunk.pretrained
    assert all((parameter == 0.25).all() for parameter in trunk.parameters())
