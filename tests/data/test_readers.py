"""Pictures, sounds, tables and archives are read into one form each. An unreadable file is an error of one line."""

import gzip
import hashlib
import io
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from PIL import Image, ImageOps

from unifier.data import readers
from unifier.data.statistics import max_duration, median_duration
from unifier.datasets.audio_folder import AudioFolder
from unifier_tokenizers import InputError

RED = (200, 30, 60)


@contextmanager
def refused(*parts: str) -> Generator[None]:
    """Expect an InputError of one line that contains these parts."""
    with pytest.raises(InputError) as error:
        yield
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


def red(mode: str) -> Image.Image:
    """Return a red picture, 6 wide and 4 high, in one of Pillow's modes."""
    return Image.new("RGB", (6, 4), RED).convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_pixels(tmp_path: Path, mode: str, channels: int) -> None:
    path = tmp_path / ("picture.tif" if mode == "CMYK" else "picture.png")
    red(mode).save(path)
    pixels = readers.read_image(path, channels)
    assert (pixels.shape, pixels.dtype) == ((4, 6, channels), np.uint8)
    if mode in ("RGB", "RGBA", "CMYK"):
        assert (pixels == np.array(red("L").getpixel((0, 0)) if channels == 1 else RED)).all()


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_become_eight(tmp_path: Path, suffix: str) -> None:
    levels = np.linspace(0, 65535, 24, dtype=np.uint16).reshape(4, 6)
    Image.fromarray(levels).save(tmp_path / f"picture.{suffix}")
    pixels = readers.read_image(tmp_path / f"picture.{suffix}", 1)
    assert np.abs(pixels[:, :, 0] - levels / 257).max() <= 0.5


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (2, 1), (*RED, 0))
    image.putpixel((1, 0), (*RED, 255))
    image.save(tmp_path / "alpha.png")
    assert readers.read_image(tmp_path / "alpha.png")[0].tolist() == [[255] * 3, list(RED)]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, *RED])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=0)
    assert readers.read_image(tmp_path / "palette.png")[0].tolist() == [[255] * 3, list(RED)]
    levels = np.array([[1000, 1001, 65535]], np.uint16)  # The first two are equal in 8 bits.
    Image.fromarray(levels).save(tmp_path / "sixteen.png", transparency=1000)
    assert readers.read_image(tmp_path / "sixteen.png", 1).ravel().tolist() == [255, 4, 255]
    Image.new("LA", (1, 1), (0, 128)).save(tmp_path / "half.png")
    assert abs(int(readers.read_image(tmp_path / "half.png", 1)[0, 0, 0]) - 127) <= 1


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
    assert np.array_equal(readers.read_image(tmp_path / f"rotated.{suffix}", 1)[:, :, 0], UPRIGHT)


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
    assert readers.read_image(tmp_path / "odd.jpg").shape == shape


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_large_picture_is_antialiased(tmp_path: Path, suffix: str, channels: int) -> None:
    path = tmp_path / f"picture.{suffix}"
    checkerboard = 255 * (np.indices((400, 600)).sum(0) % 2).astype(np.uint8)
    Image.fromarray(checkerboard).save(path)
    pixels = readers.read_image(path, channels, size=60)
    assert pixels.shape == (40, 60, channels)
    assert np.abs(pixels.astype(int) - 127).max() < 10
    assert readers.read_image(path, channels, size=1).shape == (1, 1, channels)
    for size in (600, 1000, None):
        assert np.array_equal(readers.read_image(path, channels, size=size), readers.read_image(path, channels))


def test_large_jpeg_is_decoded_at_reduced_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transpose, sizes = ImageOps.exif_transpose, list[tuple[int, int]]()
    record: Any = lambda image, **options: sizes.append(image.size) or transpose(image, **options)  # noqa: E731
    monkeypatch.setattr(ImageOps, "exif_transpose", record)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (1600, 1000), RED).save(tmp_path / "photograph.jpg", exif=exif)
    pixels = readers.read_image(tmp_path / "photograph.jpg", size=50)
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
            readers.read_image(tmp_path / name)
    for mode, value in (("F", 0.5), ("I", 230)):
        Image.new(mode, (2, 2), value).save(tmp_path / f"{mode}.tif")
        with refused(f"{mode}.tif", f"mode {mode}"):
            readers.read_image(tmp_path / f"{mode}.tif")


