"""The blocks and the text tokenizer of encoder models of Hugging Face's transformers, such as BERT and ViT."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

import tokenizers as hf
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import isolated_seed
from unifier_tokenizers import InputError, Tokens
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.pretrained_text import PretrainedTextTokenizer, PretrainedVocabulary

HF = "hf:"
"""The start of a reference to a model of transformers, as in hf:google-bert/bert-base-uncased or hf:FOLDER."""

TOLERANCE = 1e-4
"""Largest difference between the outputs of a model and of its copy, relative to the largest output."""


@final
@dataclass(frozen=True)
class Family:
    """Names of the parts of a kind of model."""

    layers: str
    """The path of the list of blocks."""
    names: Mapping[str, str]
    """A mapping from the linear layers and norms of a block to the parts of `Block`."""
    final_norm: str = ""
    """The path of the final norm, for blocks with a norm before attention."""


BERT = Family(
    "encoder.layer",
    {
        "attention.self.query": "attention.query",
        "attention.self.key": "key",
        "attention.self.value": "value",
        "attention.output.dense": "attention.out",
        "attention.output.LayerNorm": "attention_norm",
        "intermediate.dense": "feed_forward.0",
        "output.dense": "feed_forward.3",
        "output.LayerNorm": "feed_forward_norm",
    },
)

VIT = Family(
    "layers",
    {
        "attention.q_proj": "attention.query",
        "attention.k_proj": "key",
        "attention.v_proj": "value",
        "attention.o_proj": "attention.out",
        "layernorm_before": "attention_norm",
        "mlp.fc1": "feed_forward.0",
        "mlp.fc2": "feed_forward.3",
        "layernorm_after": "feed_forward_norm",
    },
    "layernorm",
)

DISTILBERT = Family(
    "transformer.layer",
    {
        "attention.q_lin": "attention.query",
        "attention.k_lin": "key",
        "attention.v_lin": "value",
        "attention.out_lin": "attention.out",
        "sa_layer_norm": "attention_norm",
        "ffn.lin1": "feed_forward.0",
        "ffn.lin2": "feed_forward.3",
        "output_layer_norm": "feed_forward_norm",
    },
)

WAV2VEC2 = Family(
    "encoder.layers",
    {
        "attention.q_proj": "attention.query",
        "attention.k_proj": "key",
        "attention.v_proj": "value",
        "attention.out_proj": "attention.out",
        "layer_norm": "attention_norm",
        "feed_forward.intermediate_dense": "feed_forward.0",
        "feed_forward.output_dense": "feed_forward.3",
        "final_layer_norm": "feed_forward_norm",
    },
    "encoder.layer_norm",
)

FAMILIES: Mapping[str, Family] = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "distilbert": DISTILBERT,
    "vit": VIT,
    "deit": VIT,
    "audio-spectrogram-transformer": VIT,
    "wav2vec2": WAV2VEC2,
    "hubert": WAV2VEC2,
}
"""The supported kinds of models, keyed by the entry `model_type` of config.json."""

TEXT_KINDS = {"bert": False, "distilbert": False, "roberta": True, "xlm-roberta": True, "camembert": True}
"""The kinds of models for text. True means that the first position is the row after the padding's id."""

NORM_EPS = 1e-12
"""The number that a norm adds to the variance if the configuration has no entry for it, as in DistilBERT."""

RELATIVE_KINDS = ("deberta", "deberta-v2", "wavlm", "xlnet", "wav2vec2-conformer")
"""The kinds of models that have relative positions without an entry in their configuration."""

