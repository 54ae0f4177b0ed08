"""Reading files: every kind of picture, sound and text to one form, and one line for what cannot be read."""

import gzip
import hashlib
import os
import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image, ImageOps

from unifier.data.readers import (
    hash_all,
    hash_each,
    hash_files,
    parse_number,
    read_audio,
    read_image,
    read_labels_table,
    read_lines,
)
from unifier.data.statistics import max_duration, median_duration
from unifier.datasets.audio_folder import AudioFolder
from unifier_tokenizers import InputError

RED = (200, 30, 60)


def one_line(error: pytest.ExceptionInfo[InputError], *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def painted(mode: str) -> Image.Image:
    """A red picture 6 wide and 4 high in a mode of Pillow's."""
    return Image.new("RGB", (6, 4), RED).convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_becomes_rows_columns_channels(tmp_path: Path, mode: str, channels: int) -> None:
    painted(mode).save(tmp_path / "picture.png")
    pixels = read_image(tmp_path / "picture.png", channels)
    assert pixels.shape == (4, 6, channels)
    assert pixels.dtype == np.uint8
    if mode.startswith("RGB"):
        kept = painted("L").getpixel((0, 0)) if channels == 1 else RED
        assert (pixels == np.array(kept)).all()


def test_cmyk(tmp_path: Path) -> None:
    painted("CMYK").save(tmp_path / "picture.tif")
    assert (read_image(tmp_path / "picture.tif") == np.array(RED)).all()


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bits_become_eight(tmp_path: Path, ending: str) -> None:
    levels = np.linspace(0, 65535, 24, dtype=np.uint16).reshape(4, 6)
    Image.fromarray(levels).save(tmp_path / f"picture.{ending}")
    pixels = read_image(tmp_path / f"picture.{ending}", 1)
    assert np.abs(pixels[:, :, 0] - levels / 257).max() <= 0.5


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (2, 1), (*RED, 0))
    image.putpixel((1, 0), (*RED, 255))
    image.save(tmp_path / "alpha.png")
    assert read_image(tmp_path / "alpha.png")[0].tolist() == [[255] * 3, list(RED)]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, *RED])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=0)
    assert read_image(tmp_path / "palette.png")[0].tolist() == [[255] * 3, list(RED)]
    levels = np.array([[1000, 1001, 65535]], np.uint16)  # of which 8 bits could not tell two apart
    Image.fromarray(levels).save(tmp_path / "sixteen.png", transparency=1000)
    assert read_image(tmp_path / "sixteen.png", 1).ravel().tolist() == [255, 4, 255]
    half = Image.new("LA", (1, 1), (0, 128))
    half.save(tmp_path / "half.png")
    assert abs(int(read_image(tmp_path / "half.png", 1)[0, 0, 0]) - 127) <= 1


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright(tmp_path: Path, orientation: int, ending: str) -> None:
    upright = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    turned = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),
        7: np.rot90(upright.T, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(turned)).save(tmp_path / f"turned.{ending}", exif=exif)
    assert np.array_equal(read_image(tmp_path / f"turned.{ending}", 1)[:, :, 0], upright)


def exif(*entries: tuple[int, int, int, bytes]) -> bytes:
    """A block of EXIF with these entries: tag, type, count, and the four bytes of the value."""
    packed = [struct.pack(">HHI4s", *entry) for entry in entries]
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", len(packed)) + b"".join(packed) + bytes(4)


@pytest.mark.parametrize("tag", [0x0100, 0x011A])
def test_a_picture_with_odd_exif_stands_upright_too(tmp_path: Path, tag: int) -> None:
    """Its width, or its resolution, is a text."""
    content = exif((0x0112, 3, 1, b"\0\6\0\0"), (tag, 2, 3, b"72\0\0"))
    painted("RGB").save(tmp_path / "odd.jpg", exif=content)
    assert read_image(tmp_path / "odd.jpg").shape == (6, 4, 3)


def test_exif_that_cannot_be_read_turns_nothing(tmp_path: Path) -> None:
    painted("RGB").save(tmp_path / "odd.jpg", exif=b"Exif\0\0no header")
    assert read_image(tmp_path / "odd.jpg").shape == (4, 6, 3)


