"""Sound to columns."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Sound(NamedTuple):
    """A waveform and its rate: what a data set of sounds gives as input."""

    waveform: Tensor | NDArray[np.floating]
    """(samples,) or (channels, samples), in -1 to 1."""
    rate: int
    """Samples a second (Hz)."""
