"""Pictures with the boxes of their objects."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from unifier.figures.mask_figures import class_colors
from unifier.heads.detection import MIN_SCORE, FoundBoxes

SCALE_TO = 320
"""A smaller picture is enlarged to about this many pixels, so that names fit beside boxes."""


def draw_boxes(picture: NDArray[np.uint8], found: FoundBoxes, labels: Sequence[str]) -> NDArray[np.uint8]:
    """Return a picture (H, W, 3), perhaps enlarged, with the boxes and names of its objects.

    Args:
        picture: The pixels (H, W, C), in gray or color.
        found: The objects, of which those with a score of at least `MIN_SCORE` are drawn.
        labels: The names of the classes.
    """
    # The import is here, because it takes a second.
    from torchvision.utils import draw_bounding_boxes

    times = max(1, SCALE_TO // max(picture.shape[:2]))
    enlarged = np.broadcast_to(picture, (*picture.shape[:2], 3)).repeat(times, 0).repeat(times, 1)
    pixels = torch.from_numpy(np.ascontiguousarray(enlarged)).movedim(2, 0)
    is_shown = found.scores >= MIN_SCORE
    corners, classes = found.corners[is_shown] * times, found.labels[is_shown].tolist()
    if not classes:
        return enlarged
    colors = [tuple(color) for color in class_colors(len(labels) + 1)[1:].tolist()]
    names = [str(labels[c]) for c in classes]
    drawn = draw_bounding_boxes(pixels, corners, names, [colors[c] for c in classes], width=2)
    return drawn.movedim(0, 2).numpy()
