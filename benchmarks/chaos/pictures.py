"""Pictures in many formats and variants with known pixels. Most are written byte by byte, without an encoder."""

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unifier.data.image_files import read_image
from unifier_tokenizers import InputError

Pixels = NDArray[Any]

HEIGHT, WIDTH = 24, 32

GRAY = np.full((HEIGHT, WIDTH), 40, np.uint8)
"""A bright rectangle on a dark ground, above a ramp of all gray values."""
GRAY[4:14, 6:20] = 220
GRAY[16:] = np.linspace(0, 255, WIDTH)

COLOR = np.stack([GRAY, np.roll(GRAY, 5, 1), 255 - GRAY], 2)

ALPHA = np.full((HEIGHT, WIDTH), 255, np.uint8)
ALPHA[:, :8], ALPHA[:, 8:12] = 0, 128

PALETTE = np.stack([np.arange(256), 255 - np.arange(256), np.arange(256) // 2], 1).astype(np.uint8)

CODESTREAMS = {
    1: (
        "|4;u>04V?f0000W0000O00000000000000W0000O0000000000009620sm3}3;+NC0RRC61ONg5TmT0^2oMk$|6~9q00BdCWnpw>"
        "WFTUBAWv{*Zc0!^M<8}(a&u{KZXhx)H7+#&kN^q*00000DgXihlhvRRP&%g3^I`~}5?@Qd$mEd_LMMxLo&bM^U;o("
    ),
    4: (
        "|4;u>04V?f0000W0000O00000000000000W0000O0000000000009F50sm3}3;+NC0RRC61ONg5TmT0^ASfs>|6~9q00BdCWnpw>"
        "WFTUBAWv{*Zc0!^M<8}(a&u{KZXhx)H7+#&kN^q*00000hyVfqliwu-g<TV7SKlv-XdQ!lJ8Lb%1vu9c*?-"
        "5c(LQ2R5Q*;;XP(Nu$S9;j{ylQtUSvk!sDv{OVbp6Zy#fQy9;dx7m&d|vd@4cHKpl{3;yb8rZt9Z4_lO`d^<VM(4@78F3H<{Z6sO"
        "(Pc~=|7MBVhgvf;i*+$J~w*#"
    ),
}
"""JPEG 2000 codestreams of `GRAY` with 1 and 4 bits, in base 85, because Pillow writes only 8 and 16 bits."""

ORIENTATIONS = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels, -1),
}
"""Functions that return the stored pixels of an upright picture, by EXIF orientation."""


class Picture(NamedTuple):
    """A picture file."""

    name: str
    content: bytes
    pixels: Pixels | None
    """The expected pixels (H, W) or (H, W, 3), or None if the file must be refused."""
    tolerance: float = 2
    """Largest accepted difference of a pixel, or largest accepted mean difference if `lossy`."""
    lossy: bool = False

    def fault(self, folder: Path) -> str | None:
        """Write the file into a folder, read the file, and describe the fault if the result is wrong."""
        path = folder / f"picture{Path(self.name).suffix}"
        path.write_bytes(self.content)
        expected = None if self.pixels is None else self.pixels.reshape(HEIGHT, WIDTH, -1).astype(int)
        try:
            pixels = read_image(path, 1 if expected is not None and expected.shape[2] == 1 else 3).astype(int)
        except InputError as error:
            return None if expected is None else f"{self.name}: refused ({error})"
        if expected is None:
            return f"{self.name}: read, but must be refused"
        if pixels.shape != expected.shape:
            return f"{self.name}: pixels {pixels.shape}, not {expected.shape}"
        error = np.abs(pixels - expected)
        worst = error.mean() if self.lossy else error.max()
        return f"{self.name}: pixels differ by {worst:.1f}" if worst > self.tolerance else None


def on_white(pixels: Pixels, alpha: Pixels = ALPHA) -> Pixels:
    """Return pixels drawn on white."""
    share = (alpha / 255).reshape(*alpha.shape, *[1] * (pixels.ndim - 2))
    return np.round(pixels * share + 255 * (1 - share)).astype(np.uint8)


def with_alpha(pixels: Pixels, alpha: Pixels = ALPHA) -> Pixels:
    """Return pixels with alpha as the last channel."""
    return np.dstack([pixels, alpha])


