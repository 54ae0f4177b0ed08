"""Generated pictures with scattered pieces of clothing, whose boxes are known exactly."""

from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from unifier.data.dataset import Examples, open_split
from unifier.data.inputs import ImageReader
from unifier.data.source import SPLITS, Example, ScoreRange, SplitName
from unifier.datasets.mnist import MNIST
from unifier.heads.detection import Boxes
from unifier_tokenizers.errors import check_choice

SIDE, MAX_CLOTHES = 84, 4
"""The side of a picture in pixels, and the largest number of pieces of clothing in a picture."""

NUM_PICTURES: dict[SplitName, int] = {"train": 6000, "val": 500, "test": 1000}
"""The number of pictures of each split."""

MIN_BRIGHTNESS = 16
"""The smallest brightness of a pixel that belongs to a piece of clothing."""


@final
class ScatteredClothes:
    """7,500 generated pictures (84, 84) in uint8 with one to four pieces of clothing of Fashion-MNIST on black.

    The pieces do not overlap by more than a few pixels, because each lies in another cell of a grid of 3 x 3, moved by
    up to 7 pixels. A picture depends only on its split and its number. The target is a `Boxes` with tight boxes.
    """

    name = "scattered_clothes"
    reader = ImageReader()
    score_range = ScoreRange("ap50", 0.0, None, "generated pictures: no published score")

    def __init__(self, *, data: str | Path | None = None) -> None:
        """Store the folder of Fashion-MNIST (None means the default folder; see `data_folder`)."""
        self._clothes = MNIST("fashion_mnist", data=data)
        self.labels = self._clothes.labels

    @property
    def sha256(self) -> str:
        """The hash of Fashion-MNIST."""
        return self._clothes.sha256

    def split(self, name: SplitName) -> Examples[int]:
        """Return the pictures of one split."""
        check_choice("split", name, SPLITS)
        read = partial(_scatter, self._pictures[name], name, self.labels)
        return Examples(range(NUM_PICTURES[name]), read, partial(_name, name))

    @cached_property
    def _pictures(self) -> dict[SplitName, Any]:
        return {name: open_split(self._clothes, name) for name in SPLITS}


def _scatter(clothes: Any, name: SplitName, names: tuple[str, ...], index: int) -> Example:
    generator = np.random.default_rng((SPLITS.index(name), index))
    picture = np.zeros((SIDE, SIDE), np.uint8)
    cells = generator.permutation(9)[: generator.integers(1, MAX_CLOTHES + 1)]
    corners, labels = list[tuple[int, int, int, int]](), list[int]()
    for cell in cells.tolist():
        piece, label = clothes[int(generator.integers(len(clothes)))]
        pixels: NDArray[np.uint8] = np.asarray(piece).reshape(28, 28)
        row, column = (int(np.clip(28 * k + generator.integers(-7, 8), 0, SIDE - 28)) for k in divmod(cell, 3))
        area = picture[row : row + 28, column : column + 28]
        np.maximum(area, pixels, out=area)
        rows, columns = (np.flatnonzero((pixels >= MIN_BRIGHTNESS).any(axis)) for axis in (1, 0))
        x0, y0, x1, y1 = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        corners.append((column + int(x0), row + int(y0), column + int(x1), row + int(y1)))
        labels.append(names.index(label))
    return Example(picture, Boxes(np.array(corners, float), np.array(labels, np.int64)))


def _name(name: SplitName, index: int) -> str:
    return f"scattered_clothes, {name} {index}"
