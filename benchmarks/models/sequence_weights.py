"""Rename our encoder-decoder's weights for Marian and for `TorchTranslator`."""

from benchmarks.models.encoder_weights import TORCH
from benchmarks.models.weights import State, block_states, rename

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

Stack = tuple[str, dict[str, str]]
"""The prefix of a peer's blocks, and a mapping from the peer's names in a block to neutral names."""


def convert_for_marian(state: State) -> State:
    """Convert our weights for MarianMTModel."""
    encoder, decoder = ("model.encoder.layers", MARIAN), ("model.decoder.layers", MARIAN_DECODER)
    return _convert(state, "model.shared.weight", encoder, decoder)


def convert_for_torch_translator(state: State) -> State:
    """Convert our weights for `sequences.TorchTranslator`."""
    return _convert(state, "embedding.weight", ("encoder.layers", TORCH), ("decoder.layers", TORCH_DECODER))


def _convert(state: State, embedding: str, encoder: Stack, decoder: Stack) -> State:
    converted = {embedding: state["heads.task.embedding.weight"]}
    for stack, (prefix, names) in (("trunk.blocks", encoder), ("heads.task.blocks", decoder)):
        for i, block in enumerate(block_states(state, stack)):
            converted |= rename(block, names, f"{prefix}.{i}.")
    return converted