DIFFERENCES: Mapping[str, Callable[[Any], object]] = {
    "relative positions": lambda config: (
        _get(config, "relative_attention")
        or _get(config, "relative_attention_num_buckets")
        or _get(config, "use_relative_position_bias")
        or _get(config, "model_type") in RELATIVE_KINDS
        or str(_get(config, "position_embedding_type")).startswith("relative")
    ),
    "rotary positions": lambda config: (
        _get(config, "rope_parameters")
        or _get(config, "rope_theta")
        or _get(config, "global_rope_theta")
        or _get(config, "position_embedding_type") == "rotary"
        or _get(config, "model_type") == "roformer"
    ),
    "a gated feed-forward network": lambda config: (
        _get(config, "is_gated_act") or _get(config, "use_swiglu_ffn") or _get(config, "model_type") == "modernbert"
    ),
    "a decoder": lambda config: (
        _get(config, "is_encoder_decoder")
        or _get(config, "is_decoder")
        or _get(config, "add_cross_attention")
        or str(_get(config, "model_type")).startswith("gpt")
    ),
    "norms without a mean": lambda config: _get(config, "rms_norm_eps"),
    "fewer heads for keys than for queries": lambda config: (
        _get(config, "num_key_value_heads") not in (None, _get(config, "num_attention_heads"))
    ),
    "scaled residual branches": lambda config: (
        _get(config, "layer_scale_init_value") or _get(config, "layerscale_value")
    ),
    "layers with shared weights": lambda config: _get(config, "num_hidden_groups"),
    "adapters in its layers": lambda config: _get(config, "adapter_attn_dim"),
    "hash functions or windows in its attention": lambda config: (
        _get(config, "attention_window") or _get(config, "attn_layers") or _get(config, "attention_type")
    ),
}
"""The parts that `Transformer` does not have, each with a test of a model's configuration."""


def load_hf_trunk(name: str, *, dropout: float = 0.0) -> Transformer:
    """Load the blocks and the final norm of an encoder into a `Transformer`.

    The layers before the blocks are not loaded. `load_hf_tokenizer` loads the embeddings of a model for text.

    Args:
        name: The folder of a model, or USER/NAME on the Hugging Face hub, without "hf:".
        dropout: The dropout probability of the trunk.

    Raises:
        InputError: `Transformer` cannot compute the same function as the model, or the model cannot be loaded.
    """
    model, family = _load_model(name)
    config, layers = model.config, model.get_submodule(family.layers)
    blocks = [_convert_block(name, layer, family) for layer in layers]
    is_pre = bool(family.final_norm) and (family is not WAV2VEC2 or config.do_stable_layer_norm)
    final = model.get_submodule(family.final_norm) if is_pre else None
    trunk = Transformer(
        config.hidden_size,
        len(layers),
        config.num_attention_heads,
        next((len(block["feed_forward.0.weight"]) for block in blocks), 1),
        norm="pre" if is_pre else "post",
        activation=_activation(config),
        dropout=dropout,
        norm_eps=getattr(config, "layer_norm_eps", NORM_EPS),
    )
    trunk.pretrained = True
    weights = {
        key: value for key, value in trunk.state_dict().items() if key.endswith(("query.bias", "key_value.bias"))
    }
    for index, block in enumerate(blocks):
        weights |= {f"blocks.{index}.{key}": weight for key, weight in block.items()}
    if final is not None:
        weights |= {f"norm.{key}": weight for key, weight in final.state_dict().items()}
    trunk.load_state_dict(weights)  # A strict load raises an error if a weight is missing or unused.
    _check_trunk(name, trunk, layers, final)
    return trunk


def load_hf_tokenizer(name: str, *, dropout: float = 0.0) -> PretrainedTextTokenizer:
    """Load the vocabulary and the embeddings of an encoder for text.

    Args:
        name: The folder of a model, or USER/NAME on the Hugging Face hub, without "hf:".
        dropout: The dropout probability of the tokens.

    Raises:
        InputError: The model is not an encoder for text of the kind of BERT, or cannot be loaded.
    """
    import transformers

    model, _ = _load_model(name)
    config = model.config
    if config.model_type not in TEXT_KINDS:
        raise InputError(
            f"tokenizer={HF}{name}: a model of the kind {config.model_type} has no vocabulary; use a model for text, "
            f"such as {', '.join(TEXT_KINDS)}"
        )
    with _quiet(name):
        codec = transformers.AutoTokenizer.from_pretrained(name).backend_tokenizer
    vocabulary = PretrainedVocabulary(hf.Tokenizer.from_str(codec.to_str()))
    parts = model.embeddings
    first = config.pad_token_id + 1 if TEXT_KINDS[config.model_type] else 0
    positions = parts.position_embeddings.weight[first:]
    if hasattr(parts, "token_type_embeddings"):
        positions = positions + parts.token_type_embeddings.weight[0]
    tokenizer = PretrainedTextTokenizer(
        vocabulary,
        config.hidden_size,
        len(parts.word_embeddings.weight),
        len(positions),
        norm_eps=getattr(config, "layer_norm_eps", NORM_EPS),
        dropout=dropout,
    )
    with torch.no_grad():
        tokenizer.embedding.weight.copy_(parts.word_embeddings.weight)
        tokenizer.positions.weight.copy_(positions)
    tokenizer.norm.load_state_dict(parts.LayerNorm.state_dict())
    ids, column = torch.arange(len(vocabulary) - 1, len(vocabulary))[None], torch.zeros(1, 1, 1, dtype=torch.long)
    with torch.inference_mode():
        _check_equal(name, tokenizer.eval().embed(ids, column), parts(input_ids=ids).mT)
    return tokenizer.train()


