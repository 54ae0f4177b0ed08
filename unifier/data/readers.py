"""Files in a tar or zip archive, read without unpacking it.

The length of an MP3 without a length field, from its frames (ISO/IEC 11172-3, section 2.4.1, and 13818-3).

libsndfile guesses the length from the bit rate of the first frame, and reads no further: a sound of varying rates would
lose its end, and one of a constant rate seem cut off.

Reading files; one that cannot be read is an InputError that names it."""

import csv
import hashlib
import lzma
import math
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from unifier.data.text_files import LineIndex, open_decompressed
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.image import flatten_alpha

_UNREADABLE = (OSError, EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)


def read_archive(path: Path) -> dict[Path, bytes]:
    """The contents of every file in a .zip or a tar, packed or not, in its order: by `path` / its name in there.

    Raises InputError where the archive cannot be read.
    """
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                return {path / one.filename: archive.read(one) for one in archive.infolist() if not one.is_dir()}
        with tarfile.open(path) as archive:
            streams = ((one.name, archive.extractfile(one)) for one in archive if one.isfile())
            return {path / name: stream.read() for name, stream in streams if stream is not None}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as an archive: {one_line(error)}") from error


_KBITS = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""A second, of layer III, by whether it is MPEG-1."""


_RATES = (44100, 48000, 32000)
"""In Hz, of MPEG-1; half of them are MPEG-2's, a quarter MPEG-2.5's."""


_STATED = (b"Xing", b"Info", b"VBRI")
"""What a first frame says that tells how many follow."""


_AFTER = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
"""What may follow the last frame."""


def add_mp3_length(data: bytes) -> bytes:
    """An MP3 whose first frame says how many follow: itself, where one does so already or they cannot be counted."""
    began = at = _after_tag(data)
    frames = 0
    while size := _size(data, at):
        at, frames = at + size, frames + 1
    rest = data[at:].strip(b"\0")
    first = data[began : began + 64]
    if not frames or any(said in first for said in _STATED) or (rest and not rest.startswith(_AFTER)):
        return data
    # The first one's own header, but for the largest bit rate, so that there is room, and no checksum.
    head = int.from_bytes(first[:4]) & ~(15 << 12) | 14 << 12 | 1 << 16
    mpeg1, mono = head >> 19 & 3 == 3, head >> 6 & 3 == 3
    side = bytes((17 if mono else 32) if mpeg1 else (9 if mono else 17))
    frame = head.to_bytes(4) + side + b"Xing" + (1).to_bytes(4) + frames.to_bytes(4)
    return data[:began] + frame.ljust(_size(frame, 0), b"\0") + data[began:]


def _after_tag(data: bytes) -> int:
    """Where the first frame begins, after an ID3v2 tag, whose size is in four groups of seven bits."""
    if data[:3] != b"ID3" or len(data) < 10:
        return 0
    return 10 + sum(byte << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))


def _size(data: bytes, at: int) -> int:
    """The bytes of the frame that begins there; 0 where none does."""
    head = int.from_bytes(data[at : at + 4])
    version, layer, kbits, rate = head >> 19 & 3, head >> 17 & 3, head >> 12 & 15, head >> 10 & 3
    if head >> 21 != 0x7FF or version == 1 or layer != 1 or kbits in (0, 15) or rate == 3:
        return 0
    mpeg1 = version == 3
    hertz = _RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    return (144 if mpeg1 else 72) * 1000 * _KBITS[mpeg1][kbits] // hertz + (head >> 9 & 1)


_JPEG = (".jfif", ".jpe", ".jpeg", ".jpg")


IMAGE_SUFFIXES = frozenset(
    {*_JPEG, ".avif", ".bmp", ".gif", ".jp2", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"}
)
"""The endings of the files that `read_picture` reads."""


AUDIO_SUFFIXES = frozenset(
    {".aif", ".aifc", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".w64", ".wav", ".wave"}
)
"""The endings of the files that are sounds in a folder; `read_sound` reads more."""


PixelArray = NDArray[np.uint8]


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text, as `Lines` are; raises InputError, naming file and line, where one is no UTF-8."""
    texts: list[str] = []
    for number, line in enumerate(LineIndex(open_decompressed(path)), start=1):
        try:
            texts.append(line.decode())
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error
    return texts


