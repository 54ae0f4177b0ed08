"""timm's vision transformers as trunks: the same function of the same columns, or a reason why not."""

from functools import partial
from typing import Any, cast

import pytest
import timm
import torch
from timm.layers.mlp import SwiGLU
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from unifier import Trunk
from unifier.trunks import factory as pretrained
from unifier.trunks.factory import load_timm_trunk
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Tokens

N = 7


def loudened(model: nn.Module) -> Any:
    """The model with no norm at 1 and no bias at 0, so that one that went astray is missed."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.3)
    return model.eval()


def compared(trunk: Trunk, model: Any, loudness: float = 1.0) -> tuple[Tensor, Tensor]:
    """Some columns read by a trunk, and by timm's own blocks and last norm: (B, N, D) each."""
    x = torch.randn(2, N, trunk.dim) * loudness
    tokens = Tokens(x.mT, torch.ones(2, N, dtype=torch.bool), torch.arange(N).expand(2, 1, -1))
    with torch.no_grad():
        return trunk.eval()(tokens).matrix.mT, model.norm(model.blocks(x))


@pytest.mark.parametrize(
    "name",
    [
        "test_vit",
        "vit_tiny_patch16_224",
        "vit_small_patch32_224",
        "deit_tiny_distilled_patch16_224",
        "vit_base_patch32_clip_224",  # norms with another epsilon, and one before the blocks
        "vit_base_patch16_siglip_224",  # no class token
        "vit_base_patch16_224_miil",  # no biases of query, key and value
    ],
)
def test_a_trunk_computes_what_timm_s_blocks_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = loudened(cast(Any, timm.create_model(name, depth=2)))
    monkeypatch.setattr(pretrained.timm, "create_model", lambda *_, **__: model)
    trunk = load_timm_trunk(name, pretrained=False)
    torch.testing.assert_close(*compared(trunk, model), atol=1e-5, rtol=1e-5)


def test_epsilon_is_the_model_s() -> None:
    """It decides what the first norm makes of columns that are still."""
    torch.manual_seed(0)
    model = cast(Any, timm.create_model("test_vit", depth=1)).eval()
    for part in (model.blocks[0].attn.proj, model.blocks[0].mlp.fc2):
        nn.init.zeros_(part.weight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained.timm, "create_model", lambda *_, **__: model)
        trunk = load_timm_trunk("test_vit", pretrained=False)
    torch.testing.assert_close(*compared(trunk, model, loudness=1e-3), atol=1e-5, rtol=1e-5)


def test_every_weight_arrives_once_and_nothing_else_does() -> None:
    torch.manual_seed(0)
    model = cast(Any, timm.create_model("test_vit"))
    torch.manual_seed(0)
    torch.randn(5)  # the seed says what is drawn, not what was drawn since
    trunk = load_timm_trunk("test_vit", pretrained=False)
    theirs = [*model.blocks.parameters(), *model.norm.parameters()]
    assert isinstance(trunk, Transformer)
    assert sum(map(torch.numel, trunk.parameters())) == sum(map(torch.numel, theirs))
    torch.testing.assert_close(*compared(trunk, model.eval()), atol=1e-5, rtol=1e-5)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*blocks\.0\.ls1\.gamma"):
        trunk.load_state_dict(pretrained.convert_weights({"blocks.0.ls1.gamma": torch.ones(trunk.dim)}, trunk.dim))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("resnet18", "is a ResNet: a plain VisionTransformer is needed"),
        ("swin_tiny_patch4_window7_224", "is a SwinTransformer: a plain"),
        ("test_vit2", r"blocks\.0\.ls1 is a LayerScale, and ours adds each part unscaled"),
        ("test_vit4", r"blocks\.0\.norm1 is a RmsNorm"),
        ("vit_base_patch16_rpn_224", r"blocks\.0 is a ResPostBlock, and ours norms before"),
        ("vit_base_patch16_xp_224", r"blocks\.0 is a ParallelScalingBlock"),
        ("aimv2_large_patch14_224", r"norm1 is a RmsNorm"),
        ("vit_base_patch32_clip_quickgelu_224", r"mlp\.act is a QuickGELU, and ours has the exact GELU"),
        ("vit_base_patch32_siglip_256", r"mlp\.act is a GELUTanh"),
        ("beit3_base_patch16_224", r"attn\.norm is a LayerNorm, and ours norms nothing"),
        ("vit_base_patch16_reg4_gap_256", "its norm is a Identity, and ours norms each column"),
    ],
)
def test_a_model_that_computes_something_else_is_refused_before_it_is_fetched(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refused:
        load_timm_trunk(name)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"qk_norm": True}, r"attn\.q_norm is a LayerNorm"),
        ({"scale_attn_norm": True}, r"attn\.norm is a LayerNorm"),
        ({"attn_layer": "diff"}, r"attn is a DiffAttention"),
        ({"mlp_layer": SwiGLU}, r"mlp is a SwiGLU"),
        ({"final_norm": False}, "its norm is a Identity"),
    ],
)
def test_each_part_is_looked_at(settings: dict[str, Any], reason: str) -> None:
    model = VisionTransformer(embed_dim=32, depth=1, num_heads=2, norm_layer=partial(LayerNorm, eps=1e-6), **settings)
    with pytest.raises(InputError, match=reason):
        pretrained.check_supported("mine", model)


def test_an_unknown_name_brings_those_that_are_like_it() -> None:
    with pytest.raises(
        InputError, match=r"timm has no model 'vit_tiny_patch16_225'; did you mean vit_tiny_patch16_224"
    ):
        load_timm_trunk("vit_tiny_patch16_225")
    with pytest.raises(InputError, match=r"did you mean .*vit_tiny_patch16_224\.augreg_in21k"):
        load_timm_trunk("vit_tiny_patch16_224.augreg_in21")
    with pytest.raises(InputError, match=r"timm has no model '%'; timm\.list_models"):
        load_timm_trunk("%")


def test_weights_out_of_reach_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr("timm.models._builder.load_pretrained", unreachable)
    with pytest.raises(InputError, match=r"^timm's weights of test_vit cannot be had: no route to the hub$"):
        load_timm_trunk("test_vit")


def test_pretrained_weights_are_those_that_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(model: nn.Module, **_: Any) -> None:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.25)

    monkeypatch.setattr("timm.models._builder.load_pretrained", loaded)
    for parameter in load_timm_trunk("test_vit").parameters():
        assert (parameter == 0.25).all()
