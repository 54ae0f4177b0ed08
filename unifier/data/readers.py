"""Readers of pictures, sounds, tables and archives. A file that cannot be read raises an InputError with its name."""

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
from typing import Any, NamedTuple

import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from unifier.data.text_files import LineIndex, open_decompressed
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.image import flatten_alpha

Archive = Mapping[Path, bytes]
"""Contents of the files in an archive.

A file's key is the archive's path, joined with the file's name in the archive.
"""

PixelArray = NDArray[np.uint8]

_JPEG = (".jfif", ".jpe", ".jpeg", ".jpg")

IMAGE_SUFFIXES = frozenset(
    {*_JPEG, ".avif", ".bmp", ".gif", ".jp2", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"}
)
"""Suffixes of the files that `read_image` reads."""

AUDIO_SUFFIXES = frozenset(
    {".aif", ".aifc", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".w64", ".wav", ".wave"}
)
"""Suffixes of the files that are treated as sounds when a folder is searched. `read_audio` can read more formats."""

UNKNOWN_FRAMES = 2**62
"""If a FLAC file does not contain its length, libsndfile returns a number of samples of at least this size."""

MAX_AMPLITUDE = 2.0**31
"""Largest valid sample value. The usual maximum is 1, but some files store 32-bit integers as floats, up to 2^31."""


def read_archive(path: Path) -> dict[Path, bytes]:
    """Return the contents of all files in a .zip archive or a (compressed) tar archive.

    A file's key is `path`, joined with the file's name in the archive. Raises InputError if the archive cannot be read.
    """
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                return {path / info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()}
        with tarfile.open(path) as archive:
            streams = ((member.name, archive.extractfile(member)) for member in archive if member.isfile())
            return {path / name: stream.read() for name, stream in streams if stream is not None}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except _ARCHIVE_ERRORS as error:
        raise InputError(f"{path} cannot be read as an archive: {one_line(error)}") from error


_ARCHIVE_ERRORS = (OSError, EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)
"""Errors that Python raises for damaged archives."""


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file. The file is split into lines as in `LineIndex`.

    Raises InputError if a line is not valid UTF-8. The message contains the file and the line number.
    """
    texts: list[str] = []
    for number, line in enumerate(LineIndex(open_decompressed(path)), start=1):
        try:
            texts.append(line.decode())
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error
    return texts


class TableRow(NamedTuple):
    """A row of a CSV table."""

    line: int
    """Line number of the row in the file. The header is line 1."""
    cells: dict[str, str]
    """Mapping from each column's name to the row's cell in this column."""


def read_labels_table(path: Path, columns: Sequence[str], *, tab_separated: bool = False) -> list[TableRow]:
    """Return the rows of a CSV or TSV file.

    Args:
        path: The file.
        columns: Names of the required columns.
        tab_separated: True for a TSV file. Each line is one row, and quotation marks have no special meaning.

    Raises:
        InputError: A required column is missing, a column occurs twice, or a row and the header differ in length.
    """
    lines = (line + "\n" for line in read_lines(path))
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tab_separated else {}
    table = csv.DictReader(lines, **options)
    header = list(table.fieldnames or [])
    if missing := [column for column in columns if column not in header]:
        raise InputError(f"{path} has no column {', '.join(missing)}; its columns are {', '.join(header) or 'none'}")
    if twice := next((column for column in header if column and header.count(column) > 1), None):
        raise InputError(f"{path} has two columns {twice}: rename or remove one; its columns are {', '.join(header)}")
    rows: list[TableRow] = []
    try:
        for cells in table:
            if None in cells or None in cells.values():
                raise InputError(
                    f"{path}, line {table.line_num}: a row needs {len(header)} cells, as many as the first line has"
                )
            rows.append(TableRow(table.line_num, cells))
    except csv.Error as error:  # If a quotation mark is not closed, the rest of the file becomes one cell.
        raise InputError(f"{path}, line {table.line_num}: {error}") from error
    return rows


def read_groups(rows: Sequence[TableRow]) -> list[str] | None:
    """Return the group of each row, or None if the table has no column `group`.

    White space around a group's name is removed. If the cell is empty, the row forms a group by itself.
    """
    if not rows or "group" not in rows[0].cells:
        return None
    # A name that replaces an empty cell begins with a space. It cannot be equal to a cell, because cells are stripped.
    return [row.cells["group"].strip() or f" {row.line}" for row in rows]


def parse_number(cell: str, location: str) -> float:
    """Return a cell as a finite number.

    Raises InputError if the cell is not a finite number. The message begins with `location`, the cell's file and line.
    """
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{location}: a number is expected, not {cell!r}")
    return number


def parse_integer(cell: str, location: str) -> int:
    """Return a cell as an integer.

    Raises InputError if the cell is not an integer. The message begins with `location`, the cell's file and line.
    """
    number = parse_number(cell, location)
    if number != int(number):
        raise InputError(f"{location}: a whole number is expected, not {cell!r}")
    return int(number)


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
        InputError: The file cannot be read, or its pixels are floats or have more than 16 bits per channel.
    """
    try:
        # If Pillow opens an uncompressed TIFF file by its path, it memory-maps the file, and a rotation then destroys
        # the picture. Pillow does not memory-map an open stream.
        with (
            BytesIO(archive[path]) if archive and path in archive else path.open("rb") as stream,
            Image.open(stream) as file,
        ):
            if size is not None:
                file.draft(None, (2 * size, 2 * size))  # A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size.
            file.load()
            # Invalid EXIF data raise many types of exceptions. The pixels can still be read.
            with suppress(Exception):
                ImageOps.exif_transpose(file, in_place=True)
            image: Image.Image = file
            if image.mode == "F" or (image.mode == "I" and file.format == "TIFF"):
                raise InputError(
                    f"pixels of mode {image.mode} have no known range: save the picture with 8 or 16 bits per channel"
                )
            # Pillow's own conversion of 16-bit gray to 8 bits is wrong, because it keeps only the low byte.
            if image.mode.startswith("I"):
                image = _to_eight_bits(image)
            image = flatten_alpha(image, channels)
            if size is not None:
                image.thumbnail((size, size))
            pixels = np.array(image)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnidentifiedImageError as error:
        raise InputError(f"{path} cannot be read as a picture: its format is unknown") from error
    except _IMAGE_ERRORS as error:
        raise InputError(f"{path} cannot be read as a picture: {one_line(error)}") from error
    return pixels.reshape(*pixels.shape[:2], channels)


_IMAGE_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, RuntimeError, MemoryError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)
"""Errors that Pillow raises for damaged pictures."""


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Convert a 16-bit gray picture to 8 bits: to mode L, or to mode LA if one gray value means transparent."""
    levels = np.asarray(image).clip(0, 65535)
    gray = Image.fromarray((levels / 257).round().astype(np.uint8))
    if "transparency" in image.info:
        gray.putalpha(Image.fromarray(np.where(levels == image.info["transparency"], 0, 255).astype(np.uint8)))
    return gray


def open_audio(path: Path, archive: Archive | None = None) -> soundfile.SoundFile:
    """Open a sound file. If the archive contains `path`, the file is read from the archive.

    The length of an MP3 is computed from its frames.
    """
    content = archive[path] if archive and path in archive else None
    if path.suffix.lower() == ".mp3":
        content = add_mp3_length(path.read_bytes() if content is None else content)
    return soundfile.SoundFile(path if content is None else BytesIO(content))


_TRUNCATION = re.compile(r"^ *(?:data|SSND) *: *(\d+) \(should be (\d+)\)", re.MULTILINE)
"""Pattern of the line that libsndfile writes to its log if the size in a file's header is wrong."""

