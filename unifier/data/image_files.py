"""Reader of picture files. The pixels that Pillow returns are compared with the header of the file."""

import struct
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from unifier.data.readers import Archive, read_content
from unifier.data.tiff import COLOR_MAP, TIFF_STARTS, Tiff
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.image import flatten_alpha

PixelArray = NDArray[np.uint8]

IMAGE_SUFFIXES = frozenset(
    {
        *(".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm"),
        *(".tga", ".tif", ".tiff", ".webp"),
    }
)
"""Suffixes of the files that `read_image` reads."""

FORMATS = ("AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
"""Formats that Pillow may read. Other formats are refused, because Pillow starts Ghostscript to read PostScript."""

DECODE_ERRORS = (
    *(OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, EOFError, RuntimeError, MemoryError),
    *(OverflowError, struct.error, zlib.error, Image.DecompressionBombError),
)
"""Errors that Pillow raises for damaged pictures."""


def read_image(path: Path, channels: int = 3, archive: Archive | None = None, size: int | None = None) -> PixelArray:
    """Read a picture as pixels with 8 bits per channel.

    The picture is rotated as its EXIF orientation requires. Transparent pixels are drawn on white.

    Args:
        path: The file.
        channels: 3 for color, 1 for gray.
        archive: An archive. The file is read from this archive if the archive contains `path`.
        size: Maximum length of the longer side in pixels. A larger picture is reduced, with antialiasing.

    Returns:
        uint8 pixels (H, W, channels).

    Raises:
        InputError: The file cannot be read, or the range of its pixel values is unknown.
    """
    content = read_content(path, archive)
    try:
        image = _decode(content, size)
        image = flatten_alpha(image, channels)
        if size is not None:
            image.thumbnail((size, size))
        pixels = np.array(image)
    except UnidentifiedImageError as error:
        raise InputError(f"{path} cannot be read as a picture: its format is unknown; save it as PNG") from error
    except DECODE_ERRORS as error:
        raise InputError(f"{path} cannot be read as a picture: {one_line(error)}") from error
    return pixels.reshape(*pixels.shape[:2], channels)


def _decode(content: bytes, size: int | None) -> Image.Image:
    """Decode a picture to 8 bits per channel, as the header of the file declares the pixels.

    Args:
        content: The bytes of the file.
        size: Maximum length of the longer side in pixels. A large JPEG is decoded at a fraction of its size.
    """
    tiff = Tiff(content) if content[:4] in TIFF_STARTS else None
    if tiff is not None:
        tiff.check()
        if tiff.is_misread:
            return ImageOps.exif_transpose(tiff.decode())
    with Image.open(BytesIO(content), formats=FORMATS) as file:
        if size is not None:
            file.draft(None, (2 * size, 2 * size))  # A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size.
        box = file.tile[0][1] if file.format == "GIF" and file.tile else None
        file.load()
        # Invalid EXIF data raise many types of exceptions. The pixels can still be read.
        with suppress(Exception):
            ImageOps.exif_transpose(file, in_place=True)
        image: Image.Image = file if box is None else _with_background(file, box)
        if tiff is not None:
            image = _correct_palette(image, tiff)
        if file.format == "JPEG2000":
            image = _correct_jpeg2000(image, content)
        if image.mode == "F" or (image.mode == "I" and file.format == "TIFF"):
            raise InputError(
                f"pixels of mode {image.mode} have no known range: save the picture with 8 or 16 bits per channel"
            )
        if file.format == "PNG" and content[24] in (2, 4) and isinstance(file.info.get("transparency"), int):
            # Pillow scales the gray values to 8 bits, but not the gray value that means transparent.
            file.info["transparency"] *= 255 // (2 ** content[24] - 1)
        # Pillow's own conversion of 16-bit gray to 8 bits is wrong, because it keeps only the low byte.
        if image.mode.startswith("I"):
            image = _to_eight_bits(image)
        if file.format == "TGA":
            image = _correct_tga_alpha(image, content)
        if file.format in ("BMP", "DIB", "TGA"):
            image = _without_empty_alpha(image)
    return image


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Convert a gray picture of 16 bits to mode L, or to mode LA if one gray value means transparent."""
    levels = np.asarray(image).clip(0, 65535)
    gray = Image.fromarray((levels / 257).round().astype(np.uint8))
    if "transparency" in image.info:
        gray.putalpha(Image.fromarray(np.where(levels == image.info["transparency"], 0, 255).astype(np.uint8)))
    return gray


def _with_background(image: Image.Image, box: tuple[int, int, int, int] | None) -> Image.Image:
    """Give the pixels outside the first frame of a GIF the background color. Pillow uses the first color."""
    if box in (None, (0, 0, *image.size)) or "transparency" in image.info or image.mode not in ("L", "P"):
        return image
    filled = image.copy()
    filled.paste(image.info.get("background", 0), (0, 0, *image.size))
    filled.paste(image.crop(box), box)
    return filled


def _correct_palette(image: Image.Image, tiff: Tiff) -> Image.Image:
    """Use the palette of a TIFF picture as 8-bit colors if no color exceeds 255. Pillow expects 16-bit colors.

    Old programs wrote such palettes. libtiff also accepts them.
    """
    colors = tiff.values(COLOR_MAP)
    if image.mode == "P" and colors and max(colors) < 256:
        image.putpalette(np.array(colors, np.uint8).reshape(3, -1).T.tobytes())
    return image


def _without_empty_alpha(image: Image.Image) -> Image.Image:
    """Remove an alpha channel that is 0 everywhere. Many programs write such a channel for opaque pictures."""
    if "A" in image.getbands() and image.getchannel("A").getextrema() == (0, 0):
        return _without_alpha(image)
    return image


def _without_alpha(image: Image.Image) -> Image.Image:
    """Return the colors of a picture without its transparency."""
    return image.convert("RGBA" if image.mode in ("P", "PA") else image.mode).convert(
        "L" if image.mode in ("L", "LA") else "RGB"
    )


def _correct_tga_alpha(image: Image.Image, content: bytes) -> Image.Image:
    """Use the alpha channel of a TGA picture only if the file declares an alpha channel.

    Byte 17 of the header holds the number of alpha bits. The extension area may declare that the values of the alpha
    channel are undefined, or that the colors are already multiplied by alpha. Source: Truevision TGA, version 2.0.
    """
    declared, kind = content[17] & 15, _tga_alpha_kind(content)
    if declared == 0 or kind in (0, 1, 2):
        return _without_alpha(image)
    if content[16] == 16 and image.mode == "RGBA":  # Pillow reads the single alpha bit with the opposite meaning.
        image.putalpha(ImageOps.invert(image.getchannel("A")))
    if kind == 4 and image.mode == "RGBA":
        return Image.frombytes("RGBa", image.size, image.tobytes()).convert("RGBA")
    return image


def _tga_alpha_kind(content: bytes) -> int | None:
    """Return the type of alpha in the extension area of a TGA file, or None if the file has no extension area."""
    if content[-18:-2] != b"TRUEVISION-XFILE":
        return None
    start = int.from_bytes(content[-26:-22], "little")
    return content[start + 494] if 0 < start < len(content) - 494 else None


def _correct_jpeg2000(image: Image.Image, content: bytes) -> Image.Image:
    """Scale the pixels of a JPEG 2000 picture with under 8 bits, because Pillow only shifts the bits to the left.

    The depths are in the image size marker of ISO/IEC 15444-1, section A.5.1. Raises InputError for deep color, because
    Pillow's conversion to 8 bits turns white into black there, and if the channels have different depths.
    """
    start = content.find(b"\xff\x4f\xff\x51")
    channels = int.from_bytes(content[start + 40 : start + 42]) if start >= 0 else 0
    depths = {(byte & 0x7F) + 1 for byte in content[start + 42 : start + 42 + 3 * channels : 3]}
    depth = max(depths, default=8)
    if len(depths) > 1 or (depth > 8 and not image.mode.startswith("I")):
        raise InputError(f"a JPEG 2000 picture with {', '.join(map(str, depths))} bits per channel: save it as PNG")
    if depth >= 8:
        return image
    scale = 1 if image.mode == "P" else 255 / (2**depth - 1)
    return image.point([round((value >> 8 - depth) * scale) for value in range(256)] * len(image.getbands()))
