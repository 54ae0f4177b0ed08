"""Pictures whose pixels are predicted one by one, with the error of independent pixels as chance."""

import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from unifier.data.dataset import open_split
from unifier.data.source import ScoreRange, Source, Split, SplitName, name_of
from unifier_tokenizers import InputError, PixelTokenizer


@final
class GrayPictures:
    """A source of pictures for the objective `NextToken`, without a use of their labels.

    All attributes except the score range are those of the source of the pictures.
    """

    def __init__(self, source: Source, independent_pixel_nats: float) -> None:
        """Store the source.

        Args:
            source: The pictures.
            independent_pixel_nats: The loss at chance level (see `independent_pixel_nats`).
        """
        self.name, self._source = name_of(source), source
        origin = "chance: each pixel by the frequencies of its own grays in train"
        self.score_range = ScoreRange("nats_per_pixel", independent_pixel_nats, None, origin)

    def split(self, name: SplitName) -> Split:
        """Return the pictures of one split."""
        return self._source.split(name)

    def __getattr__(self, name: str) -> Any:
        # During unpickling, `_source` does not exist yet. Reading `_source` would call `__getattr__` again.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)


def independent_pixel_nats(source: Source, tokenizer: PixelTokenizer) -> float:
    """Return the test loss in nats per pixel if each pixel is predicted from its own histogram of grays.

    A histogram has the counts of one pixel in train, plus 1 for each gray.

    Args:
        source: The pictures.
        tokenizer: The tokenizer, which reduces the pictures and rounds their grays.
    """
    train, test = (encode_pixels(source, name, tokenizer) for name in ("train", "test"))
    counts = np.ones((train.shape[1], tokenizer.grays))
    for gray in range(tokenizer.grays):
        counts[:, gray] += (train == gray).sum(0)
    nats = -np.log(counts / counts.sum(1, keepdims=True))
    return float(nats[np.arange(train.shape[1]), test].mean()) if len(test) else math.log(tokenizer.grays)


def encode_pixels(source: Source, split: SplitName, tokenizer: PixelTokenizer) -> NDArray[np.int16]:
    """Return the grays (pictures, side^2) of the pictures of a split. Unreadable pictures are left out."""
    rows: list[NDArray[np.int16]] = []
    examples = open_split(source, split)
    for index in range(len(examples)):
        try:
            rows.append(tokenizer.encode(examples[index].input).values[1:].numpy())
        except InputError:
            continue  # The setting `bad_examples` decides later if an unreadable picture causes an error.
    return np.array(rows, np.int16).reshape(len(rows), tokenizer.side**2)