def scaled(pixels: Pixels, maximum: int) -> tuple[Pixels, Pixels]:
    """Return pixels scaled to 0 to `maximum`, and the 8-bit values of the scaled pixels."""
    values = np.round(pixels / 255 * maximum).astype(np.int64)
    return values, np.round(values / maximum * 255).astype(np.uint8)


def pack(rows: Pixels, bits: int) -> list[bytes]:
    """Return each row of integers (H, N) as packed bits, with the highest bit first."""
    shifts = np.arange(bits - 1, -1, -1)
    return [np.packbits((row[:, None] >> shifts & 1).astype(np.uint8)).tobytes() for row in rows]


def tiff(
    samples: Pixels,
    bits: int,
    photometric: int,
    *,
    order: Literal["<", ">"] = "<",
    compression: int = 1,
    predictor: int = 1,
    planar: bool = False,
    rows_per_strip: int = HEIGHT,
    tile: int = 0,
    fill_order: int = 1,
    big: bool = False,
    tags: Sequence[tuple[int, Sequence[int]]] = (),
) -> bytes:
    """Return a TIFF file of samples (H, W, channels).

    Args:
        samples: The integers to store.
        bits: Number of bits per sample.
        photometric: The tag PhotometricInterpretation.
        order: Byte order of the file.
        compression: 1 for none, 8 for deflate.
        predictor: 2 for differences of neighboring pixels.
        planar: Store the channels in separate planes.
        rows_per_strip: Number of rows per strip.
        tile: Side of a tile, or 0 for strips.
        fill_order: 2 if the lowest bit of a byte comes first.
        big: Write a BigTIFF file.
        tags: Other tags and their values.
    """
    samples = np.atleast_3d(samples).astype(np.int64)
    height, width, channels = samples.shape
    planes = [samples[:, :, k : k + 1] for k in range(channels)] if planar else [samples]
    blocks: list[bytes] = []
    for plane in planes:
        side_y, side_x = (tile, tile) if tile else (rows_per_strip, width)
        for y, x in product(range(0, height, side_y), range(0, width, side_x)):
            block = plane[y : y + side_y, x : x + side_x]
            if tile:
                bottom, right = tile - block.shape[0], tile - block.shape[1]
                block = np.pad(block, ((0, bottom), (0, right), (0, 0)))
            if predictor == 2:
                block = np.diff(block, axis=1, prepend=0) % (1 << bits)
            flat = block.reshape(len(block), -1)
            data = flat.astype(f"{order}u2").tobytes() if bits == 16 else b"".join(pack(flat, bits))
            if fill_order == 2:
                data = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)
            blocks.append(zlib.compress(data) if compression == 8 else data)
    word, count, field, first = ("Q", "Q", 8, 16) if big else ("I", "H", 4, 8)
    starts = np.cumsum([first, *map(len, blocks)]).tolist()
    entries: dict[int, Sequence[int]] = {256: [width], 257: [height], 258: [bits] * channels, 259: [compression]}
    entries |= {262: [photometric], 266: [fill_order], 277: [channels], 284: [1 + planar], 317: [predictor]}
    offsets, sizes = starts[:-1], [len(block) for block in blocks]
    place = {322: [tile], 323: [tile], 324: offsets, 325: sizes} if tile else {273: offsets, 279: sizes}
    entries |= {278: [rows_per_strip]} | place | dict(tags)
    directory, arrays = b"", b""
    arrays_at = starts[-1] + struct.calcsize(count) + (4 + 2 * field) * len(entries) + field
    for tag, values in sorted(entries.items()):
        packed = struct.pack(f"{order}{len(values)}{'I' if tag in place else 'H'}", *values)
        if len(packed) > field:
            packed, arrays = struct.pack(f"{order}{word}", arrays_at + len(arrays)), arrays + packed
        directory += struct.pack(f"{order}HH{word}", tag, 4 if tag in place else 3, len(values)) + packed.ljust(
            field, b"\0"
        )
    name = b"II" if order == "<" else b"MM"
    header = (
        struct.pack(f"{order}2sHHHQ", name, 43, 8, 0, starts[-1])
        if big
        else struct.pack(f"{order}2sHI", name, 42, starts[-1])
    )
    end = struct.pack(f"{order}{word}", 0)
    return header + b"".join(blocks) + struct.pack(f"{order}{count}", len(entries)) + directory + end + arrays


