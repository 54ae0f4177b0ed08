"""Sounds in many formats and variants with known samples, and stereo sounds whose channels cancel out."""

import struct
from collections.abc import Iterator
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from unifier.data.audio_files import AUDIO_FORMATS, read_audio
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.audio import resample

Samples = NDArray[np.float64]

RATE, SECONDS = 22050, 1

TIME = np.arange(RATE * SECONDS) / RATE

TONE: Samples = np.linspace(0.05, 0.6, len(TIME)) * np.sin(2 * np.pi * 300 * TIME)
"""A tone whose volume rises, so that a missing or repeated part is noticed."""

STEREO: Samples = np.stack([TONE, 0.3 * np.sin(2 * np.pi * 500 * TIME)], 1)

PARTS = 10
"""Number of parts whose volumes are compared if a format is lossy."""


class Sound(NamedTuple):
    """A sound file."""

    name: str
    content: bytes
    samples: Samples | None
    """The expected samples (samples,) or (samples, channels), or None if the file must be refused."""
    tolerance: float = 1e-4
    """Largest accepted difference of a sample, or of the volume of a part if `slack` is not 0."""
    slack: int = 0
    """Largest number of samples that an encoder may add. The samples themselves are then not compared."""
    rate: int = RATE

    def fault(self, folder: Path) -> str | None:
        """Write the file into a folder, read the file, and describe the fault if the result is wrong."""
        path = folder / f"sound{Path(self.name).suffix}"
        path.write_bytes(self.content)
        try:
            waveform, rate = read_audio(path)
        except InputError as error:
            return None if self.samples is None else f"{self.name}: refused ({error})"
        if self.samples is None:
            return f"{self.name}: read, but must be refused"
        found, expected = np.atleast_2d(np.asarray(waveform, np.float64)), np.atleast_2d(self.samples.T)
        added = found.shape[1] - expected.shape[1]
        if rate != self.rate or len(found) != len(expected) or not 0 <= added <= self.slack:
            return f"{self.name}: shape {found.shape} at {rate} Hz, not {expected.shape} at {self.rate} Hz"
        if self.slack:
            found, expected = _volumes(found), _volumes(expected)
        worst = np.abs(found - expected).max()
        return f"{self.name}: samples differ by {worst:.4f}" if worst > self.tolerance else None


class Mix(NamedTuple):
    """A sound whose channels must not become silence when they are mixed."""

    name: str
    channels: Samples
    """The samples (channels, samples)."""

    def fault(self, folder: Path) -> str | None:
        """Mix the channels, and describe the fault if the sound is lost. `folder` is not used."""
        loud = self.channels.std(1).max()
        mixed = resample(Audio(torch.from_numpy(self.channels), RATE), RATE, 1).std().item()
        return f"{self.name}: volume {mixed:.4f}, not {loud:.4f}" if mixed < 0.3 * loud else None


def _volumes(samples: Samples) -> Samples:
    """Return the volume (channels, PARTS) of each part."""
    return np.stack([part.std(1) for part in np.array_split(samples, PARTS, axis=1)], 1)


def written(samples: Samples = TONE, rate: int = RATE, **options: Any) -> bytes:
    """Return a file that libsndfile writes."""
    file = BytesIO()
    soundfile.write(file, samples, rate, **options)
    return file.getvalue()


TOLERANCES = {
    **{"PCM_U8": 0.01, "PCM_S8": 0.01, "DPCM_8": 0.02, "ULAW": 0.03, "ALAW": 0.03, "VORBIS": 0.1, "OPUS": 0.1},
    **{"IMA_ADPCM": 0.05, "MS_ADPCM": 0.05, "GSM610": 0.2, "G721_32": 0.1, "G723_24": 0.2, "G723_40": 0.1},
    **{"MPEG_LAYER_III": 0.02, "NMS_ADPCM_16": 0.3, "NMS_ADPCM_24": 0.2, "NMS_ADPCM_32": 0.1},
}
"""Largest error of each lossy encoding."""

BLOCKS = ("ADPCM", "GSM", "G72", "VORBIS", "MPEG", "OPUS")
"""Parts of the names of encodings that add samples, up to the end of a block."""