@pytest.mark.parametrize("error", [RuntimeError("Failed to decode image"), MemoryError("none left")])
def test_decoder_error_names_the_file(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    Image.new("RGB", (8, 8)).save(tmp_path / "a.avif")
    monkeypatch.setattr("PIL.AvifImagePlugin.AvifImageFile.load", fail)
    with refused("a.avif"):
        readers.read_image(tmp_path / "a.avif")


def wave(channels: int, rate: int = 8000) -> NDArray[np.float64]:
    """Return 0.2 s of sound (samples, channels) with another tone in each channel."""
    time = np.arange(rate // 5) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * 200 * (k + 1) * time) for k in range(channels)], axis=1)


@pytest.mark.parametrize(
    ("suffix", "subtype", "error"),
    [
        *[("wav", "PCM_U8", 2**-7), ("wav", "PCM_16", 2**-15), ("wav", "PCM_24", 2**-22), ("wav", "PCM_32", 2**-22)],
        *[("wav", "FLOAT", 1e-7), ("wav", "DOUBLE", 1e-7), ("flac", "PCM_16", 2**-15), ("au", "PCM_16", 2**-15)],
        *[("aiff", "PCM_16", 2**-15), ("ogg", "VORBIS", 0.1)],
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_sound_keeps_samples_channels_and_rate(
    tmp_path: Path, suffix: str, subtype: str, error: float, channels: int
) -> None:
    path, samples = tmp_path / f"sound.{suffix}", wave(channels)
    soundfile.write(path, samples, 8000, subtype=subtype)
    waveform, rate = readers.read_audio(path)
    assert isinstance(waveform, np.ndarray)
    assert (rate, waveform.dtype) == (8000, np.float32)
    assert waveform.shape == (len(samples),) if channels == 1 else (channels, len(samples))
    assert np.abs(waveform.reshape(channels, -1).T - samples).max() <= error


@pytest.mark.parametrize("fraction", [0.5, 0.9])
@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "aiff"])
def test_truncated_sound_is_refused(tmp_path: Path, suffix: str, fraction: float) -> None:
    path = tmp_path / f"sound.{suffix}"
    soundfile.write(path, wave(1, 44100), 44100)
    path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
    with refused(str(path)):
        readers.read_audio(path)


@pytest.mark.parametrize("promised", [0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_wav_stream_of_unknown_length_is_read(tmp_path: Path, promised: int) -> None:
    path = tmp_path / "stream.wav"
    soundfile.write(path, wave(1), 8000)
    content = bytearray(path.read_bytes())
    content[40:44] = struct.pack("<I", promised)
    path.write_bytes(content)
    assert len(readers.read_audio(path).waveform) == len(wave(1))


def test_unreadable_sounds_are_named(tmp_path: Path) -> None:
    (tmp_path / "zeros.wav").write_bytes(bytes(1000))
    (tmp_path / "text.mp3").write_text("no sound at all")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 8000)
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan]), 8000, subtype="FLOAT")
    soundfile.write(tmp_path / "damaged.wav", np.array([0.0, -3e29]), 8000, subtype="FLOAT")
    for name in ("zeros.wav", "text.mp3", "empty.wav", "nan.wav", "damaged.wav", "none.wav", "none.mp3"):
        with refused(str(tmp_path / name)):
            readers.read_audio(tmp_path / name)
    soundfile.write(tmp_path / "integers.wav", np.array([0.0, -(2.0**31)]), 8000, subtype="FLOAT")
    assert readers.read_audio(tmp_path / "integers.wav").waveform[1] == -(2.0**31)


def flac(samples: int, promised: int) -> bytes:
    """Return a FLAC file whose header has another number of samples. Encoders that write to a pipe leave 0 there."""
    file = BytesIO()
    soundfile.write(file, np.linspace(-0.5, 0.5, samples), 8000, format="FLAC")
    data = bytearray(file.getvalue())
    data[21:26] = (data[21] >> 4 << 36 | promised).to_bytes(5)  # The number is 36 bits of the STREAMINFO block.
    return bytes(data)