def tiff_cases() -> Iterator[Picture]:
    """Yield TIFF files. Sources: TIFF 6.0; Pillow issues 1789, 4621 and 4804; image-tiff 296; TwelveMonkeys 184."""
    orders: tuple[Literal["<", ">"], ...] = ("<", ">")
    for bits, photometric, order, compression in product((*range(1, 17),), (0, 1, 2), orders, (1, 8)):
        values, pixels = scaled(COLOR if photometric == 2 else GRAY, 2**bits - 1)
        if photometric == 2 and bits in (1, 2, 4):
            continue  # libtiff's decoder refuses these depths of color.
        stored = 2**bits - 1 - values if photometric == 0 else values
        content = tiff(stored, bits, photometric, order=order, compression=compression)
        yield Picture(
            f"{bits} bits, photometric {photometric}, {order}, compression {compression}.tif", content, pixels
        )
    for order, planar, tile, predictor in product(orders, (False, True), (0, 16), (1, 2)):
        layout: dict[str, Any] = {"order": order, "planar": planar, "tile": tile, "predictor": predictor}
        layout |= {"compression": 8 if predictor == 2 else 1, "rows_per_strip": 5}
        for bits, (name, samples, photometric, extra, pixels) in product((8, 16), _alpha_layouts()):
            content = tiff(
                samples.astype(int) * (257 if bits == 16 else 1),
                bits,
                photometric,
                **layout,
                tags=[(338, extra)] if extra else [],
            )
            yield Picture(f"{name} {bits} bits {layout}.tif", content, pixels)
    for bits, photometric, order in product((8, 12, 16), (0, 1), orders):
        values, pixels = scaled(GRAY, 2**bits - 1)
        stored = 2**bits - 1 - values if photometric == 0 else values
        content = tiff(stored, bits, photometric, order=order, big=True, rows_per_strip=5)
        yield Picture(f"BigTIFF {bits} {photometric} {order}.tif", content, pixels)
    for number, store in ORIENTATIONS.items():
        stored = 65535 - store(GRAY).astype(np.int64) * 257
        yield Picture(f"orientation {number}, 0 means white.tif", tiff(stored, 16, 0, tags=[(274, [number])]), GRAY)
    for bits, photometric in product((2, 4, 8, 10, 16), (0, 1)):
        values, pixels = scaled(GRAY, 2**bits - 1)
        stored = 2**bits - 1 - values if photometric == 0 else values
        yield Picture(f"fill order 2, {bits} {photometric}.tif", tiff(stored, bits, photometric, fill_order=2), pixels)
    for scale in (1, 257):
        colors = (PALETTE.T.astype(int) * scale).ravel().tolist()
        yield Picture(f"palette times {scale}.tif", tiff(GRAY, 8, 3, tags=[(320, colors)]), PALETTE[GRAY])
    yield Picture("CMYK.tif", tiff(with_alpha(255 - COLOR, 0 * ALPHA), 8, 5), COLOR)
    yield Picture("CMYK 16.tif", tiff(with_alpha(255 - COLOR, 0 * ALPHA).astype(int) * 257, 16, 5), COLOR)
    yield Picture("uncompressed YCbCr.tif", tiff(COLOR, 8, 6), None)
    yield Picture("signed.tif", tiff(GRAY, 8, 1, tags=[(339, [2])]), None)
    yield Picture("signed 16.tif", tiff(GRAY, 16, 1, tags=[(339, [2])]), None)
    yield Picture("half floats.tif", tiff(GRAY, 16, 1, tags=[(339, [3])]), None)
    yield Picture("thumbnail.tif", tiff(GRAY, 8, 1, tags=[(254, [1])]), None)
    yield Picture("three gray channels.tif", tiff(COLOR, 8, 1), None)
    yield Picture("five deep channels.tif", tiff(with_alpha(COLOR, COLOR[:, :, :2]), 16, 2), None)
    for bits, photometric in product((8, 16), (0, 1)):
        content = tiff(GRAY, bits, photometric, rows_per_strip=8)
        missing = content.replace(struct.pack("<HHI", 273, 4, 3), struct.pack("<HHI", 273, 4, 2))
        yield Picture(f"a missing strip, {bits} {photometric}.tif", missing, None)


