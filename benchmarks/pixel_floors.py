"""Measure simple codes of small gray pictures: `python -m benchmarks.pixel_floors --data DIR`.

A language model of pixels should need fewer bits per pixel of the test split than every one of these codes.
"""

import argparse
import io
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unifier.data.source import use_data_folder
from unifier.datasets import create_image_dataset, independent_pixel_nats
from unifier.datasets.gray_pictures import encode_pixels
from unifier_tokenizers import PixelTokenizer

GRAYS = 16
"""The number of grays, which 4 bits per pixel can name."""


def floors(data: str, side: int) -> Iterator[tuple[str, float]]:
    """Yield the name and the bits per pixel of each code."""
    tokenizer, source = PixelTokenizer(8, side=side, grays=GRAYS), create_image_dataset(data)
    yield "each pixel by its own histogram of train, plus 1", independent_pixel_nats(source, tokenizer) / math.log(2)
    pictures = tokenizer.to_pixels(encode_pixels(source, "test", tokenizer))
    yield from png_floors(pictures)


def png_floors(pictures: NDArray[np.uint8]) -> Iterator[tuple[str, float]]:
    """Yield the bits per pixel of pictures (B, H, W) as optimized PNG with 4 bits per pixel.

    The data of a picture are the compressed pixels, without the header, the palette and the checksums of chunks.
    """
    files = [png(picture) for picture in pictures]
    bits = 8 / pictures.size
    yield "one PNG per picture, complete files", bits * sum(map(len, files))
    yield "one PNG per picture, only the data", bits * sum(map(data_bytes, files))
    columns = math.isqrt(len(pictures))
    sheet = [np.hstack([*pictures[k : k + columns]]) for k in range(0, len(pictures) // columns * columns, columns)]
    yield (
        f"one PNG of {len(sheet) * columns:,} pictures, the complete file",
        8 * len(png(np.vstack(sheet))) / (len(sheet) * columns * pictures[0].size),
    )


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return the PNG file of grays (H, W) that are multiples of 17."""
    image = Image.fromarray(pixels // 17, "P")
    image.putpalette(np.repeat(np.arange(GRAYS, dtype=np.uint8) * 17, 3).tobytes())
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True, bits=4)
    return file.getvalue()


def data_bytes(file: bytes) -> int:
    """Return the number of bytes in the data chunks (IDAT) of a PNG file."""
    start, size = 8, 0  # A file begins with 8 fixed bytes. A chunk has its length, its name, its bytes and a checksum.
    while start < len(file):
        length, name = int.from_bytes(file[start : start + 4], "big"), file[start + 4 : start + 8]
        size += length * (name == b"IDAT")
        start += length + 12
    return size


def main() -> None:
    """Print the bits and the nats per pixel of each code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", metavar="DIR", help="the folder of data sets")
    parser.add_argument("--set", default="fashion_mnist", help="the pictures (default: fashion_mnist)")
    parser.add_argument("--side", type=int, default=14, help="the height and the width in pixels (default: 14)")
    options = parser.parse_args()
    with use_data_folder(options.data):
        for name, bits in floors(options.set, options.side):
            print(f"{bits:.4f} bits per pixel, {bits * math.log(2):.4f} nats: {name}")


if __name__ == "__main__":
    main()