def test_flac_with_a_wrong_length_is_named(tmp_path: Path) -> None:
    for name, promised in (("a", 0), ("b", 2**36 - 1), ("c", 8000)):
        (tmp_path / f"{name}.flac").write_bytes(flac(8000, promised))
    for name in ("a.flac", "b.flac"):
        with refused(name):
            readers.read_audio(tmp_path / name)
    assert readers.read_audio(tmp_path / "c.flac").waveform.shape == (8000,)
    (tmp_path / "table.csv").write_text("file,label,split\na.flac,x,test\nc.flac,x,train\nc2.flac,x,val\n")
    source = AudioFolder(tmp_path / "table.csv")
    assert max_duration(source) == median_duration(source) == 1


def mp3(rate: int, channels: int, mode: str) -> tuple[bytes, bytes]:
    """Return 2 s of a soft tone and 2 s of noise as libsndfile writes them, and without the frame with the length."""
    tone = 0.01 * np.sin(0.05 * np.arange(2 * rate))
    noise = np.random.default_rng(0).normal(0, 0.1, 2 * rate)
    samples = np.concatenate([tone, noise])[:, None].repeat(channels, 1)
    file = BytesIO()
    soundfile.write(file, samples, rate, format="MP3", bitrate_mode=mode, compression_level=0.3)
    complete = file.getvalue()
    tag = max(complete.find(b"Xing"), complete.find(b"Info"))
    return complete, complete[complete.find(complete[:2], tag) :]


@pytest.mark.parametrize("rate", [8000, 22050, 44100])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE", "AVERAGE"])
def test_mp3_without_length_is_read_completely(rate: int, channels: int, mode: str, tmp_path: Path) -> None:
    complete, bare = mp3(rate, channels, mode)
    assert readers.add_mp3_length(complete) == complete
    (tmp_path / "a.mp3").write_bytes(b"ID3\3\0\0\0\0\1\1" + bytes(129) + bare + b"TAG" + bytes(125))
    audio = readers.read_audio(tmp_path / "a.mp3")
    samples = audio.waveform.reshape(channels, -1)
    assert audio.sample_rate == rate
    assert 4 * rate <= samples.shape[1] <= 4 * rate + 3 * 1152
    late = samples[:, 3 * rate : 3 * rate + rate // 2]
    assert late.std() == pytest.approx(0.1, rel=0.25)  # The noise is complete and in its place.


def test_statistics_use_the_counted_mp3_length(tmp_path: Path) -> None:
    _, bare = mp3(22050, 1, "VARIABLE")
    for number in range(3):
        (tmp_path / f"{number}.mp3").write_bytes(bare)
    (tmp_path / "table.csv").write_text("file,label\n0.mp3,x\n1.mp3,x\n2.mp3,x\n")
    source, seconds = AudioFolder(tmp_path / "table.csv"), len(readers.read_audio(tmp_path / "0.mp3").waveform) / 22050
    assert soundfile.info(tmp_path / "0.mp3").duration != pytest.approx(seconds, rel=0.05)
    assert (median_duration(source), max_duration(source)) == pytest.approx((seconds, seconds), rel=0.01)


def test_data_without_mp3_frames_stay_unchanged() -> None:
    _, bare = mp3(22050, 1, "VARIABLE")
    for data in (b"", b"ID3", b"no sound at all", bare + b"and unknown bytes", b"\xff\xf3\x00\x00"):
        assert readers.add_mp3_length(data) == data


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.xz"])
def test_archive_files_equal_folder_files(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)).save(folder / "a.png")
    soundfile.write(folder / "b.wav", np.linspace(-0.5, 0.5, 50), 8000)
    (folder / "broken.wav").write_bytes((folder / "b.wav").read_bytes()[:60])
    path = tmp_path / f"packed.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            packed.mkdir("some")
            for file in folder.iterdir():
                packed.write(file, f"some/{file.name}")
    else:
        with tarfile.open(tmp_path / "plain", "w") as packed:
            packed.add(folder, "some")
        plain = (tmp_path / "plain").read_bytes()
        path.write_bytes({"tar": bytes, "tar.gz": gzip.compress, "tar.xz": lzma.compress}[suffix](plain))
    archive = readers.read_archive(path)
    assert archive == {path / "some" / file.name: file.read_bytes() for file in folder.iterdir()}
    assert (readers.read_image(path / "some" / "a.png", archive=archive) == readers.read_image(folder / "a.png")).all()
    inside, outside = readers.read_audio(path / "some" / "b.wav", archive), readers.read_audio(folder / "b.wav")
    assert inside.sample_rate == outside.sample_rate
    assert np.array_equal(inside.waveform, outside.waveform)
    for name in ("broken.wav", "none.wav"):
        with refused(f"packed.{suffix}/some/{name}"):
            readers.read_audio(path / "some" / name, archive)


