"""Reader of sound files. The samples that libsndfile returns are compared with the header of the file."""

import re
from io import BytesIO
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from unifier.data.mp3 import add_mp3_length, skip_tags
from unifier.data.readers import Archive, read_content
from unifier.files import open_regular
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.errors import one_line

AUDIO_SUFFIXES = frozenset(
    {".aif", ".aifc", ".aiff", ".au", ".caf", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".w64", ".wav", ".wave"}
)
"""Suffixes of the files that are treated as sounds when a folder is searched. `read_audio` can read more formats."""

UNKNOWN_FRAMES = 2**62
"""If a FLAC file does not contain its length, libsndfile reports at least this number of samples."""

AUDIO_FORMATS = frozenset({"AIFF", "AU", "CAF", "FLAC", "MP3", "NIST", "OGG", "RF64", "W64", "WAV", "WAVEX"})
"""Formats that are read. Other formats of libsndfile are refused, because they do not show if their end is missing."""

MAX_AMPLITUDE = 2.0**31
"""Largest valid sample value. The usual maximum is 1, but some files store 32-bit integers as floats, up to 2^31."""

MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 100, 10_000_000
"""Smallest and largest sample rate in Hz. Resampling a sound of another rate would need gigabytes of memory."""

MAX_AUDIO_SAMPLES = 1 << 28
"""Largest number of samples of a sound, summed over its channels. The samples take 1 GB."""

_SOUND_STARTS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b".snd", b"dns.", b"fLaC", b"OggS", b"caff", b"NIST")
"""First bytes of other audio formats. A file that begins with them is not searched for MP3 frames."""

_OGG_START, _OGG_END = 2, 4
"""Flags of the first and the last page of a stream in an Ogg file."""

_BLOCK = 1 << 20
"""Number of samples per channel that are decoded at a time."""


def open_audio(path: Path, archive: Archive | None = None) -> soundfile.SoundFile:
    """Open a sound file. If the archive contains `path`, the file is read from the archive.

    The content determines the format, because the suffix may be wrong. The length of an MP3, or of an MP3 in a WAV
    file, is computed from its frames.
    """
    content = archive[path] if archive and path in archive else None
    if content is None:
        with open_regular(path) as file:
            is_sound = file.read(4).startswith(_SOUND_STARTS)
        if is_sound and not (sound := soundfile.SoundFile(path)).subtype.startswith("MPEG"):
            return sound  # libsndfile reads a path faster than an open stream.
        content = read_content(path)
    content = content[skip_tags(content) :]
    try:
        if content.startswith(_SOUND_STARTS):
            sound = soundfile.SoundFile(BytesIO(content))
            if not sound.subtype.startswith("MPEG"):
                return sound
            content = _wav_data(content)
        content = add_mp3_length(content) or content
    except InputError as error:
        raise InputError(f"{path} cannot be read as a sound: {error}") from error
    return soundfile.SoundFile(BytesIO(content))


