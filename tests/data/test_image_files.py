"""Pictures are read as their files declare the pixels."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from benchmarks.chaos.pictures import (
    Picture,
    bmp_cases,
    cut_cases,
    encoded_cases,
    gif_cases,
    jpeg2000_cases,
    png_cases,
    pnm_cases,
    tga_cases,
    tiff_cases,
)
from tests.data.conftest import refused
from unifier.data.image_files import read_image

RED = (200, 30, 60)


def red(mode: str) -> Image.Image:
    """Return a red picture, 6 wide and 4 high, in one of Pillow's modes."""
    return Image.new("RGB", (6, 4), RED).convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_pixels(tmp_path: Path, mode: str, channels: int) -> None:
    path = tmp_path / ("picture.tif" if mode == "CMYK" else "picture.png")
    red(mode).save(path)
    pixels = read_image(path, channels)
    assert (pixels.shape, pixels.dtype) == ((4, 6, channels), np.uint8)
    if mode in ("RGB", "RGBA", "CMYK"):
        assert (pixels == np.array(red("L").getpixel((0, 0)) if channels == 1 else RED)).all()


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_become_eight(tmp_path: Path, suffix: str) -> None:
    levels = np.linspace(0, 65535, 24, dtype=np.uint16).reshape(4, 6)
    Image.fromarray(levels).save(tmp_path / f"picture.{suffix}")
    pixels = read_image(tmp_path / f"picture.{suffix}", 1)
    assert np.abs(pixels[:, :, 0] - levels / 257).max() <= 0.5


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (2, 1), (*RED, 0))
    image.putpixel((1, 0), (*RED, 255))
    image.save(tmp_path / "alpha.png")
    assert read_image(tmp_path / "alpha.png")[0].tolist() == [[255] * 3, list(RED)]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, *RED])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=0)
    assert read_image(tmp_path / "palette.png")[0].tolist() == [[255] * 3, list(RED)]
    levels = np.array([[1000, 1001, 65535]], np.uint16)  # The first two are equal in 8 bits.
    Image.fromarray(levels).save(tmp_path / "sixteen.png", transparency=1000)
    assert read_image(tmp_path / "sixteen.png", 1).ravel().tolist() == [255, 4, 255]
    Image.new("LA", (1, 1), (0, 128)).save(tmp_path / "half.png")
    assert abs(int(read_image(tmp_path / "half.png", 1)[0, 0, 0]) - 127) <= 1


UPRIGHT = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
ROTATIONS: list[Callable[[NDArray[Any]], NDArray[Any]]] = [
    *[lambda pixels: pixels, np.fliplr, lambda pixels: np.rot90(pixels, 2), np.flipud, np.transpose, np.rot90],
    *[lambda pixels: np.rot90(pixels.T, 2), lambda pixels: np.rot90(pixels, -1)],
]
"""Stored pixels of an upright picture, by EXIF orientation from 1 to 8."""


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_picture_is_rotated_by_exif(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(ROTATIONS[orientation - 1](UPRIGHT))
    Image.fromarray(stored).save(tmp_path / f"rotated.{suffix}", exif=exif)
    assert np.array_equal(read_image(tmp_path / f"rotated.{suffix}", 1)[:, :, 0], UPRIGHT)


def exif_block(*entries: tuple[int, int, int, bytes]) -> bytes:
    """Return an EXIF block of entries (tag, type, count, four bytes of the value)."""
    packed = [struct.pack(">HHI4s", *entry) for entry in entries]
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", len(packed)) + b"".join(packed) + bytes(4)


@pytest.mark.parametrize(
    ("exif", "shape"),
    [
        (exif_block((0x0112, 3, 1, b"\0\6\0\0"), (0x0100, 2, 3, b"72\0\0")), (6, 4, 3)),
        (exif_block((0x0112, 3, 1, b"\0\6\0\0"), (0x011A, 2, 3, b"72\0\0")), (6, 4, 3)),
        (b"Exif\0\0no header", (4, 6, 3)),
    ],
    ids=["width is text", "resolution is text", "no header"],
)
def test_invalid_exif_does_not_matter(tmp_path: Path, exif: bytes, shape: tuple[int, ...]) -> None:
    red("RGB").save(tmp_path / "odd.jpg", exif=exif)
    assert read_image(tmp_path / "odd.jpg").shape == shape


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_large_picture_is_antialiased(tmp_path: Path, suffix: str, channels: int) -> None:
    path = tmp_path / f"picture.{suffix}"
    checkerboard = 255 * (np.indices((400, 600)).sum(0) % 2).astype(np.uint8)
    Image.fromarray(checkerboard).save(path)
    pixels = read_image(path, channels, size=60)
    assert pixels.shape == (40, 60, channels)
    assert np.abs(pixels.astype(int) - 127).max() < 10
    assert read_image(path, channels, size=1).shape == (1, 1, channels)
    for size in (600, 1000, None):
        assert np.array_equal(read_image(path, channels, size=size), read_image(path, channels))


def test_large_jpeg_is_decoded_at_reduced_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transpose, sizes = ImageOps.exif_transpose, list[tuple[int, int]]()
    record: Any = lambda image, **options: sizes.append(image.size) or transpose(image, **options)  # noqa: E731
    monkeypatch.setattr(ImageOps, "exif_transpose", record)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (1600, 1000), RED).save(tmp_path / "photograph.jpg", exif=exif)
    pixels = read_image(tmp_path / "photograph.jpg", size=50)
    assert (sizes, pixels.shape) == ([(200, 125)], (50, 31, 3))
    assert np.abs(pixels - np.array(RED)).max() <= 3


def test_unreadable_pictures_are_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for name in ("cut.png", "cut.jpg"):
        Image.fromarray(noise).save(tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:2000])
    (tmp_path / "text.png").write_text("no picture\n")
    (tmp_path / "empty.png").write_bytes(b"")
    for name in ("cut.png", "cut.jpg", "text.png", "empty.png", "none.png"):
        with refused(str(tmp_path / name)):
            read_image(tmp_path / name)
    for mode, value in (("F", 0.5), ("I", 230)):
        Image.new(mode, (2, 2), value).save(tmp_path / f"{mode}.tif")
        with refused(f"{mode}.tif"):
            read_image(tmp_path / f"{mode}.tif")


@pytest.mark.parametrize("error", [RuntimeError("Failed to decode image"), MemoryError("none left")])
def test_decoder_error_names_the_file(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    Image.new("RGB", (8, 8)).save(tmp_path / "a.avif")
    monkeypatch.setattr("PIL.AvifImagePlugin.AvifImageFile.load", fail)
    with refused("a.avif"):
        read_image(tmp_path / "a.avif")


@pytest.mark.parametrize(
    "cases",
    [bmp_cases, cut_cases, gif_cases, jpeg2000_cases, png_cases, pnm_cases, tga_cases]
    + [pytest.param(slow, marks=pytest.mark.slow) for slow in (encoded_cases, tiff_cases)],
)
@pytest.mark.filterwarnings("ignore")
def test_pictures_are_read_as_declared(cases: Callable[[], Iterator[Picture]], tmp_path: Path) -> None:
    assert not [fault for case in cases() if (fault := case.fault(tmp_path))]


def test_postscript_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    monkeypatch.setattr("subprocess.check_call", pytest.fail)
    with refused("a.png"):
        read_image(tmp_path / "a.png")