_STREAM_SIZE = 0x7FFFF000
"""If the size in a header is at least this number of bytes, the file was written as a stream of unknown length."""


def read_audio(path: Path, archive: Archive | None = None) -> Audio:
    """Read a sound without changing its sample rate.

    Args:
        path: The file.
        archive: An archive. The file is read from this archive if the archive contains `path`.

    Returns:
        The sample rate, and float32 samples: (samples,) for one channel, or (channels, samples) for several.

    Raises:
        InputError: The file cannot be read, is empty or truncated, or has a sample that is NaN or too large.
    """
    try:
        with open_audio(path, archive) as file:
            promised, log, rate = file.frames, file.extra_info, file.samplerate
            if promised >= UNKNOWN_FRAMES:
                raise InputError(f"{path} is a stream and does not contain its length: save the sound as a file again")
            samples = np.asarray(file.read(dtype="float32", always_2d=True), np.float32)
    except (soundfile.LibsndfileError, OSError, MemoryError) as error:
        reason = one_line(error) if (archive and path in archive) or path.exists() else "no such file"
        raise InputError(f"{path} cannot be read as a sound: {reason}") from error
    # libsndfile raises no error for a truncated WAV, AIFF or Ogg file. Only its log shows that samples are missing.
    sizes = _TRUNCATION.search(log)
    truncated = sizes is not None and int(sizes[1]) < _STREAM_SIZE and int(sizes[2]) < 0.99 * int(sizes[1])
    if truncated or "ended unexpectedly" in log or len(samples) < promised:
        raise InputError(f"{path} cannot be read as a sound: the end of the file is missing")
    if not samples.size:
        raise InputError(f"{path} cannot be read as a sound: it has no samples")
    if not -MAX_AMPLITUDE <= samples.min() <= samples.max() <= MAX_AMPLITUDE:
        raise InputError(f"{path} cannot be read as a sound: it has samples that are NaN or above 2^31")
    return Audio(samples[:, 0].copy() if samples.shape[1] == 1 else np.ascontiguousarray(samples.T), rate)