def _alpha_layouts() -> Iterator[tuple[str, Pixels, int, list[int], Pixels]]:
    """Yield name, samples, photometric interpretation, extra samples and expected pixels."""
    share = with_alpha(GRAY)[:, :, 1:] / 255
    premultiplied = np.round(COLOR * share).astype(np.uint8)
    yield "gray", GRAY, 1, [], GRAY
    yield "inverted", 255 - GRAY, 0, [], GRAY
    yield "color", COLOR, 2, [], COLOR
    yield "gray and alpha", with_alpha(GRAY), 1, [2], on_white(GRAY)
    yield "inverted gray and alpha", with_alpha(255 - GRAY), 0, [2], on_white(GRAY)
    yield "gray and an unknown channel", with_alpha(GRAY), 1, [0], GRAY
    yield "color and alpha", with_alpha(COLOR), 2, [2], on_white(COLOR)
    yield "color times alpha", with_alpha(premultiplied), 2, [1], on_white(COLOR)
    yield "color and an unknown channel", with_alpha(COLOR), 2, [0], COLOR


def tga(data: bytes, bits: int, descriptor: int, kind: int = 2, palette: bytes = b"", entry_bits: int = 0) -> bytes:
    """Return a TGA file.

    Args:
        data: The pixels, or runs of pixels.
        bits: Number of bits per pixel.
        descriptor: The number of alpha bits, plus 0x20 if the first row is at the top.
        kind: Type of the picture: 1 for a palette, 2 for color, 3 for gray, 10 for color in runs.
        palette: The palette.
        entry_bits: Number of bits of an entry of the palette.
    """
    entries = len(palette) * 8 // entry_bits if palette else 0
    header = struct.pack(
        "<3B2HB4H2B", 0, bool(palette), kind, 0, entries, entry_bits, 0, 0, WIDTH, HEIGHT, bits, descriptor
    )
    return header + palette + data


def tga_cases() -> Iterator[Picture]:
    """Yield TGA files. Sources: Truevision TGA 2.0; DirectXTex issue 359; Pfim 9; Imager 185; ImageSharp 2629."""
    blue_first = COLOR[:, :, ::-1]
    for alpha, descriptor in product((0 * ALPHA, ALPHA), (0x20, 0x28, 0)):
        stored = with_alpha(blue_first, alpha)
        rows = stored if descriptor else stored[::-1]
        expected = on_white(COLOR) if descriptor == 0x28 and alpha.any() else COLOR
        name = f"alpha {alpha.max()}, descriptor {descriptor:#x}"
        yield Picture(f"{name}.tga", tga(rows.tobytes(), 32, descriptor), expected)
        runs = b"".join(b"\x80" + pixel.tobytes() for pixel in rows.reshape(-1, 4))
        yield Picture(f"{name} runs.tga", tga(runs, 32, descriptor, 10), expected)
        gray = with_alpha(GRAY, alpha)
        gray_expected = on_white(GRAY) if descriptor == 0x28 and alpha.any() else GRAY
        yield Picture(
            f"{name} gray.tga", tga((gray if descriptor else gray[::-1]).tobytes(), 16, descriptor, 3), gray_expected
        )
    premultiplied = np.round(COLOR * (ALPHA / 255)[:, :, None]).astype(np.uint8)
    for kind, colors, expected in (
        *((0, COLOR, COLOR), (1, COLOR, COLOR), (2, COLOR, COLOR), (3, COLOR, on_white(COLOR))),
        *((4, premultiplied, on_white(COLOR)),),
    ):
        body = tga(with_alpha(colors[:, :, ::-1]).tobytes(), 32, 0x28)
        extension = bytes(494) + bytes([kind]) + struct.pack("<II", len(body), 0) + b"TRUEVISION-XFILE.\0"
        yield Picture(f"alpha of type {kind}.tga", body + extension, expected)
    yield Picture("24 bits.tga", tga(blue_first.tobytes(), 24, 0x20), COLOR)
    yield Picture("from the bottom.tga", tga(blue_first[::-1].tobytes(), 24, 0), COLOR)
    yield Picture("from the right.tga", tga(blue_first[:, ::-1].tobytes(), 24, 0x30), COLOR)
    yield Picture("gray.tga", tga(GRAY.tobytes(), 8, 0x20, 3), GRAY)
    values, pixels = scaled(COLOR, 31)
    words = (values @ [1024, 32, 1]).astype("<u2")
    for name, bit, descriptor in (("unused bit", 0, 0x20), ("unused bit set", 1, 0x20), ("opaque", 1, 0x21)):
        yield Picture(f"16 bits, {name}.tga", tga((words | bit << 15).tobytes(), 16, descriptor), pixels, 8)
    colors = PALETTE[:, ::-1].tobytes()
    yield Picture("palette.tga", tga(GRAY.tobytes(), 8, 0x20, 1, colors, 24), PALETTE[GRAY])
    for alpha, descriptor in ((0, 0x20), (255, 0x28)):
        entries = np.c_[PALETTE[:, ::-1], np.full(256, alpha, np.uint8)].tobytes()
        yield Picture(f"palette, alpha {alpha}.tga", tga(GRAY.tobytes(), 8, descriptor, 1, entries, 32), PALETTE[GRAY])