def library_cases() -> Iterator[Sound]:
    """Yield every format and encoding that libsndfile writes, and its first 40 %, 90 % and 99.5 %."""
    for name, subtype, endian in product(
        soundfile.available_formats(), soundfile.available_subtypes(), ("BIG", "LITTLE", "FILE")
    ):
        if name in ("RAW", "SD2") or "DWVW" in subtype or not soundfile.check_format(name, subtype, endian):
            continue
        rate = 48000 if subtype == "OPUS" else 8000 if subtype[:3] in ("GSM", "G72", "NMS") else RATE
        samples = TONE[:: 2 if rate == 8000 else 1]
        try:
            content = written(samples, rate, format=name, subtype=subtype, endian=endian)
        except soundfile.LibsndfileError:
            continue  # libsndfile declares some encodings that it does not write.
        tolerance = TOLERANCES.get(subtype, 1e-3)
        slack = 4096 if any(part in subtype for part in BLOCKS) else 0
        title = f"{name} {subtype} {endian}"
        yield Sound(f"{title}.bin", content, samples if name in AUDIO_FORMATS else None, tolerance, slack, rate)
        for share in (0.4, 0.9, 0.995):
            yield Sound(f"{title} cut at {share}.bin", content[: int(share * len(content))], None)


def riff(
    *chunks: tuple[bytes, bytes], start: bytes = b"RIFF", size: int | None = None, data_size: int | None = None
) -> bytes:
    """Return a RIFF file of chunks. `size` and `data_size` replace the declared sizes."""
    order = ">" if start == b"RIFX" else "<"
    body = b"WAVE"
    for name, data in chunks:
        declared = data_size if name == b"data" and data_size is not None else len(data)
        body += name + struct.pack(f"{order}I", declared) + data + bytes(len(data) % 2)
    return start + struct.pack(f"{order}I", len(body) if size is None else size) + body


def wav_format(code: int, bits: int, *, block: int = 0, valid: int | None = None, order: str = "<") -> bytes:
    """Return the chunk `fmt ` of a WAV file with one channel.

    Args:
        code: Code of the encoding: 1 for integers, 3 for floats.
        bits: Number of bits of a sample.
        block: Number of bytes of a sample.
        valid: Number of used bits. With None, the format is not extensible.
        order: Byte order.
    """
    block = block or bits // 8
    plain = struct.pack(f"{order}HHIIHH", code if valid is None else 0xFFFE, 1, RATE, RATE * block, block, bits)
    if valid is None:
        return plain
    return plain + struct.pack("<HHIIHH8s", 22, valid, 4, code, 0, 16, bytes.fromhex("800000aa00389b71"))