@pytest.mark.parametrize("ending", ["png", "jpg", "gif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_large_pictures_are_shrunk_antialiased_and_others_left_alone(
    tmp_path: Path, ending: str, channels: int
) -> None:
    path = tmp_path / f"picture.{ending}"
    board = 255 * (np.indices((400, 600)).sum(0) % 2).astype(np.uint8)  # one pixel black, the next one white
    Image.fromarray(board).save(path)
    pixels = read_image(path, channels, size=60)
    assert pixels.shape == (40, 60, channels)
    assert np.abs(pixels.astype(int) - 127).max() < 10
    assert read_image(path, channels, size=1).shape == (1, 1, channels)
    for size in (600, 1000, None):
        assert np.array_equal(read_image(path, channels, size=size), read_image(path, channels))


def test_a_large_jpeg_is_not_decoded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turned, decoded = ImageOps.exif_transpose, list[tuple[int, int]]()
    monkeypatch.setattr(
        ImageOps, "exif_transpose", lambda image, **way: decoded.append(image.size) or turned(image, **way)
    )
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (1600, 1000), RED).save(tmp_path / "photograph.jpg", exif=exif)
    pixels = read_image(tmp_path / "photograph.jpg", size=50)
    assert decoded == [(200, 125)]
    assert pixels.shape == (50, 31, 3)
    assert np.abs(pixels - np.array(RED)).max() <= 3


def test_pictures_that_cannot_be_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for ending in ("png", "jpg"):
        path = tmp_path / f"cut.{ending}"
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(InputError) as error:
            read_image(path)
        one_line(error, str(path), "cannot be read as a picture")
    (tmp_path / "text.png").write_text("no picture\n")
    (tmp_path / "empty.png").write_bytes(b"")
    for name in ("text.png", "empty.png", "none.png"):
        with pytest.raises(InputError) as error:
            read_image(tmp_path / name)
        one_line(error, name)
    for mode, value in (("F", 0.5), ("I", 230)):
        Image.new(mode, (2, 2), value).save(tmp_path / f"{mode}.tif")
        with pytest.raises(InputError) as error:
            read_image(tmp_path / f"{mode}.tif")
        one_line(error, f"{mode}.tif", f"mode {mode} have no known range")


def wave(channels: int, rate: int = 8000) -> np.ndarray:
    """A fifth of a second of sound, (samples, channels), another tone in every channel."""
    time = np.arange(rate // 5) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * 200 * (k + 1) * time) for k in range(channels)], axis=1)


@pytest.mark.parametrize(
    ("ending", "subtype", "error"),
    [
        ("wav", "PCM_U8", 2**-7),
        ("wav", "PCM_16", 2**-15),
        ("wav", "PCM_24", 2**-22),
        ("wav", "PCM_32", 2**-22),
        ("wav", "FLOAT", 1e-7),
        ("wav", "DOUBLE", 1e-7),
        ("flac", "PCM_16", 2**-15),
        ("au", "PCM_16", 2**-15),
        ("aiff", "PCM_16", 2**-15),
        ("ogg", "VORBIS", 0.1),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_sounds_keep_their_samples_channels_and_rate(
    tmp_path: Path, ending: str, subtype: str, error: float, channels: int
) -> None:
    written = wave(channels)
    path = tmp_path / f"sound.{ending}"
    soundfile.write(path, written, 8000, subtype=subtype)
    waveform, rate = read_audio(path)
    assert isinstance(waveform, np.ndarray)
    assert (rate, waveform.dtype) == (8000, np.float32)
    assert waveform.shape == (len(written),) if channels == 1 else (channels, len(written))
    assert np.abs(waveform.reshape(channels, -1).T - written).max() <= error


@pytest.mark.parametrize("left", [0.5, 0.9])
@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "aiff"])
def test_a_sound_that_was_cut_off_is_refused(tmp_path: Path, ending: str, left: float) -> None:
    path = tmp_path / f"sound.{ending}"
    soundfile.write(path, wave(1, 44100), 44100)
    path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])
    with pytest.raises(InputError) as error:
        read_audio(path)
    one_line(error, str(path), "cannot be read as a sound")