def bmp(
    data: bytes,
    bits: int,
    *,
    compression: int = 0,
    masks: bytes = b"",
    header: int = 40,
    top: bool = False,
    palette: bytes = b"",
) -> bytes:
    """Return a BMP file. The rows in `data` begin at the bottom, unless `top` is True."""
    size = (WIDTH, -HEIGHT if top else HEIGHT)
    info = struct.pack("<IiiHHIIiiII", header, *size, 1, bits, compression, len(data), 2835, 2835, 0, 0)
    info = struct.pack("<I4H", 12, *size, 1, bits) if header == 12 else info
    info += masks.ljust(max(header - 40, len(masks)), b"\0") + palette
    start = 14 + len(info)
    return struct.pack("<2sIHHI", b"BM", start + len(data), 0, 0, start) + info + data


def bmp_cases() -> Iterator[Picture]:
    """Yield BMP files. Source: the documentation of BITMAPINFOHEADER and BITMAPV4HEADER."""
    rows, indices = COLOR[::-1, :, ::-1], GRAY[::-1]
    masks = struct.pack("<III", 0xFF0000, 0xFF00, 0xFF)
    yield Picture("24 bits.bmp", bmp(rows.tobytes(), 24), COLOR)
    for alpha in (0, 7, 255):
        stored = with_alpha(rows, np.full_like(GRAY, alpha)).tobytes()
        yield Picture(f"fourth byte {alpha}.bmp", bmp(stored, 32), COLOR)
        yield Picture(f"fourth byte {alpha}, masks.bmp", bmp(stored, 32, compression=3, masks=masks), COLOR)
        without = bmp(stored, 32, compression=3, masks=masks + bytes(4), header=108)
        yield Picture(f"fourth byte {alpha}, no alpha mask.bmp", without, COLOR)
        yield Picture(f"fourth byte {alpha}, header 108.bmp", bmp(stored, 32, header=108), COLOR)
    declared = bmp(with_alpha(rows, ALPHA[::-1]).tobytes(), 32, compression=3, masks=masks + b"\0\0\0\xff", header=108)
    yield Picture("declared alpha.bmp", declared, on_white(COLOR))
    yield Picture("from the top.bmp", bmp(COLOR[:, :, ::-1].tobytes(), 24, top=True), COLOR)
    values, pixels = scaled(COLOR, 31)
    yield Picture("555.bmp", bmp((values @ [1024, 32, 1])[::-1].astype("<u2").tobytes(), 16), pixels, 8)
    words = (values @ [2048, 64, 1])[::-1].astype("<u2").tobytes()
    masks_565 = struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    yield Picture("565.bmp", bmp(words, 16, compression=3, masks=masks_565), pixels, 8)
    entries = np.c_[PALETTE[:, ::-1], np.zeros(256, np.uint8)].tobytes()
    yield Picture("palette.bmp", bmp(indices.tobytes(), 8, palette=entries), PALETTE[GRAY])
    yield Picture("OS/2.bmp", bmp(indices.tobytes(), 8, header=12, palette=PALETTE[:, ::-1].tobytes()), PALETTE[GRAY])
    runs = b"".join(b"".join(bytes([1, value]) for value in row) + b"\0\0" for row in indices) + b"\0\1"
    yield Picture("runs.bmp", bmp(runs, 8, compression=1, palette=entries), PALETTE[GRAY])
    yield Picture("16 colors.bmp", bmp(b"".join(pack(indices >> 4, 4)), 4, palette=entries[:64]), PALETTE[GRAY >> 4])
    black_first, white_first = bytes([0, 0, 0, 0, 255, 255, 255, 0]), bytes([255, 255, 255, 0, 0, 0, 0, 0])
    for name, colors, expected in (("", black_first, GRAY > 127), ("inverted ", white_first, GRAY <= 127)):
        content = bmp(b"".join(pack((indices > 127).astype(int), 1)), 1, palette=colors)
        yield Picture(f"{name}1 bit.bmp", content, expected.astype(np.uint8) * 255)


