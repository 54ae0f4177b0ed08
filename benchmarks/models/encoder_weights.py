"""Rename and reshape our encoder's weights for the image classifiers of other libraries."""

import torch

from benchmarks.models.encoders import Shape
from benchmarks.models.weights import KINDS, State, block_states, position_table, rename

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


def convert_for_torch(state: State, shape: Shape) -> State:
    """Convert our weights for `encoders.TorchClassifier`."""
    names = {
        "project": "project.",
        "norm": "encoder.norm.",
        "head": "head.",
        "class_token": "class_token",
        "positions": "positions",
    }
    return _convert_for_vit(state, shape, names, ("encoder.layers", TORCH))


def convert_for_timm(state: State, shape: Shape) -> State:
    """Convert our weights for timm's VisionTransformer."""
    names = {
        "project": "patch_embed.proj.",
        "norm": "norm.",
        "head": "head.",
        "class_token": "cls_token",
        "positions": "pos_embed",
    }
    return _convert_for_vit(state, shape, names, ("blocks", TIMM))


def convert_for_transformers(state: State, shape: Shape) -> State:
    """Convert our weights for transformers' ViTForImageClassification."""
    names = {
        "project": "vit.embeddings.patch_embeddings.projection.",
        "norm": "vit.layernorm.",
        "head": "classifier.",
        "class_token": "vit.embeddings.cls_token",
        "positions": "vit.embeddings.position_embeddings",
    }
    return _convert_for_vit(state, shape, names, ("vit.layers", TRANSFORMERS))


def convert_for_x_transformers(state: State, shape: Shape) -> State:
    """Convert our weights for `encoders.XTransformersFrames`.

    x-transformers adds 1 to the stored weights of a norm, and divides stored positions by the square root of D. The
    attention and the norms of x-transformers have no biases, so our attention and norm biases must be 0.
    """
    ours = _neutral_ends(state)
    converted = rename(ours, {"project_in.": "project", "project_out.": "head"}, "")
    converted["pos_emb.emb.weight"] = ours["positions"] * shape.dim**0.5
    converted["attn_layers.final_norm.gamma"] = ours["norm.weight"] - 1
    for i, block in enumerate(block_states(state, "trunk.blocks")):
        attention, feed = (f"attn_layers.layers.{2 * i + part}" for part in range(2))
        converted[f"{attention}.0.0.gamma"] = block["self_norm.weight"] - 1
        for theirs, part in {"to_q": "query", "to_k": "key", "to_v": "value", "to_out": "out"}.items():
            converted[f"{attention}.1.{theirs}.weight"] = block[f"self.{part}.weight"]
        converted[f"{feed}.0.0.gamma"] = block["feed_norm.weight"] - 1
        converted |= rename(block, {"ff.0.0.": "up", "ff.2.": "down"}, f"{feed}.1.")
    return {f"inner.{name}": tensor for name, tensor in converted.items()}


def _convert_for_vit(state: State, shape: Shape, names: dict[str, str], layers: tuple[str, dict[str, str]]) -> State:
    """Convert our weights for a peer with a patch convolution and one table of positions (1, N, D).

    Args:
        state: Our weights.
        shape: Shape of the model.
        names: The peer's names for `project`, `norm`, `head`, `class_token` and `positions`.
        layers: Prefix of the peer's blocks, and a mapping from the peer's names in a block to neutral names.
    """
    ours = _neutral_ends(state)
    converted = rename(ours, {names[part]: part for part in ("project", "norm", "head")}, "")
    weight = f"{names['project']}weight"
    converted[weight] = converted[weight].view(shape.dim, shape.channels, *shape.patch)
    converted[names["positions"]] = ours["positions"][None]
    if shape.class_token:
        converted[names["class_token"]] = ours["class_token"][None, None]
        converted[names["positions"]] = torch.cat([ours["no_position"][None], ours["positions"]])[None]
    prefix, parts = layers
    for i, block in enumerate(block_states(state, "trunk.blocks")):
        converted |= rename(block, parts, f"{prefix}.{i}.")
    return converted


def _neutral_ends(state: State) -> State:
    """Return our weights outside the transformer blocks, with neutral names."""
    no_position, positions = position_table(state, "tokenizers.task.encoding")
    neutral = {"no_position": no_position, "positions": positions}
    modules = {"project": "tokenizers.task.project.out", "norm": "trunk.norm", "head": "heads.task.out"}
    for name, module in modules.items():
        neutral |= {f"{name}.{kind}": state[f"{module}.{kind}"] for kind in KINDS}
    if "tokenizers.task.class_token" in state:
        neutral["class_token"] = state["tokenizers.task.class_token"]
    return neutral
