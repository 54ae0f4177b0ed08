"""Images and sounds in unusual formats, from the file to a score."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from PIL import Image

from unifier import ClassificationHead, Experiment, Source, Task, Training, Transformer, run
from unifier.augmentation.audio import augment_audio
from unifier.config import load_experiment
from unifier.data.dataloader import Augmentation
from unifier.data.source import SPLITS
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.image_folder import ImageFolder
from unifier.training.result import Result
from unifier_tokenizers import FrameTokenizer, InputError, PatchTokenizer, Tokenizer, WaveformTokenizer
from unifier_tokenizers.audio import AudioTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

RATES = (8000, 11025, 22050, 44100, 44101, 48000, 96000)


def trained(
    source: Source, labels: tuple[str, ...], tokenizer: Tokenizer, out: Path, augmentation: Augmentation | None = None
) -> Result:
    def odd_files() -> Experiment:
        task = Task(source, tokenizer, ClassificationHead(labels, 8), augmentation=augmentation)
        return Experiment(Transformer(8, 1, 2, 8), {"own": task}, Training(steps=2, batch_tokens=256), name="odd_files")

    (result,) = run(odd_files, out=out, track="off")
    return result


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_odd_images_train_together(tmp_path: Path, channels: int) -> None:
    noise = np.random.RandomState(0).randint(0, 256, (6, 9, 3), np.uint8)
    color = Image.fromarray(noise)
    turned = Image.Exif()
    turned[0x0112] = 6
    for split in SPLITS:
        folder = tmp_path / "data" / split / "odd"
        folder.mkdir(parents=True)
        for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
            color.convert(mode).save(folder / f"{mode}.png")
        Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257).save(folder / "sixteen.png")
        color.save(folder / "turned.jpg", exif=turned)
        for name in ("notes.txt", "Thumbs.db", ".DS_Store", "._L.png", "labels.csv"):
            (folder / name).write_text("not an image")
        (folder.parent / "README").write_text("not a class")
    (tmp_path / "data" / "train" / "yeti").mkdir()
    color.save(tmp_path / "data" / "train" / "yeti" / "only.png")
    source = ImageFolder(tmp_path / "data", channels=3 if channels == 3 else 1)
    with pytest.warns(UserWarning, match=r"1 \.db, 1 \.csv, 1 \.txt"):
        sizes = {name: len(source.split(name)) for name in SPLITS}
    assert sizes == {"train": 9, "val": 8, "test": 8}
    shapes = sorted(example.input.shape for example in source.split("test"))
    assert shapes == [(6, 9, channels)] * 7 + [(9, 6, channels)]
    result = trained(source, source.labels, PatchTokenizer(8, patch=3, channels=channels), tmp_path / "runs")
    assert (result.status, result.data["own"]["train"]) == ("finished", 9)


def hum(rate: int) -> NDArray[np.float64]:
    """Return a fifth of a second of 300 Hz."""
    return np.sin(np.arange(rate // 5) * 2 * np.pi * 300 / rate)


def sounds(folder: Path) -> Path:
    """Write a table of sounds in many formats for each split; one label has one sound."""
    folder.mkdir()
    rows, tone = ["file,label,split"], hum(16000)

    def write(name: str, samples: NDArray[np.float64], rate: int, subtype: str, split: str, label: str = "odd") -> None:
        soundfile.write(folder / name, samples, rate, subtype=subtype)
        rows.append(f"{name},{label},{split}")

    for split in SPLITS:
        for rate in RATES:
            write(f"{split}-{rate}.wav", 0.5 * hum(rate), rate, "PCM_16", split)
        write(f"{split}-stereo.flac", np.stack([0.2 * tone, 0.4 * tone], 1), 16000, "PCM_24", split)
        write(f"{split}-24.wav", 0.2 * tone, 16000, "PCM_24", split)
        write(f"{split}-float.wav", 0.2 * tone, 16000, "FLOAT", split)
        write(f"{split}-double.wav", 1.7 * tone, 16000, "DOUBLE", split)  # Beyond full scale.
        write(f"{split}-clipped.wav", (5 * tone).clip(-1, 1), 16000, "PCM_U8", split)
        write(f"{split}-silent.ogg", 0 * tone, 16000, "VORBIS", split)
        write(f"{split}-constant.wav", 0 * tone + 1, 16000, "PCM_16", split)
    write("only.wav", 0.1 * tone, 16000, "PCM_16", "train", "rare")
    (folder / "notes.txt").write_text("not a sound")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder / "table.csv"


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        partial(FrameTokenizer, stack=4),
        partial(FrameTokenizer, patch=(8, 16), stride=(4, 16), normalize="band"),
        partial(FrameTokenizer, normalize="example"),
        partial(WaveformTokenizer, stack=4, normalize="band"),
    ],
    ids=["stacks", "patches", "frames", "waveform"],
)
def test_odd_sounds_train_together(tmp_path: Path, make: Callable[..., AudioTokenizer]) -> None:
    source = AudioFolder(sounds(tmp_path / "data"))
    tokenizer = make(8, sample_rate=16000).fit([example.input for example in source.split("train")])
    augmentation = augment_audio(tokenizer, speed_perturb=0.1, crop=0.1, gain=6.0, time_masks=1)
    result = trained(source, source.labels, tokenizer, tmp_path / "runs", augmentation)
    assert (result.status, result.data["own"]["train"]) == ("finished", len(RATES) + 8)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("make", [FrameTokenizer, WaveformTokenizer])
def test_sound_of_one_sample_is_named(
    tmp_path: Path, samples: int, make: type[FrameTokenizer | WaveformTokenizer]
) -> None:
    table = sounds(tmp_path / "data")
    soundfile.write(tmp_path / "data" / "test-24.wav", np.zeros(samples), 16000)
    source = AudioFolder(table)
    with pytest.raises(InputError, match=r"test-24\.wav") as error:
        trained(source, source.labels, make(8, sample_rate=16000), tmp_path / "runs")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_recipe_refuses_folds_with_leak(tmp_path: Path) -> None:
    rows = ["file,label,fold,group"]
    for number in range(6):
        soundfile.write(tmp_path / f"{number}.wav", np.zeros(8000), 8000)
        rows.append(f"{number}.wav,{'ab'[number % 2]},{number % 3},{'Ann' if number in (0, 4) else number}")
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    genres = load_experiment(str(Path(__file__).parents[2] / "experiments" / "genres.py"))
    for fold in (None, 0, 1, 2):
        with pytest.raises(InputError, match=r"table\.csv: group 'Ann' is in fold 0 and in fold 1") as error:
            run(genres, data=str(tmp_path / "table.csv"), fold=fold, out=tmp_path / "runs", track="off")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()