def png(rows: Sequence[bytes], bits: int, kind: int, **chunks: bytes) -> bytes:
    """Return a PNG file of rows of packed pixels.

    Args:
        rows: The rows.
        bits: Number of bits per channel.
        kind: Color type: 0 for gray, 2 for color, 3 for a palette, 4 for gray and alpha, 6 for color and alpha.
        chunks: Other chunks before the pixels.
    """
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, kind, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [
        (b"IHDR", header),
        *((name.encode(), data) for name, data in chunks.items()),
        (b"IDAT", body),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def png_cases() -> Iterator[Picture]:
    """Yield PNG files. Sources: PNG specification 1.2; Pillow issues 154, 2574 and 5991; zune-image 58."""
    for bits in (1, 2, 4, 8, 16):
        values, pixels = scaled(GRAY, 2**bits - 1)
        rows = pack(values, bits)
        ground = int(values[0, 0])
        yield Picture(f"gray {bits}.png", png(rows, bits, 0), pixels)
        expected = np.where(values == ground, 255, pixels)
        yield Picture(
            f"gray {bits}, a transparent gray.png", png(rows, bits, 0, tRNS=struct.pack(">H", ground)), expected
        )
    for bits in (8, 16):
        scale = 257 if bits == 16 else 1
        for kind, stored, expected in (
            *((2, COLOR, COLOR), (4, with_alpha(GRAY), on_white(GRAY))),
            *((6, with_alpha(COLOR), on_white(COLOR)),),
        ):
            rows = pack(stored.reshape(HEIGHT, -1).astype(int) * scale, bits)
            yield Picture(f"color type {kind}, {bits} bits.png", png(rows, bits, kind), expected)
        ground = struct.pack(">3H", *(COLOR[0, 0].astype(int) * scale).tolist())
        expected = np.where((COLOR[0, 0] == COLOR).all(2)[:, :, None], 255, COLOR)
        rows = pack(COLOR.reshape(HEIGHT, -1).astype(int) * scale, bits)
        yield Picture(f"color {bits}, a transparent color.png", png(rows, bits, 2, tRNS=ground), expected)
    for bits in (1, 2, 4, 8):
        indices = GRAY >> (8 - bits)
        colors = PALETTE[: 2**bits].tobytes()
        yield Picture(f"palette {bits}.png", png(pack(indices, bits), bits, 3, PLTE=colors), PALETTE[indices])
        alpha = np.array([0, 128, *[255] * 254])[indices].astype(np.uint8)
        content = png(pack(indices, bits), bits, 3, PLTE=colors, tRNS=b"\0\x80")
        yield Picture(f"palette {bits} and alpha.png", content, on_white(PALETTE[indices], alpha))
    rows = [row.tobytes() for row in COLOR]
    yield Picture("gamma.png", png(rows, 8, 2, gAMA=struct.pack(">I", 100000)), COLOR)
    yield Picture("significant bits.png", png(rows, 8, 2, sBIT=bytes([5, 6, 5])), COLOR)
    broken = png(rows, 8, 2)
    yield Picture("wrong checksum.png", broken[:60] + bytes([broken[60] ^ 1]) + broken[61:], None)


def pnm_cases() -> Iterator[Picture]:
    """Yield PBM, PGM and PPM files. Source: the manual of Netpbm."""

    def header(magic: str, maximum: int) -> bytes:
        return f"{magic}\n# comment\n{WIDTH} {HEIGHT}\n{maximum}\n".encode()

    for maximum in (1, 100, 255, 1023, 4095, 65535):
        for magic, name, picture in (("P5", "pgm", GRAY), ("P6", "ppm", COLOR)):
            values, pixels = scaled(picture, maximum)
            data = values.astype("u1" if maximum < 256 else ">u2").tobytes()
            yield Picture(f"maximum {maximum}.{name}", header(magic, maximum) + data, pixels)
        values, pixels = scaled(GRAY, maximum)
        text = " ".join(map(str, values.ravel().tolist())).encode()
        yield Picture(f"text {maximum}.pgm", header("P2", maximum) + text, pixels)
    bits = (GRAY > 127).astype(np.uint8)
    yield Picture("bits.pbm", f"P4\n{WIDTH} {HEIGHT}\n".encode() + b"".join(pack(1 - bits, 1)), bits * 255)
    yield Picture("floats.pnm", f"Pf\n{WIDTH} {HEIGHT}\n-1.0\n".encode() + GRAY.astype("<f4").tobytes(), None)


def gif(pixels: Pixels, *, corner: tuple[int, int] = (0, 0), ground: int = 0, transparent: int | None = None) -> bytes:
    """Return a GIF file of indices (H, W), which are stored without compression.

    Args:
        pixels: The indices.
        corner: The column and the row of the upper left pixel.
        ground: Index of the color outside the pixels.
        transparent: Index of the transparent color.
    """
    flat = pixels.ravel().tolist()
    codes = [code for at in range(0, len(flat), 200) for code in (256, *flat[at : at + 200])] + [257]
    bits = "".join(f"{code:09b}"[::-1] for code in codes)
    data = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    blocks = b"".join(bytes([len(data[at : at + 255])]) + data[at : at + 255] for at in range(0, len(data), 255))
    control = b"" if transparent is None else bytes([0x21, 0xF9, 4, 1, 0, 0, transparent, 0])
    frame = struct.pack("<B4HB", 0x2C, *corner, pixels.shape[1], pixels.shape[0], 0)
    screen = struct.pack("<2H3B", WIDTH, HEIGHT, 0xF7, ground, 0)
    return b"GIF89a" + screen + PALETTE.tobytes() + control + frame + b"\x08" + blocks + b"\0\x3b"


def gif_cases() -> Iterator[Picture]:
    """Yield GIF files. Sources: GIF 89a; Pillow issues 4640 and 5755."""
    yield Picture("plain.gif", gif(GRAY), PALETTE[GRAY])
    expected = np.where((GRAY == 40)[:, :, None], 255, PALETTE[GRAY])
    yield Picture("transparent.gif", gif(GRAY, transparent=40), expected)
    part = GRAY[4:14, 6:20]
    for transparent, outside in ((None, PALETTE[7]), (99, 255)):
        expected = np.full_like(COLOR, outside)
        expected[4:14, 6:20] = PALETTE[part]
        content = gif(part, corner=(6, 4), ground=7, transparent=transparent)
        yield Picture(f"small frame, transparent {transparent}.gif", content, expected)


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    """Return a file that Pillow writes."""
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def encoded_cases() -> Iterator[Picture]:
    """Yield files of lossy or complicated encoders. Sources: TwelveMonkeys issue 147; libvips 1283."""
    image, gray, other = Image.fromarray(COLOR), Image.fromarray(GRAY), Image.fromarray(255 - COLOR)
    rgba, best = Image.fromarray(with_alpha(COLOR)), {"quality": 97, "subsampling": 0}
    options: dict[str, dict[str, Any]] = {
        "jpg": {"format": "JPEG", **best},
        "webp": {"format": "WEBP", "lossless": True},
        "avif": {"format": "AVIF", "quality": 100, "subsampling": "4:4:4"},
        "png": {"format": "PNG"},
        "tif": {"format": "TIFF", "compression": "tiff_lzw"},
    }
    for (suffix, chosen), (number, store) in product(options.items(), ORIENTATIONS.items()):
        exif = Image.Exif()
        exif[0x112] = number
        content = saved(Image.fromarray(np.ascontiguousarray(store(COLOR))), **chosen, exif=exif)
        yield Picture(f"orientation {number}.{suffix}", content, COLOR, 3, True)
    cmyk = Image.fromarray(with_alpha(255 - COLOR, 0 * ALPHA), "CMYK")
    jpeg = saved(image, "JPEG", **best)
    for name, content, expected in (
        ("inverted CMYK.jpg", saved(cmyk, "JPEG", **best), COLOR),
        ("progressive.jpg", saved(image, "JPEG", progressive=True, **best), COLOR),
        ("stored as RGB.jpg", saved(image, "JPEG", keep_rgb=True, quality=97), COLOR),
        ("gray.jpg", saved(gray, "JPEG", **best), GRAY),
        ("restart markers.jpg", saved(image, "JPEG", restart_marker_rows=1, **best), COLOR),
        ("bytes after the end.jpg", jpeg + bytes(100) + jpeg, COLOR),
        ("several pictures.jpg", saved(image, "MPO", save_all=True, append_images=[other], **best), COLOR),
        ("several frames.png", saved(image, "PNG", save_all=True, append_images=[other]), COLOR),
        ("several frames.gif", saved(gray, "GIF", save_all=True, append_images=[Image.fromarray(255 - GRAY)]), GRAY),
        ("several frames.webp", saved(image, "WEBP", save_all=True, append_images=[other], lossless=True), COLOR),
        ("interlaced.gif", saved(gray, "GIF", interlace=1), GRAY),
        ("alpha.webp", saved(rgba, "WEBP", lossless=True, exact=True), on_white(COLOR)),
        ("alpha.avif", saved(rgba, "AVIF", quality=100, subsampling="4:4:4"), on_white(COLOR)),
        ("gray.avif", saved(gray, "AVIF", quality=100), GRAY),
        ("limited range.avif", saved(image, "AVIF", quality=100, range="limited", subsampling="4:4:4"), COLOR),
        ("gray.jp2", saved(gray, "JPEG2000"), GRAY),
        ("color.jp2", saved(image, "JPEG2000"), COLOR),
        ("alpha.jp2", saved(rgba, "JPEG2000"), on_white(COLOR)),
        ("deep gray.jp2", saved(Image.fromarray(GRAY.astype(np.uint16) * 257), "JPEG2000"), GRAY),
        ("codestream.jp2", saved(image, "JPEG2000", no_jp2=True), COLOR),
        ("JPEG.tif", saved(image, "TIFF", compression="jpeg", quality=97), COLOR),
    ):
        yield Picture(name, content, expected, 6, True)
    for name in ("group3", "group4", "tiff_ccitt", "packbits"):
        black_and_white = Image.fromarray(GRAY > 127)
        yield Picture(
            f"{name}.tif", saved(black_and_white, "TIFF", compression=name), (GRAY > 127).astype(np.uint8) * 255
        )
    for name, kind in (("picture.ico", "ICO"), ("picture.eps", "EPS"), ("picture.pcx", "PCX"), ("picture.dds", "DDS")):
        yield Picture(f"{name}.png", saved(image, kind), None)


def jpeg2000_cases() -> Iterator[Picture]:
    """Yield JPEG 2000 files with few bits. Sources: ISO/IEC 15444-1; Pillow issues 6194 and 7511; pydicom 2033."""

    def box(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content) + 8) + name + content

    start = box(b"jP  ", b"\r\n\x87\n") + box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
    for bits, text in CODESTREAMS.items():
        codestream, (values, pixels) = base64.b85decode(text), scaled(GRAY, 2**bits - 1)
        yield Picture(f"{bits} bits, no container.jp2", codestream, pixels)
        size = box(b"ihdr", struct.pack(">IIHBBBB", HEIGHT, WIDTH, 1, bits - 1, 7, 0, 0))
        for name, space, more, expected in (
            ("gray", 17, b"", pixels),
            (
                "palette",
                16,
                box(b"pclr", struct.pack(">HB3B", 2**bits, 3, 7, 7, 7) + PALETTE[: 2**bits].tobytes()),
                PALETTE[values],
            ),
        ):
            channels = box(b"cmap", bytes([0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 2])) if more else b""
            header = box(b"jp2h", size + box(b"colr", struct.pack(">3BI", 1, 0, 0, space)) + more + channels)
            yield Picture(f"{bits} bits, {name}.jp2", start + header + box(b"jp2c", codestream), expected)