def wav_cases() -> Iterator[Sound]:
    """Yield WAV and AU files that other programs write. Sources: libsndfile issues 331 and 887; soundfile 228."""
    whole = (TONE * 32767).round().astype("<i2")
    data, plain = whole.tobytes(), wav_format(1, 16)
    deep = (TONE * (2**31 - 1)).astype("<i4")
    high = whole >> 4 << 4
    yield Sound("plain.wav", riff((b"fmt ", plain), (b"data", data)), TONE)
    chunks = (
        (b"JUNK", b"abc"),
        (b"bext", bytes(602)),
        (b"fmt ", plain),
        (b"LIST", b"INFOabc"),
        (b"data", data),
        (b"id3 ", bytes(33)),
    )
    yield Sound("other chunks.wav", riff(*chunks), TONE)
    big = riff((b"fmt ", wav_format(1, 16, order=">")), (b"data", whole.astype(">i2").tobytes()), start=b"RIFX")
    yield Sound("big-endian.wav", big, TONE)
    yield Sound("no size.wav", riff((b"fmt ", plain), (b"data", data), size=0), TONE)
    for size in (0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        yield Sound(f"stream {size:#x}.wav", riff((b"fmt ", plain), (b"data", data), size=size, data_size=size), TONE)
    odd = written(TONE[:-1], format="WAV", subtype="PCM_24")
    yield Sound("odd number of bytes.wav", odd, TONE[:-1])
    yield Sound("odd number of bytes without padding.wav", odd.removesuffix(b"\0"), TONE[:-1])
    yield Sound("bytes after the end.wav", riff((b"fmt ", plain), (b"data", data)) + b"x" * 99, TONE)
    yield Sound(
        "12 of 16 bits.wav", riff((b"fmt ", wav_format(1, 16, valid=12)), (b"data", high.tobytes())), TONE, 1e-3
    )
    yield Sound("12 bits.wav", riff((b"fmt ", wav_format(1, 12, block=2)), (b"data", high.tobytes())), TONE, 1e-3)
    yield Sound(
        "24 of 32 bits.wav", riff((b"fmt ", wav_format(1, 32, valid=24)), (b"data", (deep >> 8 << 8).tobytes())), TONE
    )
    bytes_24 = deep.view("u1").reshape(-1, 4)[:, 1:].tobytes()
    yield Sound("20 of 24 bits.wav", riff((b"fmt ", wav_format(1, 20, block=3)), (b"data", bytes_24)), TONE)
    yield Sound(
        "extensible floats.wav",
        riff((b"fmt ", wav_format(3, 32, valid=32)), (b"data", TONE.astype("<f4").tobytes())),
        TONE,
    )
    yield Sound("half floats.wav", riff((b"fmt ", wav_format(3, 16)), (b"data", TONE.astype("<f2").tobytes())), None)
    yield Sound("64 bits.wav", riff((b"fmt ", wav_format(1, 64)), (b"data", TONE.astype("<i8").tobytes())), None)
    for code, name in (
        (0x45, "G.726"),
        (0x65, "G.722"),
        (0x50, "MPEG"),
        (0xFF, "AAC"),
        (0x161, "WMA"),
        (0x2000, "AC-3"),
    ):
        yield Sound(f"{name}.wav", riff((b"fmt ", wav_format(code, 16)), (b"data", data)), None)
    yield Sound("ID3 tag.wav", id3(32) + riff((b"fmt ", plain), (b"data", data)), TONE)
    yield Sound("ID3 tag.flac", id3(32) + written(format="FLAC"), TONE)
    yield Sound("tag after the end.flac", written(format="FLAC") + b"TAG" + bytes(125), TONE)
    ends: tuple[tuple[str, bytes, str], ...] = (("big", b".snd", ">"), ("little", b"dns.", "<"))
    for (name, start, order), size in product(ends, (len(data), 0xFFFFFFFF)):
        header = start + struct.pack(f"{order}5I", 24, size, 3, RATE, 1)
        yield Sound(f"{name}-endian, size {size:#x}.au", header + whole.astype(f"{order}i2").tobytes(), TONE)


def container_cases() -> Iterator[Sound]:
    """Yield sounds under a wrong name, several sounds in one file, and containers that are not supported."""
    for name, (kind, subtype) in product(
        ("a.wav", "a.mp3", "a.ogg", "a.flac"), (("FLAC", "PCM_24"), ("AIFF", "PCM_16"), ("W64", "PCM_16"))
    ):
        yield Sound(f"{kind} named {name}", written(format=kind, subtype=subtype), TONE)
    for kind in sorted(AUDIO_FORMATS - {"MP3", "OGG", "WAVEX"}):
        yield Sound(f"stereo {kind}.bin", written(STEREO, format=kind, subtype="PCM_16"), STEREO)
    ogg = written(format="OGG")
    yield Sound("stereo.ogg", written(STEREO, format="OGG"), STEREO, 0.1, 4096)
    yield Sound("Ogg named.mp3", ogg, TONE, 0.1, 4096)
    yield Sound("two sounds.ogg", ogg + ogg, None)
    last = ogg.rindex(b"OggS") + 5
    yield Sound("no end.ogg", ogg[:last] + bytes([ogg[last] & 0xFB]) + ogg[last + 1 :], None)
    starts = {
        "m4a": b"\0\0\0\x20ftypM4A ",
        "wv": b"wvpk",
        "ape": b"MAC ",
        "wma": bytes.fromhex("3026b2758e66cf11"),
        "mka": b"\x1a\x45\xdf\xa3",
    }
    for name, start in starts.items():
        yield Sound(f"not supported.{name}", start + bytes(5000), None)
    layer_2 = (b"\xff\xfd\x84\xc0" + bytes(380)) * 50
    yield Sound("layer II.mp2", layer_2, None)
    yield Sound("layer II named.mp3", layer_2, None)


def id3(size: int, *, footer: bool = False) -> bytes:
    """Return an ID3v2 tag."""
    header = b"\4\0" + bytes([0x10 * footer]) + bytes([0, 0, size >> 7, size & 127])
    return b"ID3" + header + bytes(size) + (b"3DI" + header) * footer


APE = b"APETAGEX" + struct.pack("<IIII", 2000, 72, 1, 0xA0000000) + bytes(8) + b"x" * 72


def mp3(mode: str, channels: int = 1, rate: int = RATE) -> tuple[bytes, bytes]:
    """Return an MP3 file with the number of its frames, and only the frames with sound."""
    samples = TONE if channels == 1 else STEREO
    content = written(samples, rate, format="MP3", bitrate_mode=mode, compression_level=0.3)
    tag = max(content.find(b"Xing"), content.find(b"Info"))
    return content, content[content.find(content[:2], tag) :]


def mp3_cases() -> Iterator[Sound]:
    """Yield MP3 files with and without length, with tags, under other names, and in WAV files.

    Sources: issue 48 of this project; sdrtrunk issue 1377; mp3-duration 16; tinytag 124; librosa 686 and 876.
    """
    for mode, channels in product(("CONSTANT", "VARIABLE", "AVERAGE"), (1, 2)):
        complete, bare = mp3(mode, channels)
        samples = TONE if channels == 1 else STEREO
        middle = bare.index(bare[:2], len(bare) // 2)
        for name, content in (
            *(("complete", complete), ("no length", bare), ("two tags", id3(300) + id3(5000) + bare)),
            *(("a tag with a footer", id3(300, footer=True) + bare), ("zeros first", bytes(700) + bare)),
            *(("APE and ID3", APE + id3(20) + bare), ("ID3 and padding", id3(9) + bytes(700) + complete)),
            *(
                ("a tag at the end", bare + b"TAG" + bytes(125)),
                ("APE at the end", bare + APE),
                ("ID3 at the end", bare + id3(900)),
            ),
            ("bytes between frames", bare[:middle] + bytes(137) + bare[middle:]),
            ("a tag between frames", bare[:middle] + id3(200) + bare[middle:]),
            *(("length without a number", _with_count(complete, None)), ("a length of 0", _with_count(complete, 0))),
            ("too small a length", _with_count(complete, 5)),
        ):
            for suffix in ("mp3", "wav", "ogg", "flac"):
                yield Sound(f"{mode} {channels} {name}.{suffix}", content, samples, 0.08, 4000)
        for share in (0.4, 0.9, 0.995):
            yield Sound(f"{mode} {channels} cut at {share}.mp3", complete[: int(share * len(complete))], None)
        twice = np.concatenate([samples, samples])
        for name, content in (("complete", complete + complete), ("tagged", id3(50) + complete + id3(90) + bare)):
            yield Sound(f"{mode} {channels} two sounds, {name}.mp3", content, twice, 0.1, 8000)
        header = struct.pack("<HHIIHHHHIHHH", 0x55, channels, RATE, 0, 576, 0, 12, 1, 0, 1152, 1, 0)
        fact = struct.pack("<I", len(TONE))
        for name, data in (("complete", complete), ("no length", bare)):
            content = riff((b"fmt ", header), (b"fact", fact), (b"data", data))
            yield Sound(f"{mode} {channels} MP3 {name}.wav", content, samples, 0.08, 4000)
            yield Sound(f"{mode} {channels} MP3 {name}, cut.wav", content[: len(content) // 2], None)
    other = mp3("CONSTANT", 1, 44100)[0]
    yield Sound("two sample rates.mp3", mp3("CONSTANT")[1] + other, None)


def _with_count(content: bytes, count: int | None) -> bytes:
    """Return an MP3 file whose first frame declares a wrong number of frames, or with None no number of frames."""
    flags = max(content.find(b"Xing"), content.find(b"Info")) + 7
    if count is None:
        return content[:flags] + bytes([content[flags] & 0xFE]) + content[flags + 1 :]
    return content[: flags + 1] + count.to_bytes(4) + content[flags + 5 :]


def mix_cases() -> Iterator[Mix]:
    """Yield sounds whose channels cancel out. Source: issue 48 of this project."""
    for share, offset in product((1.0, 0.99, 0.9), (0.0, 0.2)):
        yield Mix(f"right is {-share} left + {offset}", np.stack([TONE, offset - share * TONE]))
    yield Mix("four channels", np.stack([TONE, -TONE, TONE, -TONE]))
    yield Mix("left only", np.stack([TONE, 0 * TONE]))


def sound_cases() -> Iterator[Sound | Mix]:
    """Yield all sounds."""
    for cases in (library_cases, wav_cases, container_cases, mp3_cases, mix_cases):
        yield from cases()
