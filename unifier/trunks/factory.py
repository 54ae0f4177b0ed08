"""Create a trunk by name, or from the weights of a pretrained model, such as a vision transformer in timm."""

import difflib
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from unifier.nn.experts import BALANCE_WEIGHT
from unifier.trunks.convolutional import ConvolutionalTrunk
from unifier.trunks.huggingface import HF, load_hf_trunk
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.recurrent import RecurrentTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk, isolated_seed
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line
from unifier_tokenizers.positions import PositionKind

TRUNK_NAMES = ("transformer", "mean_attention", "gru", "lstm", "sha_rnn", "convolutional", "timm:<model>", "hf:<model>")

Positions = PositionKind | Literal["rotary"]
"""The kind of positional encoding. A transformer applies "rotary". Tokenizers add all other kinds of positions."""

TIMM_WEIGHT_NAMES = {
    "norm1": "attention_norm",
    "attn.proj": "attention.out",
    "norm2": "feed_forward_norm",
    "mlp.fc1": "feed_forward.0",
    "mlp.fc2": "feed_forward.3",
}
"""A mapping from module names in timm's blocks to module names in the blocks of `Transformer`."""


def create_trunk(
    name: str,
    dim: int,
    depth: int,
    heads: int | None = None,
    ffn_dim: int | None = None,
    dropout: float = 0.0,
    *,
    positions: Positions = "none",
    qk_norm: bool = False,
    scaled_residual_init: bool = False,
    drop_path: float = 0.0,
    share_layers: bool = False,
    attention_width: int | None = None,
    attention_stride: int | None = None,
    dilation: int = 1,
    experts: int = 1,
    experts_per_token: int = 1,
    balance_weight: float = BALANCE_WEIGHT,
    causal: bool = False,
) -> Trunk:
    """Create a trunk by name.

    Arguments that a kind of trunk does not need are ignored, for example `heads` for a recurrent trunk. Trunks with
    equal `dim` and `depth` can have different numbers of parameters.

    Args:
        name: One of `TRUNK_NAMES`. "timm:NAME" loads the trained weights of a timm model with `load_timm_trunk`, and
            "hf:NAME" the weights of an encoder of transformers with `load_hf_trunk`. Such a model determines all sizes
            of the trunk.
        dim: D, the width of the tokens.
        depth: The number of layers.
        heads: The number of attention heads of a transformer or of "sha_rnn". The default is `default_heads(dim)`, and
            1 for "sha_rnn".
        ffn_dim: The width of the feed-forward networks. The default is 4 * `dim`.
        dropout: The dropout probability.
        positions: The kind of positional encoding. Only "rotary" changes the trunk, because the tokenizer adds all
            other kinds.
        qk_norm: See `Transformer`.
        scaled_residual_init: See `Transformer`.
        drop_path: See `Transformer`.
        share_layers: See `Transformer`.
        attention_width: See `Transformer`.
        attention_stride: See `Transformer`.
        dilation: See `ConvolutionalTrunk`.
        experts: See `Transformer`.
        experts_per_token: See `Transformer`.
        balance_weight: See `Transformer`. Without experts, the factor is ignored.
        causal: Recurrent layers read in one direction, for heads that predict the next token. All other kinds of trunk
            serve both kinds of heads.

    Raises:
        InputError: If the name is unknown, or if the D of a pretrained model is not `dim`. Rotary positions and the
            arguments from `qk_norm` to `attention_stride` and experts raise the error for every trunk except
            "transformer", and `dilation` for every trunk except "convolutional".
    """
    rotary = positions == "rotary"
    transformer_options = {
        "positions=rotary": rotary,
        "drop_path": drop_path,
        "qk_norm": qk_norm,
        "scaled_residual_init": scaled_residual_init,
        "share_layers": share_layers,
        "attention_width": attention_width,
        "attention_stride": attention_stride,
        "experts": experts != 1,
        "experts_per_token": experts_per_token != 1,
    }
    for option, value in transformer_options.items():
        if value and name != "transformer":
            raise InputError(
                f"{option} needs trunk=transformer, but trunk={name}: leave out this option, or change the trunk"
            )
    if dilation != 1 and name != "convolutional":
        raise InputError(
            f"dilation={dilation} needs trunk=convolutional, but trunk={name}: leave out dilation, or change the trunk"
        )
    if name.startswith(("timm:", HF)):
        model = name.partition(":")[2]
        trunk = load_hf_trunk(model, dropout=dropout) if name.startswith(HF) else load_timm_trunk(model)
        if trunk.dim != dim:
            raise InputError(f"dim={dim}, but the trunk {name} has D = {trunk.dim}: set dim={trunk.dim}")
        return trunk
    match check_choice("trunk", name, TRUNK_NAMES):
        case "mean_attention":
            return MeanAttentionTrunk(dim, depth, ffn_dim, dropout=dropout)
        case "gru" | "lstm" as cell:
            return RecurrentTrunk(dim, depth, bidirectional=not causal, cell=cell, dropout=dropout)
        case "sha_rnn":
            heads = 1 if heads is None else heads
            return RecurrentTrunk(
                dim, depth, bidirectional=not causal, dropout=dropout, attention_heads=heads, ffn_dim=ffn_dim
            )
        case "convolutional":
            return ConvolutionalTrunk(dim, depth, dilation=dilation, dropout=dropout)
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
                share_layers=share_layers,
                attention_width=attention_width,
                attention_stride=attention_stride,
                experts=experts,
                experts_per_token=experts_per_token,
                balance_weight=balance_weight,
            )