@pytest.mark.parametrize("promised", [0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_streamed_sound_of_unknown_length_is_read(tmp_path: Path, promised: int) -> None:
    path = tmp_path / "streamed.wav"
    soundfile.write(path, wave(1), 8000)
    content = bytearray(path.read_bytes())
    content[40:44] = struct.pack("<I", promised)
    path.write_bytes(content)
    assert len(read_audio(path).waveform) == len(wave(1))


def test_sounds_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "zeros.wav").write_bytes(bytes(1000))
    soundfile.write(tmp_path / "silent.wav", np.zeros(0), 8000)
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan]), 8000, subtype="FLOAT")
    soundfile.write(tmp_path / "damaged.wav", np.array([0.0, -3e29]), 8000, subtype="FLOAT")
    for name in ("zeros.wav", "silent.wav", "nan.wav", "damaged.wav", "none.wav"):
        with pytest.raises(InputError) as error:
            read_audio(tmp_path / name)
        one_line(error, str(tmp_path / name))
    soundfile.write(tmp_path / "integers.wav", np.array([0.0, -(2.0**31)]), 8000, subtype="FLOAT")
    assert read_audio(tmp_path / "integers.wav").waveform[1] == -(2.0**31)


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    lines = ["one\u2028still one", "zwei \x85 zwei", "", "четыре"]
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert read_lines(path) == lines
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    assert read_lines(packed) == lines


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(InputError) as error:
        read_lines(tmp_path / "latin")
    one_line(error, f"{tmp_path / 'latin'}, line 2", "UTF-8")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text\n" * 100)[:-12])
    (tmp_path / "plain.gz").write_text("text\n")
    for name in ("cut.gz", "plain.gz", "none", "."):
        with pytest.raises(InputError) as error:
            read_lines(tmp_path / name)
        one_line(error, str(tmp_path / name))


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('file,label\na.wav,"cat, or dog"\nb.wav,dog\n')
    assert [(row.line, row.cells["label"]) for row in read_labels_table(path, ("label",))] == [
        (2, "cat, or dog"),
        (3, "dog"),
    ]
    with pytest.raises(InputError) as error:
        read_labels_table(path, ("file", "fold"))
    one_line(error, "has no column fold", "its columns are file, label")
    for row in ("short", "too,long,a row"):
        path.write_text(f"file,label\na,b\n{row}\n")
        with pytest.raises(InputError) as error:
            read_labels_table(path, ())
        one_line(error, f"{path}, line 3", "2 cells")
    path.write_text('file,label\n"a,b\n' + 70_000 * "c,d\n")
    with pytest.raises(InputError) as error:
        read_labels_table(path, ())
    one_line(error, f"{path}, line", "field larger than field limit")
    for cell in ("", "many", "nan"):
        with pytest.raises(InputError, match="here: a number is expected"):
            parse_number(cell, "here")


def test_the_hash_is_of_contents_not_of_places(tmp_path: Path) -> None:
    for folder, content in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(content)
    a, b, c = (hash_files({"file": tmp_path / folder / "file"}) for folder in "abc")
    assert a == b != c
    line = hashlib.sha256(b"same").hexdigest() + "  file\n"  # as the tool sha256sum prints it
    assert a == hashlib.sha256(line.encode()).hexdigest()
    with pytest.raises(InputError) as error:
        hash_files({"file": tmp_path / "none"})
    one_line(error, "none")
    some = {"file": tmp_path / "a" / "file", "gone": tmp_path / "none"}
    there = hashlib.sha256((line + "unreadable  gone\n").encode()).hexdigest()
    assert hash_all(hash_each(some, unreadable="unreadable")) == there


def test_a_name_that_is_no_utf8_is_hashed_as_it_is(tmp_path: Path) -> None:
    name = b"caf\xe9"  # as an old system wrote it
    path = tmp_path / os.fsdecode(name)
    path.write_text("same")
    line = hashlib.sha256(b"same").hexdigest().encode() + b"  " + name + b"\n"
    assert hash_files({path.name: path}) == hashlib.sha256(line).hexdigest()


def flac(samples: int, promised: int) -> bytes:
    """A FLAC that promises so many samples; an encoder that writes to a pipe says 0."""
    file = BytesIO()
    soundfile.write(file, np.linspace(-0.5, 0.5, samples), 8000, format="FLAC")
    data = bytearray(file.getvalue())
    data[21:26] = (data[21] >> 4 << 36 | promised).to_bytes(5)  # of STREAMINFO, the last 36 bits before the checksum
    return bytes(data)


def test_a_flac_that_promises_nothing_or_more_than_memory_holds_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(flac(8000, 0))
    (tmp_path / "b.flac").write_bytes(flac(8000, 2**36 - 1))
    (tmp_path / "c.flac").write_bytes(flac(8000, 8000))
    with pytest.raises(InputError, match=r"a\.flac does not say how long it is, as a stream does not: save it as"):
        read_audio(tmp_path / "a.flac")
    with pytest.raises(InputError, match=r"b\.flac cannot be read as a sound"):
        read_audio(tmp_path / "b.flac")
    assert read_audio(tmp_path / "c.flac").waveform.shape == (8000,)
    (tmp_path / "table.csv").write_text("file,label,split\na.flac,x,test\nc.flac,x,train\nc2.flac,x,val\n")
    source = AudioFolder(tmp_path / "table.csv")
    assert max_duration(source) == median_duration(source) == 1


@pytest.mark.parametrize("error", [RuntimeError("Failed to decode image"), MemoryError("none left")])
def test_whatever_a_decoder_raises_names_the_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(*_: object) -> None:
        raise error

    Image.new("RGB", (8, 8)).save(tmp_path / "a.avif")
    monkeypatch.setattr("PIL.AvifImagePlugin.AvifImageFile.load", torn)
    with pytest.raises(InputError, match=r"a\.avif cannot be read as a picture"):
        read_image(tmp_path / "a.avif")
