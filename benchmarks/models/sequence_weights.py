"""Our encoder-decoder's weights under the names of Marian and of torch.nn."""

from benchmarks.models.copying import State, blocks, renamed
from benchmarks.models.encoder_weights import TORCH

TORCH_DECODER = {
    "norm1.": "self_norm",
    "self_attn.in_proj_": "self.qkv",
    "self_attn.out_proj.": "self.out",
    "norm2.": "cross_norm",
    "multihead_attn.in_proj_": "cross.qkv",
    "multihead_attn.out_proj.": "cross.out",
    "norm3.": "feed_norm",
    "linear1.": "up",
    "linear2.": "down",
}
MARIAN = {
    "self_attn.q_proj.": "self.query",
    "self_attn.k_proj.": "self.key",
    "self_attn.v_proj.": "self.value",
    "self_attn.out_proj.": "self.out",
    "self_attn_layer_norm.": "self_norm",
    "fc1.": "up",
    "fc2.": "down",
    "final_layer_norm.": "feed_norm",
}
MARIAN_DECODER = MARIAN | {
    "encoder_attn.q_proj.": "cross.query",
    "encoder_attn.k_proj.": "cross.key",
    "encoder_attn.v_proj.": "cross.value",
    "encoder_attn.out_proj.": "cross.out",
    "encoder_attn_layer_norm.": "cross_norm",
}


def _both(state: State, table: str, encoder: tuple[str, dict[str, str]], decoder: tuple[str, dict[str, str]]) -> State:
    found = {table: state["heads.task.embedding.weight"]}
    for stack, (prefix, names) in (("trunk.blocks", encoder), ("heads.task.blocks", decoder)):
        for i, block in enumerate(blocks(state, stack)):
            found |= renamed(block, names, f"{prefix}.{i}.")
    return found


def for_marian(state: State) -> State:
    """MarianMTModel's."""
    return _both(
        state, "model.shared.weight", ("model.encoder.layers", MARIAN), ("model.decoder.layers", MARIAN_DECODER)
    )


def for_torch(state: State) -> State:
    """`sequences.TorchTranslator`'s."""
    return _both(state, "table.weight", ("encoder.layers", TORCH), ("decoder.layers", TORCH_DECODER))