_KBITS = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Bit rates of MPEG audio layer III in kbit/s, for MPEG-1 (True) and MPEG-2 (False)."""

_RATES = (44100, 48000, 32000)
"""Sample rates of MPEG-1 in Hz. MPEG-2 has half of these rates, and MPEG-2.5 has a quarter of these rates."""

_LENGTH_TAGS = (b"Xing", b"Info", b"VBRI")
"""Tags in the first frame of a file, if this frame contains the number of frames."""

_TRAILING_TAGS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3")
"""First bytes of the tags that may follow the last frame."""


def add_mp3_length(data: bytes) -> bytes:
    """Add a first frame with the number of frames to an MP3 (ISO/IEC 11172-3, section 2.4.1, and 13818-3).

    Without this number, libsndfile estimates the length from the bit rate of the first frame. If the bit rate varies,
    the estimate may be too short, and the end of the sound is lost. If the bit rate is constant, a complete sound may
    seem truncated. Data that already contain the number, or whose frames cannot be counted, are returned unchanged.
    """
    start = at = _tag_size(data)
    frames = 0
    while size := _frame_size(data, at):
        at, frames = at + size, frames + 1
    rest = data[at:].strip(b"\0")
    first = data[start : start + 64]
    if not frames or any(tag in first for tag in _LENGTH_TAGS) or (rest and not rest.startswith(_TRAILING_TAGS)):
        return data
    # The new frame has the header of the first frame, but no checksum. The new frame has the largest bit rate, because
    # it must be large enough for the tag.
    header = int.from_bytes(first[:4]) & ~(15 << 12) | 14 << 12 | 1 << 16
    mpeg1, mono = header >> 19 & 3 == 3, header >> 6 & 3 == 3
    side_info = bytes((17 if mono else 32) if mpeg1 else (9 if mono else 17))
    frame = header.to_bytes(4) + side_info + b"Xing" + (1).to_bytes(4) + frames.to_bytes(4)
    return data[:start] + frame.ljust(_frame_size(frame, 0), b"\0") + data[start:]


def _tag_size(data: bytes) -> int:
    """Return the size in bytes of the ID3v2 tag at the start of an MP3, or 0 if there is no such tag.

    The tag stores this size in four bytes, with seven bits in each byte.
    """
    if data[:3] != b"ID3" or len(data) < 10:
        return 0
    return 10 + sum(byte << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))


def _frame_size(data: bytes, at: int) -> int:
    """Return the size in bytes of the frame that begins at offset `at`, or 0 if no frame begins there."""
    header = int.from_bytes(data[at : at + 4])
    version, layer, kbits, rate = header >> 19 & 3, header >> 17 & 3, header >> 12 & 15, header >> 10 & 3
    if header >> 21 != 0x7FF or version == 1 or layer != 1 or kbits in (0, 15) or rate == 3:
        return 0
    mpeg1 = version == 3
    hertz = _RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    return (144 if mpeg1 else 72) * 1000 * _KBITS[mpeg1][kbits] // hertz + (header >> 9 & 1)


def hash_each(files: Mapping[str, Path], *, unreadable: str | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file's contents.

    Args:
        files: Mapping from names to files. The result has the same keys.
        unreadable: Value to use for a file that cannot be read. With None, such a file raises an InputError.
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
    """Return one SHA-256 of the names and content hashes of files, in the given order.

    The result does not depend on the folder of the files.
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in hashes.items())
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def hash_files(files: Mapping[str, Path]) -> str:
    """Return one SHA-256 of the names and contents of files. Raises InputError if a file cannot be read."""
    return hash_all(hash_each(files))
