"""Pictures of masks: a mask laid over its picture, and a mask as a PNG file."""

import colorsys
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FILL = 0.35
"""Share of the color of a class in the pixels of the class. The outline has the full color."""


def class_colors(num_classes: int) -> NDArray[np.uint8]:
    """Return a color (C, 3) for each class. The background is black, and the other hues are evenly spaced."""
    hues = [(0.08 + k / max(num_classes - 1, 1)) % 1 for k in range(num_classes - 1)]
    colors = [(0.0, 0.0, 0.0), *(colorsys.hsv_to_rgb(hue, 0.85, 1.0) for hue in hues)]
    return (255 * np.array(colors)).round().astype(np.uint8)


def lay_over(picture: NDArray[np.uint8], mask: NDArray[np.uint8], num_classes: int) -> NDArray[np.uint8]:
    """Return a picture (H, W, 3) with a mask (H, W): each class except the background has a tint and an outline.

    Args:
        picture: The pixels (H, W, C), in gray or color.
        mask: The index of the class of each pixel.
        num_classes: The number of classes.
    """
    base = np.broadcast_to(picture, (*picture.shape[:2], 3)).astype(float)
    colors = class_colors(num_classes)[mask].astype(float)
    padded = np.pad(mask, 1, mode="edge")
    neighbors = (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:])
    is_outline = np.any([neighbor != mask for neighbor in neighbors], axis=0)
    share = np.where(mask > 0, np.where(is_outline, 1.0, FILL), 0.0)[:, :, None]
    return (share * colors + (1 - share) * base).round().astype(np.uint8)


def overlay_of(mask: NDArray[np.uint8], num_classes: int) -> bytes:
    """Return a mask (H, W) as a PNG file with the index of each pixel's class. The background is transparent."""
    image = Image.fromarray(mask)
    image.putpalette(class_colors(num_classes).tobytes())
    image.save(file := BytesIO(), "PNG", optimize=True, transparency=0)
    return file.getvalue()


def save_mask(path: Path, mask: NDArray[np.uint8], num_classes: int) -> None:
    """Write a mask (H, W) as a PNG file whose pixels are the indices of the classes, with a palette of colors."""
    image = Image.fromarray(mask)
    colors = class_colors(num_classes) if num_classes > 2 else np.array([[0] * 3, [255] * 3], np.uint8)
    image.putpalette(colors.tobytes())
    image.save(path, "PNG", optimize=True)
