"""Reader of video clips: NumPy arrays and animated GIF files."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from unifier.data.image_files import DECODE_ERRORS
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.image import to_array
from unifier_tokenizers.video import clip_to_array

VIDEO_SUFFIXES = frozenset({".gif", ".npy"})
"""Suffixes of the files that `read_clip` reads."""


def read_clip(path: Path, channels: int = 3) -> NDArray[np.uint8]:
    """Read a clip as pixels with 8 bits per channel.

    Args:
        path: An animated GIF, or an array (T, H, W) or (T, H, W, channels) in a .npy file.
        channels: 3 for color, 1 for gray. The frames of a GIF are converted.

    Returns:
        uint8 pixels (T, H, W, channels).

    Raises:
        InputError: The file cannot be read, or is not a clip.
    """
    if path.suffix.lower() not in VIDEO_SUFFIXES:
        raise InputError(f"{path}: a clip is expected as an animated GIF (.gif) or as an array (.npy)")
    try:
        if path.suffix.lower() == ".npy":
            return clip_to_array(np.load(path, allow_pickle=False), channels)
        with Image.open(path, formats=("GIF",)) as image:
            return np.stack([to_array(frame, channels) for frame in ImageSequence.Iterator(image)])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except DECODE_ERRORS as error:
        raise InputError(f"{path} cannot be read as a clip: {one_line(error)}") from error
