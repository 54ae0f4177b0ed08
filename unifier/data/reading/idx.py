"""The idx format of MNIST and its kin: pictures in one file, labels in another."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unifier.data.reading.lines import open_plain
from unifier_tokenizers import InputError

Array = NDArray[np.uint8]


def read_idx(path: Path) -> Array:
    """An idx file of bytes as an array: two zeros, the type (8 is uint8), the number of axes, their lengths, the data.

    Source: the description of the format at the home of MNIST (LeCun, Cortes, Burges). Raises InputError.
    """
    with open_plain(path) as file:
        content = file.read()
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"{path} is no idx file of bytes")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise InputError(f"{path} promises {' x '.join(map(str, shape))} bytes and holds {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_pair(pictures: Path, labels: Path, names: Sequence[str]) -> tuple[Array, list[str]]:
    """Pictures (count, H, W) and the name of each one's label; raises InputError where the two files do not fit."""
    pixels, indices = read_idx(pictures), read_idx(labels)
    if pixels.ndim != 3 or indices.ndim != 1 or len(pixels) != len(indices):
        raise InputError(
            f"{pictures} holds an array {pixels.shape} and {labels} {indices.shape}: they do not fit each other"
        )
    if indices.size and indices.max() >= len(names):
        raise InputError(f"{labels} holds label {indices.max()}: there are {len(names)}, from 0")
    return pixels, [names[int(index)] for index in indices]
