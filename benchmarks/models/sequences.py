"""An encoder-decoder over one shared vocabulary: ours, Marian in transformers, and torch.nn's layers."""

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
from unifier_tokenizers.text import BOS, EOS, PAD

if TYPE_CHECKING:
    from unifier.network import Network

LABEL_SMOOTHING = 0.1


@final
@dataclass(frozen=True)
class Size:
    """Encoder and decoder of `depth` blocks each, norms after each sum, sinusoid positions, one table for all."""

    vocabulary: int = 10_000
    dim: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int = 256
    dropout: float = 0.1


SIZE = Size()


def padded(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """The same vocabulary with entries that no text reaches, up to `size`."""
    content = json.loads(vocabulary.codec.to_str())
    entries = content["model"]["vocab"]
    entries |= {f"<unused {i}>": i for i in range(len(entries), size)}
    return Vocabulary(hf.Tokenizer.from_str(json.dumps(content)))


def ours(vocabulary: Vocabulary, size: Size) -> "Network":
    """Our tokenizer, trunk and head; the vocabulary has `size.vocabulary` entries."""
    from benchmarks.contests.ours import assemble
    from unifier.heads.transformer_decoder import TranslationHead
    from unifier.trunks.transformer import Transformer
    from unifier_tokenizers import SubwordTokenizer

    tokenizer = SubwordTokenizer(vocabulary, size.dim, dropout=size.dropout)
    trunk = Transformer(
        size.dim, size.depth, size.heads, size.hidden, norm="post", activation="relu", dropout=size.dropout
    )
    head = TranslationHead(
        vocabulary,
        size.dim,
        depth=size.depth,
        heads=size.heads,
        ffn_dim=size.hidden,
        norm="post",
        activation="relu",
        dropout=size.dropout,
        label_smoothing=LABEL_SMOOTHING,
        embedding=tokenizer.embedding,
    )
    return assemble(trunk, tokenizer, head)


def marian(size: Size, plain: bool = False) -> Any:
    """Marian with our marks for begin, end and padding; `plain` writes its attention out."""
    from transformers.models.marian.configuration_marian import MarianConfig
    from transformers.models.marian.modeling_marian import MarianMTModel

    config = MarianConfig(
        vocab_size=size.vocabulary,
        d_model=size.dim,
        encoder_layers=size.depth,
        decoder_layers=size.depth,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.hidden,
        decoder_ffn_dim=size.hidden,
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
    """(B, L, V)."""
    return model(
        input_ids=batch.values,
        attention_mask=batch.mask,
        decoder_input_ids=shift_right(batch.target),
        use_cache=False,
    ).logits


@final
class TorchTranslator(nn.Module):
    """What one writes around torch.nn's encoder and decoder."""

    places: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.table = nn.Embedding(size.vocabulary, size.dim)
        self.register_buffer("places", sinusoidal_encoding(torch.arange(512)[None, None], size.dim)[0].T.contiguous())
        self.dropout = nn.Dropout(size.dropout)
        settings = (size.dim, size.heads, size.hidden, size.dropout)
        encoder_layer = nn.TransformerEncoderLayer(*settings, batch_first=True)
        decoder_layer = nn.TransformerDecoderLayer(*settings, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder_layer, size.depth, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder_layer, size.depth)
        for part in self.modules():
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0  # the others have none there either

    def embed(self, ids: Tensor) -> Tensor:
        """ids (B, N) -> (B, N, D)."""
        return self.dropout(self.table(ids) * math.sqrt(self.table.embedding_dim) + self.places[: ids.shape[1]])

    def forward(self, source: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
        """source (B, N) with its mask (B, N), ids (B, L) -> (B, L, V)."""
        memory = self.encoder(self.embed(source), src_key_padding_mask=~mask)
        future = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        x = self.decoder(self.embed(ids), memory, tgt_mask=future, tgt_is_causal=True, memory_key_padding_mask=~mask)
        return functional.linear(x, self.table.weight)


def torch_logits(model: nn.Module, batch: Batch) -> Tensor:
    """(B, L, V)."""
    return model(batch.values, batch.mask, shift_right(batch.target))
