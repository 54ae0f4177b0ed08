"""Pixels of gray pictures, and the loss if each pixel is predicted on its own."""

import math

import numpy as np
from numpy.typing import NDArray

from unifier.data.dataset import open_split
from unifier.data.source import Source, SplitName
from unifier_tokenizers import InputError, PixelTokenizer


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