def cut_cases() -> Iterator[Picture]:
    """Yield files whose end is missing."""
    noise = Image.fromarray(np.random.RandomState(0).randint(0, 256, (100, 150, 3), np.uint8))
    for suffix, kind, options in (
        *(("png", "PNG", {}), ("jpg", "JPEG", {}), ("gif", "GIF", {}), ("bmp", "BMP", {}), ("ppm", "PPM", {})),
        *(("webp", "WEBP", {}), ("avif", "AVIF", {}), ("jp2", "JPEG2000", {}), ("tga", "TGA", {}), ("tif", "TIFF", {})),
        *(("jpg", "JPEG", {"progressive": True}), ("webp", "WEBP", {"lossless": True})),
        *(("tga", "TGA", {"compression": "tga_rle"}), ("tif", "TIFF", {"compression": "tiff_lzw"})),
    ):
        content = saved(noise, kind, **options)
        for share in (0.4, 0.9, 0.995):
            yield Picture(f"cut {share} {options}.{suffix}", content[: int(share * len(content))], None)


def picture_cases() -> Iterator[Picture]:
    """Yield all pictures."""
    for cases in (
        tiff_cases,
        tga_cases,
        bmp_cases,
        png_cases,
        pnm_cases,
        gif_cases,
        jpeg2000_cases,
        encoded_cases,
        cut_cases,
    ):
        yield from cases()
