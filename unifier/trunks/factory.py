"""make_trunk: a trunk by its name, so that an experiment's setting is one word.

timm's vision transformers as our Transformer, block for block."""

import difflib
from typing import Any, Literal, cast

import timm
import torch
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.recurrent import RecurrentTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk, isolated_seed
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line
from unifier_tokenizers.positions import PositionKind

TRUNK_NAMES = ("transformer", "bag", "recurrent", "convolutional", "timm:<model>")


Positions = PositionKind | Literal["rotary"]
"""How columns tell their place: by what a tokenizer adds to them, or by how a transformer turns queries and keys."""


def input_positions(positions: Positions) -> PositionKind:
    """What of the positions is the tokenizer's to add."""
    return "none" if positions == "rotary" else positions


def create_trunk(
    name: str,
    dim: int,
    depth: int,
    heads: int,
    ffn_dim: int,
    dropout: float,
    *,
    positions: Positions = "none",
    qk_norm: bool = False,
    scaled_residual_init: bool = False,
    drop_path: float = 0.0,
) -> Trunk:
    """The trunk of one of `NAMES`, of D = `dim` and so many layers; each takes of the other numbers what it has.

    Equal numbers are not equal sizes: layers of attention, of means, of memory and of convolution differ in their
    parameters, and nothing widens the smaller ones; the ledger counts them. "timm:" and the name of a model is
    `load_timm_trunk` with its trained weights; all numbers are then the model's.
    Raises InputError for another name, a model of another D, and for rotary positions, `stochastic_depth`, `qk_norm`
    and `quiet` with any but "transformer".
    """
    rotary = positions == "rotary"
    asked = {
        "positions=rotary": rotary,
        "drop_path": drop_path,
        "qk_norm": qk_norm,
        "scaled_residual_init": scaled_residual_init,
    }
    for option, given in asked.items():
        if given and name != "transformer":
            raise InputError(f"{option} is for trunk=transformer alone, and this is {name}: leave it out")
    if name.startswith("timm:"):
        trunk = load_timm_trunk(name.removeprefix("timm:"))
        if trunk.dim != dim:
            raise InputError(f"the trunk {name} reads D = {trunk.dim}, and dim={dim}: take dim={trunk.dim}")
        return trunk
    match check_choice("trunk", name, TRUNK_NAMES):
        case "bag":
            return MeanAttentionTrunk(dim, depth, ffn_dim, dropout=dropout)
        case "recurrent":
            return RecurrentTrunk(dim, depth, dropout=dropout)
        case "convolutional":
            return ConvolutionalTrunk(dim, depth, dropout=dropout)
        case _:
            return Transformer(
                dim,
                depth,
                heads,
                ffn_dim,
                dropout=dropout,
                drop_path=drop_path,
                rotary=rotary,
                qk_norm=qk_norm,
                scaled_residual_init=scaled_residual_init,
            )


TRUNK_OPTIONS = {
    "blocks.0": (Block, "norms before each of two parts, one after the other"),
    "blocks.0.norm1": (nn.LayerNorm, "norms by mean and variance"),
    "blocks.0.attn": (Attention, "takes one softmax for each head"),
    "blocks.0.attn.q_norm": (nn.Identity, "norms neither queries nor keys"),
    "blocks.0.attn.norm": (nn.Identity, "norms nothing inside its attention"),
    "blocks.0.ls1": (nn.Identity, "adds each part unscaled"),
    "blocks.0.mlp": (Mlp, "has two linear maps in its feed-forward part"),
    "blocks.0.mlp.act": (nn.GELU, "has the exact GELU between them"),
    "blocks.0.mlp.norm": (nn.Identity, "norms nothing between them"),
    "norm": (nn.LayerNorm, "norms each column at the end, not what was pooled"),
}
"""What a part of timm's model must be, and what our Transformer does there; parts in the order they are looked at."""


WEIGHT_NAMES = {
    "norm1": "attention_norm",
    "attn.proj": "attention.out",
    "norm2": "feed_forward_norm",
    "mlp.fc1": "feed_forward.0",
    "mlp.fc2": "feed_forward.3",
}
"""timm's name of a map, and ours."""


def load_timm_trunk(name: str, *, pretrained: bool = True) -> Transformer:
    """Load the blocks and the last norm of timm's vision transformer `name` into our `Transformer`.

    All before the blocks stays behind: patch embedding, class token, positions, and the norm that CLIP's models have
    there. D is the model's, 192 for vit_tiny_patch16_224; biases that its attention lacks begin at 0. With `pretrained`
    the weights are downloaded once, else drawn as timm draws them, from the seed alone. Raises InputError for a model
    that computes something else than a `Transformer`, an unknown name, and weights that cannot be had.
    """
    known = {*timm.list_models(), *timm.list_models(pretrained=True)}
    if name not in known:
        close = difflib.get_close_matches(name, sorted(known), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "timm.list_models('*vit*') lists some"
        raise InputError(f"timm has no model {name!r}; {hint}")
    with torch.device("meta"):
        check_supported(name, timm.create_model(name))
    try:
        with isolated_seed():
            model = cast(Any, timm.create_model(name, pretrained=pretrained))
    except Exception as error:  # each way that weights may come raises errors of its own
        raise InputError(f"timm's weights of {name} cannot be had: {one_line(error)}") from error
    trunk = Transformer(
        model.embed_dim, len(model.blocks), model.blocks[0].attn.num_heads, model.blocks[0].mlp.fc1.out_features
    )
    for part in trunk.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = model.norm.eps
    trunk.pretrained = pretrained
    zeros = {key: value for key, value in trunk.state_dict().items() if key.endswith(("query.bias", "key_value.bias"))}
    trunk.load_state_dict(
        zeros | convert_weights(model.state_dict(), trunk.dim)
    )  # strictly: no weight lacks or is left
    return trunk


def check_supported(name: str, model: nn.Module) -> None:
    """Raise InputError, naming the part, where a model computes something else than our Transformer."""
    if not isinstance(model, VisionTransformer):
        raise InputError(f"timm's {name} is a {type(model).__name__}: a plain VisionTransformer is needed")
    for place, (kind, ours) in TRUNK_OPTIONS.items():
        part = model.get_submodule(place)
        if not isinstance(part, kind):
            raise InputError(f"timm's {name} is no trunk here: its {place} is a {type(part).__name__}, and ours {ours}")


def convert_weights(state: dict[str, Tensor], dim: int) -> dict[str, Tensor]:
    """timm's weights of the blocks and the last norm under our names; query, key and value come as one map."""
    ours: dict[str, Tensor] = {}
    for key, weight in state.items():
        if not key.startswith(("blocks.", "norm.")):
            continue
        for theirs, own in WEIGHT_NAMES.items():
            key = key.replace(f".{theirs}.", f".{own}.")
        if ".attn.qkv." in key:
            ours[key.replace("attn.qkv", "attention.query")] = weight[:dim]
            ours[key.replace("attn.qkv", "attention.key_value")] = weight[dim:]
        else:
            ours[key] = weight
    return ours