class TableRow(NamedTuple):
    """A row of a table."""

    line: int
    """Its line in the file, from 1; the header is the first."""
    cells: dict[str, str]
    """Its cells by the name of their column."""


def read_labels_table(path: Path, columns: Sequence[str]) -> list[TableRow]:
    """The rows of a CSV file that has at least these columns, all rows as wide as the header.

    Raises InputError that names the columns there are, one that is there twice, or the line that is too short or long.
    """
    table = csv.DictReader(line + "\n" for line in read_lines(path))
    there = list(table.fieldnames or [])
    if lacking := [column for column in columns if column not in there]:
        raise InputError(f"{path} has no column {', '.join(lacking)}; its columns are {', '.join(there) or 'none'}")
    if twice := next((column for column in there if column and there.count(column) > 1), None):
        raise InputError(f"{path} has two columns {twice}: rename or remove one; its columns are {', '.join(there)}")
    rows: list[TableRow] = []
    try:
        for cells in table:
            if None in cells or None in cells.values():
                raise InputError(
                    f"{path}, line {table.line_num}: {len(there)} cells are expected, as in the first line"
                )
            rows.append(TableRow(table.line_num, cells))
    except csv.Error as error:  # a quotation mark that is never closed makes the rest of the file one cell
        raise InputError(f"{path}, line {table.line_num}: {error}") from error
    return rows


def read_groups(rows: Sequence[TableRow]) -> list[str] | None:
    """The cells of the column group without spaces around them, an empty one as a group of its own.

    None where there is no such column.
    """
    if not rows or "group" not in rows[0].cells:
        return None
    return [row.cells["group"].strip() or f" {row.line}" for row in rows]  # a name that no stripped cell has


def parse_number(cell: str, location: str) -> float:
    """A cell of a table as a finite number; `place` names its file and line in the InputError."""
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{location}: a number is expected, not {cell!r}")
    return number


def parse_integer(cell: str, location: str) -> int:
    """A cell of a table as a whole number; `place` names its file and line in the InputError."""
    number = parse_number(cell, location)
    if number != int(number):
        raise InputError(f"{location}: a whole number is expected, not {cell!r}")
    return int(number)


