"""Sounds are read as their files declare the samples."""

import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from benchmarks.chaos.sounds import Mix, Sound, container_cases, library_cases, mix_cases, mp3_cases, wav_cases
from tests.data.conftest import refused
from unifier.data import audio_files
from unifier.data.image_files import read_image
from unifier.data.mp3 import add_mp3_length
from unifier.data.statistics import max_duration, median_duration
from unifier.datasets.audio_folder import AudioFolder

RED = (200, 30, 60)


def wave(channels: int, rate: int = 8000) -> NDArray[np.float64]:
    """Return 0.2 s of sound (samples, channels) with another tone in each channel."""
    time = np.arange(rate // 5) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * 200 * (k + 1) * time) for k in range(channels)], axis=1)


@pytest.mark.parametrize(
    "cases",
    [container_cases, mix_cases, wav_cases]
    + [pytest.param(slow, marks=pytest.mark.slow) for slow in (library_cases, mp3_cases)],
)
def test_sounds_are_read_as_declared(cases: Callable[[], Iterator[Sound | Mix]], tmp_path: Path) -> None:
    assert not [fault for case in cases() if (fault := case.fault(tmp_path))]


def test_unreadable_sounds_are_named(tmp_path: Path) -> None:
    (tmp_path / "zeros.wav").write_bytes(bytes(1000))
    (tmp_path / "text.mp3").write_text("no sound at all")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 8000)
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan]), 8000, subtype="FLOAT")
    soundfile.write(tmp_path / "damaged.wav", np.array([0.0, -3e29]), 8000, subtype="FLOAT")
    for name in ("zeros.wav", "text.mp3", "empty.wav", "nan.wav", "damaged.wav", "none.wav", "none.mp3"):
        with refused(str(tmp_path / name)):
            audio_files.read_audio(tmp_path / name)
    soundfile.write(tmp_path / "integers.wav", np.array([0.0, -(2.0**31)]), 8000, subtype="FLOAT")
    assert audio_files.read_audio(tmp_path / "integers.wav").waveform[1] == -(2.0**31)


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
            audio_files.read_audio(tmp_path / name)
    assert audio_files.read_audio(tmp_path / "c.flac").waveform.shape == (8000,)
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


@pytest.mark.slow
@pytest.mark.parametrize("rate", [8000, 22050, 44100])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE", "AVERAGE"])
def test_mp3_without_length_is_read_completely(rate: int, channels: int, mode: str, tmp_path: Path) -> None:
    complete, bare = mp3(rate, channels, mode)
    assert add_mp3_length(complete) == complete
    (tmp_path / "a.mp3").write_bytes(b"ID3\3\0\0\0\0\1\1" + bytes(129) + bare + b"TAG" + bytes(125))
    audio = audio_files.read_audio(tmp_path / "a.mp3")
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
    source, seconds = (
        AudioFolder(tmp_path / "table.csv"),
        len(audio_files.read_audio(tmp_path / "0.mp3").waveform) / 22050,
    )
    assert soundfile.info(tmp_path / "0.mp3").duration != pytest.approx(seconds, rel=0.05)
    assert (median_duration(source), max_duration(source)) == pytest.approx((seconds, seconds), rel=0.01)


@pytest.mark.parametrize("data", [b"", b"ID3", b"no sound at all", b"\xff\xf3\x00\x00"])
def test_data_without_mp3_frames(data: bytes) -> None:
    assert add_mp3_length(data) is None


def test_sound_of_absurd_rate_or_length_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rate, limit in (("slow.wav", 7, "100 Hz"), ("fast.au", 268_443_456, "10,000,000 Hz")):
        soundfile.write(tmp_path / name, wave(1), rate)
        with refused(name, f"{rate:,} Hz", limit):
            audio_files.read_audio(tmp_path / name)
    monkeypatch.setattr(audio_files, "MAX_AUDIO_SAMPLES", 100)
    for name in ("long.wav", "long.mp3"):
        soundfile.write(tmp_path / name, wave(1), 8000)
        with refused(name, "100"):
            audio_files.read_audio(tmp_path / name)


@pytest.mark.parametrize("suffix", ["wav", "aiff", "au", "w64", "caf"])
def test_sound_without_its_last_samples_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, wave(1), 8000)
    path.write_bytes(path.read_bytes()[:-20])
    with refused(path.name):
        audio_files.read_audio(path)


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "folder", "a\0b", "x" * 300])
def test_only_regular_files_are_read(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with refused(name):
        audio_files.read_audio(tmp_path / name)
    with refused(name):
        read_image(tmp_path / name)
