"""Our encoder's weights under the names of each peer that classifies."""

import torch

from benchmarks.models.copying import KINDS, State, blocks, positions, renamed
from benchmarks.models.encoders import Shape

TORCH = {
    "norm1.": "self_norm",
    "self_attn.in_proj_": "self.qkv",
    "self_attn.out_proj.": "self.out",
    "norm2.": "feed_norm",
    "linear1.": "up",
    "linear2.": "down",
}
TIMM = {
    "norm1.": "self_norm",
    "attn.qkv.": "self.qkv",
    "attn.proj.": "self.out",
    "norm2.": "feed_norm",
    "mlp.fc1.": "up",
    "mlp.fc2.": "down",
}
TRANSFORMERS = {
    "layernorm_before.": "self_norm",
    "attention.q_proj.": "self.query",
    "attention.k_proj.": "self.key",
    "attention.v_proj.": "self.value",
    "attention.o_proj.": "self.out",
    "layernorm_after.": "feed_norm",
    "mlp.fc1.": "up",
    "mlp.fc2.": "down",
}


def plain(state: State) -> State:
    """What lies before and after our blocks; `first` and `nowhere` are the class token and its position."""
    nowhere, places = positions(state, "tokenizers.task.encoding")
    found = {"nowhere": nowhere, "places": places}
    for name, ours in {
        "project": "tokenizers.task.project.out",
        "norm": "trunk.norm",
        "head": "heads.task.out",
    }.items():
        found |= {f"{name}.{kind}": state[f"{ours}.{kind}"] for kind in KINDS}
    if "tokenizers.task.class_token" in state:
        found["first"] = state["tokenizers.task.class_token"]
    return found


def _with_convolution(state: State, shape: Shape, names: dict[str, str], layers: tuple[str, dict[str, str]]) -> State:
    """Under the names of a peer that projects patches by a convolution, and adds one table of positions (1, N, D).

    `names` are the peer's for `project`, `norm`, `head`, `first` and `places`; `layers` those of its blocks.
    """
    ours = plain(state)
    found = renamed(ours, {names[part]: part for part in ("project", "norm", "head")}, "")
    weight = f"{names['project']}weight"
    found[weight] = found[weight].view(shape.dim, shape.channels, *shape.patch)
    found[names["places"]] = ours["places"][None]
    if shape.class_token:
        found[names["first"]] = ours["first"][None, None]
        found[names["places"]] = torch.cat([ours["nowhere"][None], ours["places"]])[None]
    prefix, parts = layers
    for i, block in enumerate(blocks(state, "trunk.blocks")):
        found |= renamed(block, parts, f"{prefix}.{i}.")
    return found


def for_torch(state: State, shape: Shape) -> State:
    """`encoders.TorchClassifier`'s."""
    names = {"project": "project.", "norm": "encoder.norm.", "head": "head.", "first": "first", "places": "places"}
    return _with_convolution(state, shape, names, ("encoder.layers", TORCH))


def for_timm(state: State, shape: Shape) -> State:
    """timm's VisionTransformer's."""
    names = {"project": "patch_embed.proj.", "norm": "norm.", "head": "head."}
    return _with_convolution(state, shape, names | {"first": "cls_token", "places": "pos_embed"}, ("blocks", TIMM))


def for_transformers(state: State, shape: Shape) -> State:
    """transformers' ViTForImageClassification's."""
    names = {
        "project": "vit.embeddings.patch_embeddings.projection.",
        "norm": "vit.layernorm.",
        "head": "classifier.",
        "first": "vit.embeddings.cls_token",
        "places": "vit.embeddings.position_embeddings",
    }
    return _with_convolution(state, shape, names, ("vit.layers", TRANSFORMERS))


def for_x_columns(state: State, shape: Shape) -> State:
    """`encoders.XColumns`'s: norms are stored as their distance from 1, positions times the root of D.

    It has no biases in attention and norms; ours are 0 there.
    """
    ours = plain(state)
    found = renamed(ours, {"project_in.": "project", "project_out.": "head"}, "")
    found["pos_emb.emb.weight"] = ours["places"] * shape.dim**0.5
    found["attn_layers.final_norm.gamma"] = ours["norm.weight"] - 1
    for i, block in enumerate(blocks(state, "trunk.blocks")):
        attention, feed = (f"attn_layers.layers.{2 * i + part}" for part in range(2))
        found[f"{attention}.0.0.gamma"] = block["self_norm.weight"] - 1
        for theirs, part in {"to_q": "query", "to_k": "key", "to_v": "value", "to_out": "out"}.items():
            found[f"{attention}.1.{theirs}.weight"] = block[f"self.{part}.weight"]
        found[f"{feed}.0.0.gamma"] = block["feed_norm.weight"] - 1
        found |= renamed(block, {"ff.0.0.": "up", "ff.2.": "down"}, f"{feed}.1.")
    return {f"inner.{name}": tensor for name, tensor in found.items()}
