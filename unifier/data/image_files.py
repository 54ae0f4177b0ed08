"""Reader of picture files. The pixels that Pillow returns are compared with the header of the file."""

import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from unifier.data.readers import Archive, read_content
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
        raise InputError(f"{path} cannot be read as a picture: its format is unknown") from error
    except DECODE_ERRORS as error:
        raise InputError(f"{path} cannot be read as a picture: {one_line(error)}") from error
    return pixels.reshape(*pixels.shape[:2], channels)


def _decode(content: bytes, size: int | None) -> Image.Image:
    """Decode a picture to 8 bits per channel, as the header of the file declares the pixels.

    Args:
        content: The bytes of the file.
        size: Maximum length of the longer side in pixels. A large JPEG is decoded at a fraction of its size.
    """
    tiff = _read_tiff_header(content) if content[:4] in _TIFF_STARTS else None
    inverted = tiff is not None and tiff.is_white_zero and (tiff.bits > 8 or tiff.samples > 1)
    if tiff is not None and inverted:
        content = tiff.with_black_zero(content)  # Pillow ignores or refuses these inverted pictures.
    with Image.open(BytesIO(content), formats=FORMATS) as file:
        if size is not None:
            file.draft(None, (2 * size, 2 * size))  # A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size.
        file.load()
        # Invalid EXIF data raise many types of exceptions. The pixels can still be read.
        with suppress(Exception):
            ImageOps.exif_transpose(file, in_place=True)
        image: Image.Image = file
        if tiff is not None:
            tiff.check()
        if file.format == "JPEG2000":
            _check_jpeg2000(content, len(image.getbands()))
        if image.mode == "F" or (image.mode == "I" and file.format == "TIFF"):
            raise InputError(
                f"pixels of mode {image.mode} have no known range: save the picture with 8 or 16 bits per channel"
            )
        # Pillow's own conversion of 16-bit gray to 8 bits is wrong, because it keeps only the low byte.
        if image.mode.startswith("I"):
            image = _to_eight_bits(image, maximum=4095 if tiff is not None and tiff.bits == 12 else 65535)
        if inverted:
            image = _invert_gray(image)
        if file.format == "TGA":
            image = _correct_tga_alpha(image, content)
        if file.format in ("BMP", "DIB", "TGA"):
            image = _without_empty_alpha(image)
    return image


def _to_eight_bits(image: Image.Image, maximum: int) -> Image.Image:
    """Convert a gray picture to 8 bits: to mode L, or to mode LA if one gray value means transparent.

    Args:
        image: A picture of mode I or I;16.
        maximum: The value of a white pixel.
    """
    levels = np.asarray(image).clip(0, maximum)
    gray = Image.fromarray((levels * (255 / maximum)).round().astype(np.uint8))
    if "transparency" in image.info:
        gray.putalpha(Image.fromarray(np.where(levels == image.info["transparency"], 0, 255).astype(np.uint8)))
    return gray


def _invert_gray(image: Image.Image) -> Image.Image:
    """Return a gray picture with inverted gray values. The alpha channel does not change."""
    if image.mode == "LA":
        gray, alpha = image.split()
        return Image.merge("LA", (ImageOps.invert(gray), alpha))
    return ImageOps.invert(image.convert("L"))


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


def _check_jpeg2000(content: bytes, channels: int) -> None:
    """Raise InputError for deep color, because Pillow's conversion to 8 bits turns white into black there."""
    start = content.find(b"\xff\x4f\xff\x51")  # The image size marker of ISO/IEC 15444-1, section A.5.1.
    depth = (content[start + 42] & 0x7F) + 1 if 0 <= start < len(content) - 42 else 8
    if depth > 8 and channels > 1:
        raise InputError(f"a JPEG 2000 picture with {depth} bits per color: save the picture as PNG")


_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""First bytes of a TIFF file and of a BigTIFF file, in both byte orders."""

_PHOTOMETRIC, _BITS, _SAMPLES, _PLANAR, _SAMPLE_FORMAT = 262, 258, 277, 284, 339
"""Tags of TIFF 6.0, section 8 and the following sections."""


class _TiffHeader(NamedTuple):
    """Declarations in the first directory of a TIFF file."""

    tags: Mapping[int, tuple[int, int]]
    """Mapping from tag to the position of its first value in the file, and to this value."""
    little_endian: bool

    def value(self, tag: int, default: int) -> int:
        return self.tags[tag][1] if tag in self.tags else default

    @property
    def bits(self) -> int:
        """The number of bits per channel."""
        return self.value(_BITS, 1)

    @property
    def samples(self) -> int:
        """The number of channels, including alpha."""
        return self.value(_SAMPLES, 1)

    @property
    def is_white_zero(self) -> bool:
        """True if 0 means white."""
        return self.value(_PHOTOMETRIC, 1) == 0

    def with_black_zero(self, content: bytes) -> bytes:
        """Return the file with the declaration that 0 means black."""
        at = self.tags[_PHOTOMETRIC][0]
        return content[:at] + (1).to_bytes(2, "little" if self.little_endian else "big") + content[at + 2 :]

    def check(self) -> None:
        """Raise InputError for a layout of which Pillow returns wrong pixels."""
        if self.value(_SAMPLE_FORMAT, 1) == 2:
            raise InputError("its pixels are signed numbers of unknown range: save the picture with unsigned pixels")
        if self.bits > 8 and self.samples > 1 and self.value(_PLANAR, 1) == 2:
            raise InputError(f"{self.bits} bits per channel in separate planes: save the picture with planes together")


def _read_tiff_header(content: bytes) -> _TiffHeader:
    """Read the first directory of a TIFF or BigTIFF file. Entries beyond the end of the file are left out."""
    order = "little" if content[:2] == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(content[at : at + size], order)

    is_big = b"+" in content[2:4]
    count_size, entry_size, field_size = (8, 20, 8) if is_big else (2, 12, 4)
    start = number(8, 8) if is_big else number(4, 4)
    first = start + count_size
    end = min(first + number(start, count_size) * entry_size, len(content))
    tags: dict[int, tuple[int, int]] = {}
    for at in range(first, end, entry_size):
        width = {1: 1, 3: 2, 4: 4, 16: 8}.get(number(at + 2, 2), 0)  # Bytes of an integer of the entry's type.
        value_at = at + 4 + field_size
        if number(at + 4, field_size) * width > field_size:
            value_at = number(value_at, field_size)
        tags[number(at, 2)] = value_at, number(value_at, width)
    return _TiffHeader(tags, order == "little")
