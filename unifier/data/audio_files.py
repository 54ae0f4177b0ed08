"""Reader of sound files. The samples that libsndfile returns are compared with the header of the file."""

import re
from io import BytesIO
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from unifier.data.mp3 import add_mp3_length
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

MAX_AMPLITUDE = 2.0**31
"""Largest valid sample value. The usual maximum is 1, but some files store 32-bit integers as floats, up to 2^31."""

MIN_SAMPLE_RATE = 100
"""Smallest sample rate in Hz. Resampling a sound of a lower rate would multiply its size by hundreds."""

MAX_AUDIO_SAMPLES = 1 << 28
"""Largest number of samples of a sound, summed over its channels. The samples take 1 GB."""

_SOUND_STARTS = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b".snd", b"fLaC", b"OggS", b"caff")
"""First bytes of the formats that are not searched for MP3 frames."""

_BLOCK = 1 << 20
"""Number of samples per channel that are decoded at a time."""


def open_audio(path: Path, archive: Archive | None = None) -> soundfile.SoundFile:
    """Open a sound file. If the archive contains `path`, the file is read from the archive.

    The content determines the format, because the suffix may be wrong. The length of an MP3 is computed from its
    frames.
    """
    content = archive[path] if archive and path in archive else None
    if content is None:
        with open_regular(path) as file:
            if file.read(4).startswith(_SOUND_STARTS):
                return soundfile.SoundFile(path)  # libsndfile reads a path faster than an open stream.
        content = read_content(path)
    if not content.startswith(_SOUND_STARTS):
        content = add_mp3_length(content) or content
    return soundfile.SoundFile(BytesIO(content))


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
            promised, rate = file.frames, file.samplerate
            if promised >= UNKNOWN_FRAMES:
                raise InputError(f"{path} is a stream and does not contain its length: save the sound as a file again")
            if rate < MIN_SAMPLE_RATE:
                raise InputError(f"{path} declares {rate} Hz: give sounds of {MIN_SAMPLE_RATE} Hz or more")
            samples = _read_samples(file)
            log, is_ogg = file.extra_info, file.format == "OGG"
    except soundfile.LibsndfileError as error:
        raise InputError(f"{path} cannot be read as a sound: {error.error_string}") from error
    except (OSError, MemoryError) as error:
        raise InputError(f"{path} cannot be read as a sound: {one_line(error)}") from error
    # libsndfile raises no error for a truncated WAV, AIFF or Ogg file. Only its log shows that samples are missing.
    truncated = any(
        int(declared) < _STREAM_SIZES[chunk] and int(found) < 0.99 * int(declared)
        for chunk, declared, found in _TRUNCATION.findall(log)
    )
    truncated = truncated or (is_ogg and not _has_last_page(path, archive))
    if truncated or "ended unexpectedly" in log or len(samples) < promised:
        raise InputError(f"{path} cannot be read as a sound: the end of the file is missing")
    if not samples.size:
        raise InputError(f"{path} cannot be read as a sound: it has no samples")
    if not -MAX_AMPLITUDE <= samples.min() <= samples.max() <= MAX_AMPLITUDE:
        raise InputError(f"{path} cannot be read as a sound: it has samples that are NaN or above 2^31")
    return Audio(samples[:, 0].copy() if samples.shape[1] == 1 else np.ascontiguousarray(samples.T), rate)


def _read_samples(file: soundfile.SoundFile) -> NDArray[np.float32]:
    """Decode all samples (samples, channels) in blocks, because the length of some formats is unknown.

    Raises InputError if the sound has more than `MAX_AUDIO_SAMPLES` samples.
    """
    blocks, room = list[NDArray[np.float32]](), MAX_AUDIO_SAMPLES // file.channels
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        blocks.append(np.asarray(block, np.float32))
        room -= len(block)
        if room < 0:
            raise InputError(f"{file.name} has over {MAX_AUDIO_SAMPLES:,} samples: cut the sound into parts")
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks or [np.zeros((0, file.channels), np.float32)])


def _has_last_page(path: Path, archive: Archive | None) -> bool:
    """Return True if the last page of an Ogg file is complete and ends the stream (RFC 3533, section 6)."""
    content = read_content(path, archive)
    at = content.rfind(b"OggS")
    segments = content[at + 27 : at + 27 + content[at + 26]] if at + 27 <= len(content) else b""
    return bool(segments) and bool(content[at + 5] & 4) and at + 27 + len(segments) + sum(segments) <= len(content)
