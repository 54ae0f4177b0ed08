"""The tokenizer for single samples of sound, which turns each sample into one token."""

from typing import final

import torch
from torch import Tensor, nn

from unifier_tokenizers.audio import Audio, resample
from unifier_tokenizers.dropout import Dropout
from unifier_tokenizers.errors import InputError
from unifier_tokenizers.positions import PositionalEncoding, PositionKind
from unifier_tokenizers.tokenizer import Tokenizer
from unifier_tokenizers.tokens import Units

NUM_CODES = 256
"""The number of mu-law codes, which are 8 bits."""


@final
class SampleTokenizer(Tokenizer):
    """Tokenizer that turns a begin token and each sample of a sound into tokens.

    The values are ids (N,) at positions (1, N). The id of a sample is its 8-bit mu-law code (ITU-T G.711, as in van den
    Oord et al. 2016, section 2.2). The id of the begin token is `NUM_CODES`. A token is the embedding of its id plus
    the encoding of its position.
    """

    unit = "samples"
    num_codes = NUM_CODES

    def __init__(
        self,
        dim: int,
        *,
        sample_rate: int = 8000,
        positions: PositionKind = "sinusoid",
        length: int = 4096,
        dropout: float = 0.0,
    ) -> None:
        """Create the tokenizer.

        Args:
            dim: D, the width of the tokens.
            sample_rate: The sample rate to which sounds are resampled, in Hz.
            positions: The kind of positional encoding.
            length: The maximum number of tokens of a sound, for positions="learned" only.
            dropout: The probability of dropping an entry of a token.
        """
        super().__init__(dim)
        if sample_rate < 1:
            raise InputError(f"sample_rate={sample_rate}: a positive number is needed")
        self.sample_rate = sample_rate
        self.embedding = nn.Embedding(NUM_CODES + 1, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.encoding = PositionalEncoding(positions, dim, (length,))
        self.dropout = Dropout(dropout)

    def encode(self, raw: Audio) -> Units:
        """Encode a sound as ids (N,). Samples beyond -1 and 1 are clipped."""
        from torchaudio.functional import mu_law_encoding

        if not isinstance(raw, Audio):
            raise InputError(f"a sound is expected, as Audio(waveform, sample_rate), not {type(raw).__name__}")
        codes = mu_law_encoding(resample(raw, self.sample_rate, 1).clamp(-1, 1), NUM_CODES)
        ids = torch.cat([torch.tensor([NUM_CODES]), codes]).to(torch.int16)
        positions = torch.arange(len(ids))[None]
        self.encoding.check(positions)
        return Units(ids, positions)

    def embed(self, values: Tensor, positions: Tensor) -> Tensor:
        """Turn ids (B, N) at positions (B, 1, N) into tokens (B, D, N)."""
        columns = self.embedding(values.int()) * self.dim**0.5
        return self.dropout(self.encoding(columns.mT, positions))

    def to_sound(self, ids: Tensor) -> Audio:
        """Return the sound of ids (N,), which have no begin token."""
        from torchaudio.functional import mu_law_decoding

        return Audio(mu_law_decoding(ids.cpu().long(), NUM_CODES), self.sample_rate)