_UNDECODABLE = (
    *(OSError, SyntaxError, ValueError, EOFError, RuntimeError, MemoryError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)
"""What Pillow's decoders raise."""


Archive = Mapping[Path, bytes]
"""The contents of files that lie in an archive, by the paths that stand for them."""


def read_image(path: Path, channels: int = 3, archive: Archive | None = None, size: int | None = None) -> PixelArray:
    """A picture as uint8 H x W x `channels`, color (3) or gray (1), upright as its EXIF orientation says.

    Transparency is laid on white; 16 bits become 8, and pixels of more or of fractions are refused. What is in
    `packed` is read from there. One whose longer side is above `size` pixels is shrunk to it, antialiased.
    """
    try:
        # From a stream, since Pillow maps an uncompressed TIFF of a path and scrambles one that is to be turned.
        with (
            BytesIO(archive[path]) if archive and path in archive else path.open("rb") as stream,
            Image.open(stream) as file,
        ):
            if size is not None:
                file.draft(None, (2 * size, 2 * size))  # a JPEG is decoded at an eighth to a half, where that suffices
            file.load()
            with suppress(Exception):  # Pillow raises whatever it stumbles over, and the pixels are none the worse
                ImageOps.exif_transpose(file, in_place=True)
            image: Image.Image = file
            if image.mode == "F" or (image.mode == "I" and file.format == "TIFF"):
                raise InputError(f"pixels of mode {image.mode} have no known range; save it with 8 or 16 bits")
            if image.mode.startswith("I"):  # 16-bit gray, of which Pillow's own conversion keeps the low byte
                image = _eight_bits(image)
            image = flatten_alpha(image, channels)
            if size is not None:
                image.thumbnail((size, size))
            pixels = np.array(image)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnidentifiedImageError as error:
        raise InputError(f"{path} cannot be read as a picture: it is of no kind that is known") from error
    except _UNDECODABLE as error:
        raise InputError(f"{path} cannot be read as a picture: {one_line(error)}") from error
    return pixels.reshape(*pixels.shape[:2], channels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit gray as L, or as LA where one of its values is transparent."""
    levels = np.asarray(image).clip(0, 65535)
    gray = Image.fromarray((levels / 257).round().astype(np.uint8))
    if "transparency" in image.info:
        gray.putalpha(Image.fromarray(np.where(levels == image.info["transparency"], 0, 255).astype(np.uint8)))
    return gray


_CUT = re.compile(r"^ *(?:data|SSND) *: *(\d+) \(should be (\d+)\)", re.MULTILINE)


_UNKNOWN_SIZE = 0x7FFFF000  # so much, or more, a program promises that does not know the length of its stream


UNKNOWN_FRAMES = 2**62
"""libsndfile says that a FLAC has so many samples, or more, where that does not say how many."""


MAX_AMPLITUDE = 2.0**31
"""A sample beyond this is damaged: full scale is 1, or in floats that were integers once what 32 bits hold."""


def open_audio(path: Path, archive: Archive | None = None) -> soundfile.SoundFile:
    """A sound's file, or what is in `packed` of that name; of an MP3 with the length that its frames tell."""
    known = archive[path] if archive and path in archive else None
    if path.suffix.lower() == ".mp3":
        known = add_mp3_length(path.read_bytes() if known is None else known)
    return soundfile.SoundFile(path if known is None else BytesIO(known))


def read_audio(path: Path, archive: Archive | None = None) -> Audio:
    """A sound as float32 (samples,) where it has one channel, else (channels, samples), at its own rate in Hz.

    A file that was cut off is refused, though its beginning could be read. What is in `packed` is read from there.
    """
    try:
        with open_audio(path, archive) as file:
            promised, log, rate = file.frames, file.extra_info, file.samplerate
            if promised >= UNKNOWN_FRAMES:
                raise InputError(f"{path} does not say how long it is, as a stream does not: save it as a file")
            samples = np.asarray(file.read(dtype="float32", always_2d=True), np.float32)
    except (soundfile.LibsndfileError, OSError, MemoryError) as error:
        reason = one_line(error) if (archive and path in archive) or path.exists() else "no such file"
        raise InputError(f"{path} cannot be read as a sound: {reason}") from error
    # libsndfile reads what is left of a WAV, AIFF or Ogg file, and only its log tells.
    cut = _CUT.search(log)
    short = cut is not None and int(cut[1]) < _UNKNOWN_SIZE and int(cut[2]) < 0.99 * int(cut[1])
    if short or "ended unexpectedly" in log or len(samples) < promised:
        raise InputError(f"{path} cannot be read as a sound: the file is cut off")
    if not samples.size:
        raise InputError(f"{path} cannot be read as a sound: it has no samples")
    if not -MAX_AMPLITUDE <= samples.min() <= samples.max() <= MAX_AMPLITUDE:
        raise InputError(f"{path} cannot be read as a sound: it has samples that are not numbers, or beyond any sound")
    return Audio(samples[:, 0].copy() if samples.shape[1] == 1 else np.ascontiguousarray(samples.T), rate)


def hash_each(files: Mapping[str, Path], *, unreadable: str | None = None) -> dict[str, str]:
    """SHA-256 of each file's contents, by its name.

    A file that cannot be read raises InputError, or has the word `unreadable` for its hash.
    """
    hashes: dict[str, str] = {}
    for name, path in files.items():
        try:
            with path.open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            if unreadable is None:
                raise InputError(f"{path} cannot be read: {one_line(error)}") from error
            hashes[name] = unreadable
    return hashes


def hash_all(hashes: Mapping[str, str]) -> str:
    """SHA-256 over names and contents, in the order given: what one data set was, wherever its folder stood."""
    lines = "".join(f"{own}  {name}\n" for name, own in hashes.items())
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def hash_files(files: Mapping[str, Path]) -> str:
    """`hash_all` of files; one that cannot be read raises InputError."""
    return hash_all(hash_each(files))
