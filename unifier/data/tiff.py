"""TIFF pictures (TIFF 6.0): the header, and the pixels of layouts that Pillow does not read or reads wrong.

Pillow decompresses each row as a series of bytes. This module then converts the bytes to samples.
"""

import struct
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin

from unifier_tokenizers import InputError

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""First bytes of a TIFF file and of a BigTIFF file, in both byte orders."""

MAX_DECOMPRESSED = 178_956_970
"""Largest number of bytes of the pixels that this module decodes. Pillow decodes at most this number of gray pixels."""

_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _FILL_ORDER = 256, 257, 258, 259, 262, 266
_STRIP_OFFSETS, _ORIENTATION, _SAMPLES, _ROWS_PER_STRIP, _STRIP_SIZES, _PLANAR = 273, 274, 277, 278, 279, 284
_PREDICTOR, COLOR_MAP, _TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_SIZES = 317, 320, 322, 323, 324, 325
_SUBFILE_TYPE, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 254, 338, 339

_DIFFERENCED = frozenset({5, 8, 32946, 34925, 50000})
"""Compressions with which the tag Predictor is used: LZW, deflate, LZMA and Zstandard."""

_LOSSLESS = _DIFFERENCED | {1, 32773}
"""Compressions of bytes: those of `_DIFFERENCED`, none, and PackBits."""

_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}
"""Format characters of the integer types of an entry."""


class _Entry(NamedTuple):
    """An entry of a directory."""

    type: int
    num_values: int
    offset: int
    """Position of the first value in the file."""


@final
class Tiff:
    """The first directory of a TIFF or BigTIFF file. Entries beyond the end of the file are left out."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.order: Literal["<", ">"] = "<" if content[:2] == b"II" else ">"
        self.is_big = b"+" in content[2:4]
        self.entries: Mapping[int, _Entry] = dict(self._read_entries())

    def _read_entries(self) -> Iterator[tuple[int, _Entry]]:
        count_size, entry_size, field = (8, 20, 8) if self.is_big else (2, 12, 4)
        start = self._number(8, 8) if self.is_big else self._number(4, 4)
        first = start + count_size
        for at in range(
            first, min(first + self._number(start, count_size) * entry_size, len(self.content)), entry_size
        ):
            kind, count, value_at = self._number(at + 2, 2), self._number(at + 4, field), at + 4 + field
            size = struct.calcsize(_TYPES.get(kind, "B")) * count
            yield self._number(at, 2), _Entry(kind, count, self._number(value_at, field) if size > field else value_at)

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self.content[at : at + size], "little" if self.order == "<" else "big")

    def values(self, tag: int, limit: int = 1 << 24) -> tuple[int, ...]:
        """Return the integers of an entry, or no integers if the entry is missing, cut or of another type."""
        entry = self.entries.get(tag)
        if entry is None or entry.type not in _TYPES or entry.num_values > limit:
            return ()
        layout = f"{self.order}{entry.num_values}{_TYPES[entry.type]}"
        part = self.content[entry.offset : entry.offset + struct.calcsize(layout)]
        return struct.unpack(layout, part) if len(part) == struct.calcsize(layout) else ()

    def value(self, tag: int, default: int) -> int:
        """Return the first integer of an entry."""
        return next(iter(self.values(tag)), default)

    def check(self) -> None:
        """Raise InputError for a part or a small copy of a picture, signed samples, and uncompressed YCbCr.

        Pillow ignores the range and the subsampling of uncompressed YCbCr.
        """
        if self.value(_SAMPLE_FORMAT, 1) == 2:
            raise InputError("its pixels are signed numbers of unknown range: save the picture with unsigned pixels")
        if self.value(_PHOTOMETRIC, 1) == 6 and self.value(_COMPRESSION, 1) == 1:
            raise InputError("its colors are YCbCr without compression: save the picture as PNG")
        if self.value(_SUBFILE_TYPE, 0) & 1:
            raise InputError("its first page is only a small copy of the picture: save the picture as PNG")
        width, height = self.value(_WIDTH, 0), self.value(_HEIGHT, 0)
        planes = self.value(_SAMPLES, 1) if self.value(_PLANAR, 1) == 2 else 1
        if _TILE_WIDTH in self.entries:
            columns, rows = max(self.value(_TILE_WIDTH, 1), 1), max(self.value(_TILE_HEIGHT, 1), 1)
            found = self.entries.get(_TILE_OFFSETS)
        else:
            columns, rows = max(width, 1), max(self.value(_ROWS_PER_STRIP, height), 1)
            found = self.entries.get(_STRIP_OFFSETS)
        needed = planes * -(-width // columns) * -(-height // rows)
        if found is None or found.num_values < needed:
            raise InputError(
                f"it has {found.num_values if found else 0} of {needed} strips: a part of the file is missing"
            )

    @property
    def is_misread(self) -> bool:
        """True if Pillow refuses the layout of the pixels or returns wrong pixels, and `decode` reads them."""
        bits, samples, photometric = self.value(_BITS, 1), self.value(_SAMPLES, 1), self.value(_PHOTOMETRIC, 1)
        is_integer = self.value(_SAMPLE_FORMAT, 1) == 1 and bits <= 16 and len(set(self.values(_BITS))) == 1
        if not is_integer or photometric > 2 or self.value(_COMPRESSION, 1) not in _LOSSLESS:
            return False
        inverted = photometric == 0 and (bits > 8 or samples > 1)
        deep_alpha = bits == 16 and photometric < 2 and samples > 1
        reversed_bits = bits > 1 and self.value(_FILL_ORDER, 1) == 2
        planar, unknown_header = self.value(_PLANAR, 1) == 2, self.is_big and self.order == ">"
        rare = bits not in (1, 2, 4, 8, 16)
        return inverted or deep_alpha or reversed_bits or planar or unknown_header or rare

    def decode(self) -> Image.Image:
        """Return the picture with 8 bits per channel: of mode L, LA, RGB or RGBA.

        Raises InputError if the picture is too large, or has channels of unknown meaning.
        """
        width, height, bits = self.value(_WIDTH, 0), self.value(_HEIGHT, 0), self.value(_BITS, 1)
        samples, colors = self.value(_SAMPLES, 1), 3 if self.value(_PHOTOMETRIC, 1) == 2 else 1
        alpha = self.value(_EXTRA_SAMPLES, 0)
        if samples - colors not in (0, 1):
            raise InputError(f"{samples} channels of unknown meaning: save the picture as gray, RGB or RGBA")
        if (size := width * height * samples * max(bits, 8) // 8) > MAX_DECOMPRESSED:
            raise InputError(f"its pixels have {size:,} bytes, over {MAX_DECOMPRESSED:,}: save a smaller picture")
        planes = samples if self.value(_PLANAR, 1) == 2 else 1
        pixels = np.concatenate([self._decode_plane(k, planes, samples // planes) for k in range(planes)], axis=2)
        if self.value(_PHOTOMETRIC, 1) == 0:
            pixels[:, :, 0] = 255 - pixels[:, :, 0]
        if samples > colors and not alpha:
            pixels = np.ascontiguousarray(pixels[:, :, :colors])
        mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[pixels.shape[2]]
        if alpha == 1:  # The colors are multiplied by alpha.
            image = Image.frombytes(mode.replace("A", "a"), (width, height), pixels.tobytes()).convert(mode)
        else:
            image = Image.frombytes(mode, (width, height), pixels.tobytes())
        image.getexif()[_ORIENTATION] = self.value(_ORIENTATION, 1)
        return image

    def _decode_plane(self, plane: int, planes: int, samples: int) -> NDArray[np.uint8]:
        """Return the samples (H, W, samples) of a plane, scaled to 8 bits.

        Args:
            plane: Index of the plane.
            planes: Number of planes.
            samples: Number of channels in each plane.
        """
        width, bits, tile_width = self.value(_WIDTH, 0), self.value(_BITS, 1), self.value(_TILE_WIDTH, 0)
        file = BytesIO(self._with_byte_rows(plane, planes, samples * bits))
        with TiffImagePlugin.TiffImageFile(file) as image:
            rows = np.array(image)
        if self.value(_FILL_ORDER, 1) == 2 and self.value(_COMPRESSION, 1) == 1:
            rows = np.packbits(np.unpackbits(rows, axis=1), axis=1, bitorder="little")
        predicted = self.value(_PREDICTOR, 1) == 2 and self.value(_COMPRESSION, 1) in _DIFFERENCED
        if predicted and bits not in (8, 16):
            raise InputError(f"differences of pixels with {bits} bits: save the picture without the TIFF predictor")
        pixels = np.empty((len(rows), width, samples), np.uint8)
        for row, packed in zip(pixels, rows, strict=True):
            values = _unpack(packed, bits, self.order)[: width * samples].reshape(width, samples)
            if predicted:  # Each value is the difference from the pixel before, in each tile.
                step = tile_width or width
                for at in range(0, width, step):
                    values[at : at + step] = values[at : at + step].cumsum(0, dtype=values.dtype)
            row[:] = (values * (255 / (2**bits - 1))).round()
        return pixels

    def _with_byte_rows(self, plane: int, planes: int, pixel_bits: int) -> bytes:
        """Return a TIFF file in which each byte of a plane's rows is a gray pixel. The compressed bytes do not change.

        Args:
            plane: Index of the plane.
            planes: Number of planes.
            pixel_bits: Number of bits of a pixel.
        """
        height = self.value(_HEIGHT, 0)
        width, tile_width = (-(-self.value(tag, 0) * pixel_bits // 8) for tag in (_WIDTH, _TILE_WIDTH))
        tags = {_WIDTH: [width], _HEIGHT: [height], _BITS: [8], _PHOTOMETRIC: [1], _SAMPLES: [1]}
        tags |= {_COMPRESSION: [self.value(_COMPRESSION, 1)], _FILL_ORDER: [self.value(_FILL_ORDER, 1)]}
        if tags[_COMPRESSION] == [1]:  # `_decode_plane` reverses the bits.
            tags[_FILL_ORDER] = [1]
        starts_tag, sizes_tag = _STRIP_OFFSETS, _STRIP_SIZES
        if _TILE_WIDTH in self.entries:
            starts_tag, sizes_tag = _TILE_OFFSETS, _TILE_SIZES
            tags |= {_TILE_WIDTH: [tile_width], _TILE_HEIGHT: [self.value(_TILE_HEIGHT, 0)]}
        else:
            tags[_ROWS_PER_STRIP] = [min(self.value(_ROWS_PER_STRIP, height), height)]
        starts = self.values(starts_tag)
        sizes = self.values(sizes_tag) or [len(self.content)] * len(starts)
        count = len(starts) // planes
        part = slice(plane * count, (plane + 1) * count)
        file = bytearray(8)
        tags[starts_tag], tags[sizes_tag] = [], []
        for start, size in zip(starts[part], sizes[part], strict=True):
            tags[starts_tag].append(len(file))
            file += self.content[start : start + size]
            tags[sizes_tag].append(len(file) - tags[starts_tag][-1])
        return bytes(_with_directory(file, tags))


def _with_directory(file: bytearray, tags: Mapping[int, list[int]]) -> bytearray:
    """Write the header of a little-endian TIFF into the first 8 bytes, and append the directory."""
    struct.pack_into("<4sI", file, 0, TIFF_STARTS[0], len(file))
    arrays, arrays_at = bytearray(), len(file) + 2 + 12 * len(tags) + 4
    file += struct.pack("<H", len(tags))
    for tag, values in sorted(tags.items()):
        value = values[0] if len(values) == 1 else arrays_at + len(arrays)
        file += struct.pack("<HHII", tag, 4, len(values), value)
        if len(values) > 1:
            arrays += struct.pack(f"<{len(values)}I", *values)
    return file + bytes(4) + arrays


def _unpack(row: NDArray[np.uint8], bits: int, order: str) -> NDArray[np.uint16]:
    """Return the unsigned integers of a row of packed bits, or of 16-bit words in the file's byte order."""
    if bits == 16:
        return row[: len(row) // 2 * 2].view(f"{order}u2").astype(np.uint16)
    usable = len(row) * 8 // bits * bits
    weights = (1 << np.arange(bits)[::-1]).astype(np.uint16)
    return np.unpackbits(row)[:usable].reshape(-1, bits) @ weights