def _load_model(name: str) -> tuple[Any, Family]:
    """Load a model of transformers in float32, after a check of its configuration."""
    try:
        import transformers
    except ImportError:
        raise InputError(f"{HF}{name} needs transformers: pip install 'unifier-torch[hf]'") from None
    with _quiet(name):
        config = transformers.AutoConfig.from_pretrained(name)
    _check_config(name, config)
    with _quiet(name), isolated_seed():
        model, info = transformers.AutoModel.from_pretrained(
            name, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
        raise InputError(f"{HF}{name}: the weights of {missing[0]} are missing in the model's files; get a whole copy")
    return model.eval(), FAMILIES[config.model_type]


def _check_config(name: str, config: Any) -> None:
    """Raise InputError if the configuration has a part that `Transformer` does not have."""
    parts = [part for part, test in DIFFERENCES.items() if test(config)]
    activation = _activation(config)
    if activation not in (None, "gelu", "relu"):
        parts.append(f"the activation {activation}")
    if not parts and config.model_type not in FAMILIES:
        parts.append(f"layers of the kind {config.model_type} (known kinds: {', '.join(FAMILIES)})")
    if parts:
        raise InputError(f"{HF}{name} cannot be used: unlike Transformer, the model has {' and '.join(parts)}")


def _convert_block(name: str, layer: nn.Module, family: Family) -> dict[str, Tensor]:
    """Return the weights of a block under the names in `Block`. The projections of keys and values are joined."""
    converted: dict[str, Tensor] = {}
    for key, weight in layer.state_dict().items():
        part, _, kind = key.rpartition(".")
        if part not in family.names:
            raise InputError(f"{HF}{name} cannot be used: unlike Transformer, a layer of the model has the part {part}")
        converted[f"{family.names[part]}.{kind}"] = weight
    for kind in ("weight", "bias"):
        if f"key.{kind}" in converted:
            joined = [converted.pop(f"{part}.{kind}") for part in ("key", "value")]
            converted[f"attention.key_value.{kind}"] = torch.cat(joined)
    return converted


def _check_trunk(name: str, trunk: Transformer, layers: nn.Module, final: nn.Module | None) -> None:
    """Raise InputError if the trunk and the layers give different outputs for the same random tokens."""
    x = torch.randn(1, 5, trunk.dim, generator=torch.Generator().manual_seed(0))
    tokens = Tokens(x.mT, torch.ones(1, 5, dtype=torch.bool), torch.arange(5)[None, None])
    with torch.inference_mode():
        output = trunk.eval()(tokens).matrix.mT
        for layer in layers.children():
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        _check_equal(name, output, x if final is None else final(x))
    trunk.train()


def _check_equal(name: str, output: Tensor, expected: Tensor) -> None:
    difference = float((output - expected).abs().max() / expected.abs().max())
    if not difference < TOLERANCE:
        raise InputError(
            f"{HF}{name} cannot be used: its output differs from the copied weights' output by {difference:.1g}; the "
            "model has a part that its configuration does not name"
        )


@contextmanager
def _quiet(name: str) -> Generator[None]:
    """Silence the warnings and progress bars of transformers, and convert an error to an InputError."""
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    verbosity, is_shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_verbosity = hub_logging.get_verbosity()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # A failed download, a broken file and an unknown kind raise errors of many classes.
        raise InputError(
            f"{HF}{name} cannot be loaded ({one_line(error)[:300]}); give the folder of a model with "
            "model.safetensors, or USER/NAME of a model on the Hugging Face hub"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if is_shown:
            logging.enable_progress_bar()


def _activation(config: Any) -> Any:
    return _get(config, "hidden_act") or _get(config, "hidden_activation") or _get(config, "activation")


def _get(config: Any, name: str) -> Any:
    return getattr(config, name, None)