def input_positions(positions: Positions) -> PositionKind:
    """Return the kind of positional encoding that the tokenizer must add. The result for "rotary" is "none"."""
    return "none" if positions == "rotary" else positions


def load_timm_trunk(name: str, *, pretrained: bool = True) -> Transformer:
    """Load the blocks and the final norm of timm's vision transformer `name` into a `Transformer`.

    The layers before the blocks are not loaded: the patch embedding, the class token, the positions, and the first norm
    of CLIP models. The timm model determines D, for example 192 for vit_tiny_patch16_224. Biases that are missing in
    the timm model start at 0.

    Args:
        name: A name from `timm.list_models()`, with or without a pretrained tag.
        pretrained: If True, download and use the trained weights. If False, use timm's random initial weights, which
            depend only on the seed.

    Raises:
        InputError: If timm has no such model, if `Transformer` cannot compute the same function as the model, or if the
            weights cannot be loaded.
    """
    import timm  # timm imports wandb, which creates temporary folders that a kill would leave behind.

    known_names = {*timm.list_models(), *timm.list_models(pretrained=True)}
    if name not in known_names:
        close = difflib.get_close_matches(name, sorted(known_names), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "timm.list_models('*vit*') lists valid names"
        raise InputError(f"timm has no model {name!r}; {hint}")
    with torch.device("meta"):
        check_supported(name, timm.create_model(name))
    try:
        with isolated_seed():
            model = cast(Any, timm.create_model(name, pretrained=pretrained))
    except Exception as error:  # A failed download can raise an error of any class.
        raise InputError(f"the weights of timm's {name} cannot be loaded: {one_line(error)}") from error
    block = model.blocks[0]
    sizes = model.embed_dim, len(model.blocks), block.attn.num_heads, block.mlp.fc1.out_features
    trunk = Transformer(*sizes, norm_eps=model.norm.eps)
    trunk.pretrained = pretrained
    zeros = {key: value for key, value in trunk.state_dict().items() if key.endswith(("query.bias", "key_value.bias"))}
    # A strict load raises an error if a weight is missing or unused.
    trunk.load_state_dict(zeros | convert_timm_weights(model.state_dict(), trunk.dim))
    return trunk


def timm_parts() -> dict[str, tuple[type[nn.Module], str]]:
    """Return a mapping from a module of a timm model to its required class and to the behavior of `Transformer`.

    `check_supported` checks the modules in the order of the mapping.
    """
    from timm.layers.attention import Attention
    from timm.layers.mlp import Mlp
    from timm.models.vision_transformer import Block

    return {
        "blocks.0": (Block, "runs attention and then a feed-forward part, each after a norm"),
        "blocks.0.norm1": (nn.LayerNorm, "normalizes by mean and variance"),
        "blocks.0.attn": (Attention, "uses one softmax per head"),
        "blocks.0.attn.q_norm": (nn.Identity, "does not normalize queries and keys"),
        "blocks.0.attn.norm": (nn.Identity, "has no norm inside its attention"),
        "blocks.0.ls1": (nn.Identity, "does not scale its residual branches"),
        "blocks.0.mlp": (Mlp, "has two linear layers in its feed-forward part"),
        "blocks.0.mlp.act": (nn.GELU, "uses the exact GELU in its feed-forward part"),
        "blocks.0.mlp.norm": (nn.Identity, "has no norm inside its feed-forward part"),
        "norm": (nn.LayerNorm, "has a final norm for each token, not for the pooled vector"),
    }


def check_supported(name: str, model: nn.Module) -> None:
    """Raise InputError if `Transformer` cannot compute the function of a timm model.

    The message contains the name of the module that is not supported.
    """
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(model, VisionTransformer):
        raise InputError(f"timm's {name} is a {type(model).__name__}: choose a plain VisionTransformer")
    for path, (supported, behavior) in timm_parts().items():
        part = model.get_submodule(path)
        if not isinstance(part, supported):
            kind = type(part).__name__
            raise InputError(f"timm's {name} cannot be a trunk: its {path} is a {kind}, but Transformer {behavior}")


def convert_timm_weights(state: dict[str, Tensor], dim: int) -> dict[str, Tensor]:
    """Rename the weights of timm's blocks and final norm to the names in `Transformer`.

    timm's projection `qkv` is split into the projections `query` and `key_value`.
    """
    converted: dict[str, Tensor] = {}
    for key, weight in state.items():
        if not key.startswith(("blocks.", "norm.")):
            continue
        for timm_name, name in TIMM_WEIGHT_NAMES.items():
            key = key.replace(f".{timm_name}.", f".{name}.")
        if ".attn.qkv." in key:
            converted[key.replace("attn.qkv", "attention.query")] = weight[:dim]
            converted[key.replace("attn.qkv", "attention.key_value")] = weight[dim:]
        else:
            converted[key] = weight
    return converted
