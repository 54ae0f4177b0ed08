"""timm's vision transformers as our Transformer, block for block."""

import difflib
from typing import Any, cast

import timm
import torch
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import drawn_from_seed_alone
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

OURS = {
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

NAMES = {
    "norm1": "attention_norm",
    "attn.proj": "attention.out",
    "norm2": "feed_forward_norm",
    "mlp.fc1": "feed_forward.0",
    "mlp.fc2": "feed_forward.3",
}
"""timm's name of a map, and ours."""


def from_timm(name: str, *, pretrained: bool) -> Transformer:
    """The blocks and the last norm of timm's vision transformer `name`; see `Trunk.from_timm`."""
    known = {*timm.list_models(), *timm.list_models(pretrained=True)}
    if name not in known:
        close = difflib.get_close_matches(name, sorted(known), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "timm.list_models('*vit*') lists some"
        raise InputError(f"timm has no model {name!r}; {hint}")
    with torch.device("meta"):
        refuse_unlike(name, timm.create_model(name))
    try:
        with drawn_from_seed_alone():
            model = cast(Any, timm.create_model(name, pretrained=pretrained))
    except Exception as error:  # each way that weights may come raises errors of its own
        raise InputError(f"timm's weights of {name} cannot be had: {one_line(error)}") from error
    trunk = Transformer(
        model.embed_dim, len(model.blocks), model.blocks[0].attn.num_heads, model.blocks[0].mlp.fc1.out_features
    )
    for part in trunk.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = model.norm.eps
    trunk.trained_before = pretrained
    zeros = {key: value for key, value in trunk.state_dict().items() if key.endswith(("query.bias", "key_value.bias"))}
    trunk.load_state_dict(zeros | translated(model.state_dict(), trunk.dim))  # strictly: no weight lacks or is left
    return trunk


def refuse_unlike(name: str, model: nn.Module) -> None:
    """Raise InputError, naming the part, where a model computes something else than our Transformer."""
    if not isinstance(model, VisionTransformer):
        raise InputError(f"timm's {name} is a {type(model).__name__}: a plain VisionTransformer is needed")
    for place, (kind, ours) in OURS.items():
        part = model.get_submodule(place)
        if not isinstance(part, kind):
            raise InputError(f"timm's {name} is no trunk here: its {place} is a {type(part).__name__}, and ours {ours}")


def translated(state: dict[str, Tensor], dim: int) -> dict[str, Tensor]:
    """timm's weights of the blocks and the last norm under our names; query, key and value come as one map."""
    ours: dict[str, Tensor] = {}
    for key, weight in state.items():
        if not key.startswith(("blocks.", "norm.")):
            continue
        for theirs, own in NAMES.items():
            key = key.replace(f".{theirs}.", f".{own}.")
        if ".attn.qkv." in key:
            ours[key.replace("attn.qkv", "attention.query")] = weight[:dim]
            ours[key.replace("attn.qkv", "attention.key_value")] = weight[dim:]
        else:
            ours[key] = weight
    return ours
