"""Settings of the trunk."""

from dataclasses import dataclass
from typing import final

from unifier.nn.experts import BALANCE_WEIGHT
from unifier.trunks.factory import Positions, create_trunk, input_positions
from unifier.trunks.trunk import Trunk
from unifier_tokenizers.positions import PositionKind


@final
@dataclass(frozen=True)
class TrunkConfig:
    """Settings for the architecture and the size of the trunk."""

    trunk: str = "transformer"
    """Architecture: transformer, mean_attention, gru, lstm, sha_rnn (an LSTM, then single-head attention),
    convolutional, or timm:MODEL or hf:MODEL (pretrained)."""
    dim: int = 128
    """D, the number of features of a token."""
    depth: int = 4
    """Number of layers of the trunk."""
    heads: int | None = None
    """Number of attention heads in a layer; None means one head per 64 features."""
    ffn_dim: int | None = None
    """Number of hidden features in the feed-forward layers; None means 4 * dim."""
    dropout: float = 0.1
    """Dropout probability in the trunk, the tokenizer and the decoder."""
    positions: Positions = "sinusoid"
    """Positional encoding: sinusoid, learned or concat (a quarter of the rows), rotary (in a transformer), or none."""
    drop_path: float = 0.0
    """Probability that training skips the last block; the probability is smaller for earlier blocks."""
    qk_norm: bool = False
    """Normalize the queries and keys of attention, in the trunk and in a transformer decoder."""
    scaled_residual_init: bool = False
    """Make the initial weights of residual projections smaller in deeper models, as in GPT-2."""
    share_layers: bool = False
    """Run one transformer layer `depth` times with the same weights, as in ALBERT."""
    attention_width: int | None = None
    """Local attention: a token attends to tokens at a distance below this number; None means to all tokens."""
    attention_stride: int | None = None
    """With attention_width, a token also attends to tokens whose distance is a multiple of this number."""
    dilation: int = 1
    """Factor of the distance between the tokens of a convolution, from layer to layer; 2 is as in WaveNet."""
    experts: int = 1
    """Number of feed-forward networks in each transformer layer, of which a router selects one for each token."""
    experts_per_token: int = 1
    """Number of feed-forward networks that each token uses, 1 (as in Switch) or 2."""
    balance_weight: float = BALANCE_WEIGHT
    """Factor of the training loss that gives all experts equally many tokens."""

    @property
    def input_positions(self) -> PositionKind:
        """The positional encoding that the tokenizer adds."""
        return input_positions(self.positions)

    def build(self, *, causal: bool = False) -> Trunk:
        """Create the trunk, or raise InputError if the architecture does not support an option.

        Args:
            causal: True for heads that predict the next token (see `create_trunk`).
        """
        # Only a transformer supports `qk_norm` and `scaled_residual_init`.
        transformer = self.trunk == "transformer"
        return create_trunk(
            self.trunk,
            self.dim,
            self.depth,
            self.heads,
            self.ffn_dim,
            self.dropout,
            positions=self.positions,
            qk_norm=self.qk_norm and transformer,
            scaled_residual_init=self.scaled_residual_init and transformer,
            drop_path=self.drop_path,
            share_layers=self.share_layers,
            attention_width=self.attention_width,
            attention_stride=self.attention_stride,
            dilation=self.dilation,
            experts=self.experts,
            experts_per_token=self.experts_per_token,
            balance_weight=self.balance_weight,
            causal=causal,
        )
