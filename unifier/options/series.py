"""Settings of time series."""

from dataclasses import dataclass
from typing import final

from unifier.options.trunk import TrunkConfig
from unifier_tokenizers import SeriesTokenizer


@final
@dataclass(frozen=True)
class SeriesFrontend:
    """Settings for the tokens of a time series."""

    context: int = 336
    """Number of time steps that the model reads."""
    patch: int = 16
    """Number of time steps of a patch."""
    stride: int = 8
    """Step from one patch to the next, in time steps."""

    def build(self, trunk: TrunkConfig) -> SeriesTokenizer:
        """Create a tokenizer with the width, the positions and the dropout of the trunk."""
        return SeriesTokenizer(
            trunk.dim,
            context=self.context,
            patch=self.patch,
            stride=self.stride,
            positions=trunk.input_positions,
            dropout=trunk.dropout,
        )