def test_unreadable_archives_and_texts_are_named(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a", bytes(1000))
    (tmp_path / "cut.zip").write_bytes(content.getvalue()[:500])
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text\n" * 100)[:-12])
    for name in ("page.zip", "page.tar.xz", "plain.gz"):
        (tmp_path / name).write_text("<html>")
    for name in ("cut.zip", "page.zip", "page.tar.xz", ".", "none.zip", "none.tar.xz"):
        with refused(str(tmp_path / name)):
            readers.read_archive(tmp_path / name)
    for name in ("cut.gz", "plain.gz", "none", "."):
        with refused(str(tmp_path / name)):
            readers.read_lines(tmp_path / name)
    (tmp_path / "latin").write_bytes("gut\nschön\n".encode("latin-1"))
    with refused(f"{tmp_path / 'latin'}, line 2", "UTF-8"):
        readers.read_lines(tmp_path / "latin")


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    lines = ["one\u2028still one", "zwei \x85 zwei", "", "четыре"]
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert readers.read_lines(tmp_path / "text") == lines
    (tmp_path / "text.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    assert readers.read_lines(tmp_path / "text.gz") == lines


def test_table_rows_have_lines_and_cells(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('file,label\na.wav,"cat, or dog"\nb.wav,dog\n')
    assert readers.read_labels_table(path, ("label",)) == [
        readers.TableRow(2, {"file": "a.wav", "label": "cat, or dog"}),
        readers.TableRow(3, {"file": "b.wav", "label": "dog"}),
    ]
    with refused("no column fold", "file, label"):
        readers.read_labels_table(path, ("file", "fold"))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("file,label\na,b\nshort\n", ("line 3", "2 cells")),
        ("file,label\na,b\ntoo,long,a row\n", ("line 3", "2 cells")),
        ("file,file\na,b\n", ("two columns file",)),
        ('file,label\n"a,b\n' + 70_000 * "c,d\n", ("line ",)),
    ],
    ids=["short row", "long row", "duplicate column", "unclosed quote"],
)
def test_malformed_table_is_refused(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    (tmp_path / "table.csv").write_text(text)
    with refused(str(tmp_path / "table.csv"), *parts):
        readers.read_labels_table(tmp_path / "table.csv", ())


def test_cells_are_parsed_as_groups_and_numbers() -> None:
    rows = [readers.TableRow(k + 2, {"group": cell}) for k, cell in enumerate(("a", " a ", "", " "))]
    groups = readers.read_groups(rows) or []
    assert (groups[:2], len(set(groups))) == (["a", "a"], 3), "a row without a group is its own group"
    assert readers.read_groups([readers.TableRow(2, {"file": "a"})]) is None
    assert (readers.parse_number(" 1.5 ", "here"), readers.parse_integer("2.0", "here")) == (1.5, 2)
    for cell in ("", "many", "nan", "inf"):
        with refused("here", repr(cell)):
            readers.parse_number(cell, "here")
    with refused("here", "'1.5'"):
        readers.parse_integer("1.5", "here")


def test_hash_depends_on_names_and_contents(tmp_path: Path) -> None:
    for folder, content in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(content)
    a, b, c = (readers.hash_files({"file": tmp_path / folder / "file"}) for folder in "abc")
    assert a == b != c
    line = hashlib.sha256(b"same").hexdigest() + "  file\n"  # as the program sha256sum prints it
    assert a == hashlib.sha256(line.encode()).hexdigest()
    not_utf8 = line.encode().replace(b"file", b"caf\xe9")
    assert (
        readers.hash_files({os.fsdecode(b"caf\xe9"): tmp_path / "a" / "file"}) == hashlib.sha256(not_utf8).hexdigest()
    )
    with refused("none"):
        readers.hash_files({"file": tmp_path / "none"})
    files = {"file": tmp_path / "a" / "file", "gone": tmp_path / "none"}
    expected = hashlib.sha256((line + "unreadable  gone\n").encode()).hexdigest()
    assert readers.hash_all(readers.hash_each(files, unreadable="unreadable")) == expected
