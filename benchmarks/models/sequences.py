"""Encoder-decoders with one shared vocabulary: our model, Marian, and a model of torch.nn layers."""

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

import tokenizers as hf
from unifier.data.dataloader import Batch
from unifier.heads.text_generation import shift_right
from unifier_tokenizers import Vocabulary
from unifier_tokenizers.positions import sinusoidal_encoding
from unifier_tokenizers.subwords import BOS, EOS, PAD

if TYPE_CHECKING:
    from unifier.network import Network

LABEL_SMOOTHING = 0.1


@final
@dataclass(frozen=True)
class Size:
    """The sizes of an encoder-decoder. The encoder and the decoder each have `depth` blocks.

    All models use post-norm, sinusoidal positions and one embedding for source, target and output.
    """

    vocabulary: int = 10_000
    dim: int = 128
    depth: int = 4
    heads: int = 4
    ffn_dim: int = 256
    dropout: float = 0.1


SIZE = Size()


def pad_vocabulary(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """Return a copy of the vocabulary that is extended to `size` entries by unused entries."""
    content = json.loads(vocabulary.codec.to_str())
    entries = content["model"]["vocab"]
    entries |= {f"<unused {i}>": i for i in range(len(entries), size)}
    return Vocabulary(hf.Tokenizer.from_str(json.dumps(content)))


def create_our_translator(vocabulary: Vocabulary, size: Size) -> "Network":
    """Create our translator. The vocabulary must have `size.vocabulary` entries."""
    from benchmarks.cases.ours import create_network
    from unifier.heads.transformer_decoder import TranslationHead
    from unifier.trunks.transformer import Transformer
    from unifier_tokenizers import SubwordTokenizer

    tokenizer = SubwordTokenizer(vocabulary, size.dim, dropout=size.dropout)
    trunk = Transformer(
        size.dim, size.depth, size.heads, size.ffn_dim, norm="post", activation="relu", dropout=size.dropout
    )
    head = TranslationHead(
        vocabulary,
        size.dim,
        depth=size.depth,
        heads=size.heads,
        ffn_dim=size.ffn_dim,
        norm="post",
        activation="relu",
        dropout=size.dropout,
        label_smoothing=LABEL_SMOOTHING,
        embedding=tokenizer.embedding,
    )
    return create_network(trunk, tokenizer, head)


def create_marian(size: Size, plain: bool = False) -> Any:
    """Create Marian with our token ids for begin, end and padding. `plain` selects eager attention."""
    from transformers.models.marian.configuration_marian import MarianConfig
    from transformers.models.marian.modeling_marian import MarianMTModel

    config = MarianConfig(
        vocab_size=size.vocabulary,
        d_model=size.dim,
        encoder_layers=size.depth,
        decoder_layers=size.depth,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.ffn_dim,
        decoder_ffn_dim=size.ffn_dim,
        activation_function="relu",
        dropout=size.dropout,
        activation_dropout=size.dropout,
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation="eager" if plain else "sdpa",  # pyright: ignore[reportCallIssue]
    )
    return MarianMTModel(config)


def marian_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Compute Marian's logits (B, L, V) of the target tokens."""
    return model(
        input_ids=batch.values,
        attention_mask=batch.mask,
        decoder_input_ids=shift_right(batch.target),
        use_cache=False,
    ).logits


@final
class TorchTranslator(nn.Module):
    """A translator that uses the transformer encoder and decoder of torch.nn."""

    positions: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.dim)
        self.register_buffer(
            "positions", sinusoidal_encoding(torch.arange(512)[None, None], size.dim)[0].T.contiguous()
        )
        self.dropout = nn.Dropout(size.dropout)
        settings = (size.dim, size.heads, size.ffn_dim, size.dropout)
        encoder_layer = nn.TransformerEncoderLayer(*settings, batch_first=True)
        decoder_layer = nn.TransformerDecoderLayer(*settings, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder_layer, size.depth, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder_layer, size.depth)
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # Our model and Marian apply no dropout to attention weights.

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids (B, N) as vectors (B, N, D)."""
        return self.dropout(
            self.embedding(ids) * math.sqrt(self.embedding.embedding_dim) + self.positions[: ids.shape[1]]
        )

    def forward(self, source: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
        """Compute logits (B, L, V) from source ids (B, N), their mask (B, N) and target ids (B, L)."""
        memory = self.encoder(self.embed(source), src_key_padding_mask=~mask)
        future = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        x = self.decoder(self.embed(ids), memory, tgt_mask=future, tgt_is_causal=True, memory_key_padding_mask=~mask)
        return functional.linear(x, self.embedding.weight)


def torch_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Compute the logits (B, L, V) of the target tokens with `TorchTranslator`."""
    return model(batch.values, batch.mask, shift_right(batch.target))
