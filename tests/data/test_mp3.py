"""MP3s as programs other than ours write them: without a word on their length."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from unifier.data.readers import add_mp3_length, read_audio
from unifier.data.statistics import max_duration, median_duration
from unifier.datasets.audio_folder import AudioFolder
from unifier_tokenizers import InputError


def loud_at_last(rate: int, channels: int) -> NDArray[np.float64]:
    """Two seconds of a soft tone and two of noise, which take unlike rates."""
    tone = 0.01 * np.sin(0.05 * np.arange(2 * rate))
    noise = np.random.default_rng(0).normal(scale=0.1, size=2 * rate)
    return np.concatenate([tone, noise])[:, None].repeat(channels, 1)


def mp3(rate: int, channels: int, mode: str) -> tuple[bytes, bytes]:
    """The sound above, as libsndfile writes it and without its first frame, which says the length."""
    file = BytesIO()
    soundfile.write(file, loud_at_last(rate, channels), rate, format="MP3", bitrate_mode=mode, compression_level=0.3)
    whole = file.getvalue()
    said = max(whole.find(b"Xing"), whole.find(b"Info"))
    second = whole.find(whole[:2], said)
    return whole, whole[second:]


@pytest.mark.parametrize("rate", [8000, 22050, 44100])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE", "AVERAGE"])
def test_all_of_a_sound_is_read_whatever_its_rate(rate: int, channels: int, mode: str, tmp_path: Path) -> None:
    whole, bare = mp3(rate, channels, mode)
    assert add_mp3_length(whole) == whole
    (tmp_path / "a.mp3").write_bytes(b"ID3\3\0\0\0\0\1\1" + bytes(129) + bare + b"TAG" + bytes(125))
    found = read_audio(tmp_path / "a.mp3")
    samples = found.waveform.reshape(channels, -1)
    assert found.sample_rate == rate
    assert 4 * rate <= samples.shape[1] <= 4 * rate + 3 * 1152
    late = samples[:, 3 * rate : 3 * rate + rate // 2]
    assert late.std() == pytest.approx(0.1, rel=0.25), "the end is there, and in its place"


def test_the_usual_length_is_told_by_all_frames_too(tmp_path: Path) -> None:
    _, bare = mp3(22050, 1, "VARIABLE")
    for number in range(3):
        (tmp_path / f"{number}.mp3").write_bytes(bare)
    (tmp_path / "table.csv").write_text("file,label\n0.mp3,x\n1.mp3,x\n2.mp3,x\n")
    source, true = AudioFolder(tmp_path / "table.csv"), len(read_audio(tmp_path / "0.mp3").waveform) / 22050
    assert soundfile.info(tmp_path / "0.mp3").duration != pytest.approx(true, rel=0.05), "its own guess is another"
    assert (median_duration(source), max_duration(source)) == pytest.approx((true, true), rel=0.01)


def test_what_is_no_row_of_frames_is_left_as_it_was() -> None:
    _, bare = mp3(22050, 1, "VARIABLE")
    for data in (b"", b"ID3", b"no sound at all", bare + b"and more that is none", b"\xff\xf3\x00\x00"):
        assert add_mp3_length(data) == data


def test_one_that_is_no_sound_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.mp3").write_text("no sound at all")
    with pytest.raises(InputError, match=r"a\.mp3 cannot be read as a sound"):
        read_audio(tmp_path / "a.mp3")
    with pytest.raises(InputError, match=r"b\.mp3 cannot be read as a sound: no such file"):
        read_audio(tmp_path / "b.mp3")
