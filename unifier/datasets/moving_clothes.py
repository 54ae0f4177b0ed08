"""Generated clips in which a piece of clothing moves in one of eight directions."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from unifier.data.dataset import Examples, open_split
from unifier.data.inputs import VideoReader
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, SplitName, accuracy_range
from unifier.datasets.mnist import MNIST
from unifier_tokenizers.errors import check_choice

FRAMES, SIDE, PIECE = 8, 28, 14
"""The number of frames, and the sides of a frame and of the piece of clothing in pixels."""

DIRECTIONS = {
    "up": (-1, 0),
    "up right": (-1, 1),
    "right": (0, 1),
    "down right": (1, 1),
    "down": (1, 0),
    "down left": (1, -1),
    "left": (0, -1),
    "up left": (-1, -1),
}
"""Mapping from the name of a direction to its step in rows and columns."""

SPEEDS = (1, 2)
"""The steps from one frame to the next, in pixels along each axis."""


@final
class MovingClothes:
    """Clips (8, 28, 28) in uint8 of a piece of clothing of Fashion-MNIST that moves over black.

    Each picture of Fashion-MNIST is reduced to 14 x 14 pixels, and is in one clip of the same split. Direction, speed
    and start depend only on the seed, the split and the number of the clip. The piece stays inside the frame. The
    target is the direction or the kind of clothing.
    """

    name = "moving_clothes"
    license = "MIT"
    reader = VideoReader(channels=1)

    def __init__(
        self, label: Literal["direction", "kind"] = "direction", *, seed: int = 0, data: str | Path | None = None
    ) -> None:
        """Store the settings.

        Args:
            label: The target, "direction" or "kind".
            seed: The seed of the motions.
            data: The folder of Fashion-MNIST. None means the default folder (see `data_folder`).
        """
        self._clothes = MNIST("fashion_mnist", data=data)
        self._label, self._seed = check_choice("label", label, ("direction", "kind")), seed
        self.labels = tuple(DIRECTIONS) if label == "direction" else self._clothes.labels
        self.score_range = accuracy_range(self.labels, None, NO_SCORE_RANGE)

    @property
    def sha256(self) -> str:
        """The hash of Fashion-MNIST and of the seed."""
        return hashlib.sha256(f"{self._clothes.sha256} {self._seed}".encode()).hexdigest()

    def split(self, name: SplitName) -> Examples[int]:
        """Return the clips of one split, in the order of the pictures."""
        clothes: Any = open_split(self._clothes, check_choice("split", name, SPLITS))
        read = partial(_move, clothes, (self._seed, SPLITS.index(name)), self._label == "direction")
        return Examples(range(len(clothes)), read, clothes.example_id)


def _move(clothes: Any, seed: tuple[int, int], by_direction: bool, index: int) -> Example:
    picture, kind = clothes[index]
    piece = picture.reshape(PIECE, 2, PIECE, 2).mean((1, 3)).round().astype(np.uint8)
    generator = np.random.default_rng((*seed, index))
    direction = [*DIRECTIONS][generator.integers(len(DIRECTIONS))]
    step = np.array(DIRECTIONS[direction]) * generator.choice(SPEEDS)
    way = step * (FRAMES - 1)
    start = generator.integers(np.maximum(-way, 0), SIDE - PIECE - np.maximum(way, 0) + 1)
    clip = np.zeros((FRAMES, SIDE, SIDE), np.uint8)
    for frame, (row, column) in zip(clip, start + step * np.arange(FRAMES)[:, None], strict=True):
        frame[row : row + PIECE, column : column + PIECE] = piece
    return Example(clip, direction if by_direction else kind)
