"""Settings of the decoder of a translator."""

from dataclasses import dataclass
from typing import Any, Literal, final

from torch import nn

from unifier.heads.transformer_decoder import TranslationHead
from unifier.options.trunk import TrunkConfig
from unifier_tokenizers import InputError, Vocabulary


@final
@dataclass(frozen=True)
class DecoderConfig:
    """Settings for the decoder of a translator, its training loss and its search."""

    decoder_depth: int = 4
    """Number of layers of the decoder."""
    tied: Literal["all", "source", "target", "none"] = "all"
    """Embeddings with shared weights: all, source (encoder and decoder), target (decoder and output), or none."""
    label_smoothing: float = 0.1
    """Share of the target probability that is spread over the vocabulary in training."""
    r_drop: float = 0.0
    """Weight of the R-Drop loss, which needs two passes per batch; 0 turns R-Drop off."""
    beam_width: int = 1
    """Width of the beam search; 1 means greedy search."""
    length_penalty: float = 1.2
    """Exponent p: a text's score is its log-probability divided by length ** p."""

    def build(
        self, vocabulary: Vocabulary, trunk: TrunkConfig, embedding: nn.Embedding | None, **others: Any
    ) -> TranslationHead:
        """Create a head whose blocks have the sizes of the trunk's blocks.

        Args:
            vocabulary: The vocabulary of the target texts.
            trunk: The settings of the trunk.
            embedding: See `options`.
            others: `language`, `scores` and `longest` (see `TextGenerationOptions`).

        Raises:
            InputError: If R-Drop would have no effect.
        """
        if self.r_drop and not trunk.dropout:
            raise InputError(f"r_drop={self.r_drop} has no effect with dropout=0: set dropout above 0, or set r_drop=0")
        return TranslationHead(
            vocabulary,
            trunk.dim,
            depth=self.decoder_depth,
            heads=trunk.heads,
            ffn_dim=trunk.ffn_dim,
            dropout=trunk.dropout,
            qk_norm=trunk.qk_norm,
            scaled_residual_init=trunk.scaled_residual_init,
            **self.options(embedding),
            **others,
        )

    def options(self, embedding: nn.Embedding | None) -> dict[str, Any]:
        """Return the options of every head that writes texts. The head shares the tokenizer's embedding if it is tied.

        Args:
            embedding: The embedding of the tokenizer, or None if the tokenizer has none of the vocabulary.
        """
        return {
            "label_smoothing": self.label_smoothing,
            "r_drop": self.r_drop,
            "beam_width": self.beam_width,
            "length_penalty": self.length_penalty,
            "embedding": embedding if self.tied in ("all", "source") else None,
            "tied": self.tied in ("all", "target"),
        }