def _wav_data(content: bytes) -> bytes:
    """Return the content of the chunk `data` of a WAV file. Raises InputError if a part is missing."""
    at = 12
    while content[at : at + 4] != b"data" and at < len(content):
        size = int.from_bytes(content[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    size = int.from_bytes(content[at + 4 : at + 8], "little")
    data = content[at + 8 : at + 8 + size]
    if len(data) < size < _STREAM_SIZES["data"]:
        raise InputError("the end of the file is missing")
    return data


def _nist_samples(content: bytes) -> int:
    """Return the number of samples that the header of a NIST SPHERE file declares, or 0."""
    return int(match[1]) if (match := re.search(rb"^sample_count -i (\d+)", content[:1024], re.MULTILINE)) else 0


_FILE_SIZE = re.compile(r"^Length *: *(\d+)", re.MULTILINE)
"""Pattern of the line in libsndfile's log with the size of the file in bytes."""

_TRUNCATION = re.compile(r"^ *(data|SSND|Data Size|riff|Riff size) *: *(\d+) \(should be (\d+)\)", re.MULTILINE)
"""Pattern of the line that libsndfile writes to its log if the size in a file's header is wrong."""

_STREAM_SIZES = {"data": 0x7FFFF000, "SSND": 0x7FFFF000, "Data Size": 0x7FFFF000, "riff": 1 << 60, "Riff size": 1 << 60}
"""If the size in a header is at least this number of bytes, the file was written as a stream of unknown length."""


def read_audio(path: Path, archive: Archive | None = None) -> Audio:
    """Read a sound without changing its sample rate.

    Args:
        path: The file.
        archive: Archive that may contain `path`. A file that is not in the archive is read from disk.

    Returns:
        The sample rate, and float32 samples: (samples,) for one channel, or (channels, samples) for several.

    Raises:
        InputError: The file cannot be read, is empty, truncated or too long, or has a sample that is NaN or too large.
    """
    try:
        with open_audio(path, archive) as file:
            if file.format not in AUDIO_FORMATS or file.subtype in ("MPEG_LAYER_I", "MPEG_LAYER_II"):
                raise InputError(
                    f"{path} is a sound of the format {file.format_info}, {file.subtype_info}: save it as WAV or FLAC"
                )
            promised, rate = file.frames, file.samplerate
            if promised >= UNKNOWN_FRAMES:
                raise InputError(f"{path} is a stream and does not contain its length: save the sound as a file again")
            if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
                raise InputError(
                    f"{path} declares {rate:,} Hz: give sounds of {MIN_SAMPLE_RATE} Hz to {MAX_SAMPLE_RATE:,} Hz"
                )
            samples = _read_samples(path, file)
            if file.format == "NIST":
                promised = _nist_samples(read_content(path, archive))
            log, is_ogg = file.extra_info, file.format == "OGG"
    except soundfile.LibsndfileError as error:
        reason = error.error_string.rstrip(".")
        raise InputError(f"{path} cannot be read as a sound ({reason}): save it as WAV or FLAC") from error
    except (OSError, MemoryError) as error:
        raise InputError(f"{path} cannot be read as a sound: {one_line(error)}") from error
    # libsndfile raises no error for a truncated WAV, AIFF or Ogg file. Only its log shows that samples are missing.
    size = int(match[1]) if (match := _FILE_SIZE.search(log)) else 0
    truncated = any(
        _is_cut(chunk, int(declared), int(found), size) for chunk, declared, found in _TRUNCATION.findall(log)
    )
    truncated = truncated or (is_ogg and not _has_last_page(path, archive))
    if truncated or "ended unexpectedly" in log or len(samples) < promised:
        raise InputError(f"{path} cannot be read as a sound: the end of the file is missing")
    if not samples.size:
        raise InputError(f"{path} cannot be read as a sound: it has no samples")
    if not -MAX_AMPLITUDE <= samples.min() <= samples.max() <= MAX_AMPLITUDE:
        raise InputError(f"{path} cannot be read as a sound: it has samples that are NaN or above 2^31")
    return Audio(samples[:, 0].copy() if samples.shape[1] == 1 else np.ascontiguousarray(samples.T), rate)


def _is_cut(chunk: str, declared: int, found: int, file_size: int) -> bool:
    """Return True if a chunk is shorter than its declared size, and the declared size is neither unknown nor wrong.

    Some programs write the size of the file, with or without the first 8 bytes, as the size of the samples. A size of
    the whole file may include padding of up to 8 bytes.
    """
    padding = 8 if chunk.lower().startswith("riff") else 0
    is_wrong = declared in (file_size, file_size - 8) or declared >= _STREAM_SIZES[chunk]
    return found < declared - padding and not is_wrong


def _read_samples(path: Path, file: soundfile.SoundFile) -> NDArray[np.float32]:
    """Decode all samples (samples, channels) in blocks, because the length of some formats is unknown.

    Raises InputError if the sound has more than `MAX_AUDIO_SAMPLES` samples.
    """
    blocks, room = list[NDArray[np.float32]](), MAX_AUDIO_SAMPLES // file.channels
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        blocks.append(np.asarray(block, np.float32))
        room -= len(block)
        if room < 0:
            raise InputError(f"{path} has over {MAX_AUDIO_SAMPLES:,} samples: cut the sound into parts")
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks or [np.zeros((0, file.channels), np.float32)])


def _has_last_page(path: Path, archive: Archive | None) -> bool:
    """Return True if the last page of an Ogg file is complete and ends the stream (RFC 3533, section 6).

    Raises InputError if another stream follows, because libsndfile reads only the first stream.
    """
    content, at, flags = read_content(path, archive), 0, 0
    while (at := content.find(b"OggS", at)) >= 0:
        if content[at + 5 : at + 6] and flags & _OGG_END and content[at + 5] & _OGG_START:
            raise InputError(f"{path} has several sounds one after another: save each sound as a file")
        segments = content[at + 27 : at + 27 + content[at + 26]] if at + 27 <= len(content) else b""
        end = at + 27 + len(segments) + sum(segments)
        flags = content[at + 5] if segments and end <= len(content) else 0
        at = max(end, at + 4)
    return bool(flags & _OGG_END)
