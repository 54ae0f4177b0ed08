"""Setting groups: each option reaches the part that it is for, and None is derived from the data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from unifier.augmentation.audio import RandomAudioTransform
from unifier.data.dataloader import collate
from unifier.data.encoding import encode_split
from unifier.data.source import SPLITS
from unifier.datasets import AudioFolder, GrammarPairs, ImageFolder, Multi30k, ParallelText, WithExtraPairs
from unifier.experiment import Training, fitted, recording_fitted, save_fitted
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.options import (
    AudioAugmentationConfig,
    AudioFrontend,
    ClassifierConfig,
    ClipStatistics,
    ImageAugmentationConfig,
    ImageFrontend,
    ParallelTextConfig,
    TrunkConfig,
    learn_vocabulary,
)
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import FrameTokenizer, InputError, Vocabulary, WaveformTokenizer
from unifier_tokenizers.stems import FrameStem, LinearProjection

TRUNK = TrunkConfig(dim=16, depth=1, heads=2, ffn_dim=16)


def write_sounds(folder: Path, *seconds: float, rate: int = 4000) -> AudioFolder:
    """Write one noise per duration, in two classes and five folds."""
    rows = ["file,label,fold"]
    for number, duration in enumerate(seconds):
        noise = np.random.default_rng(number).normal(size=round(rate * duration)) * 0.1
        soundfile.write(folder / f"{number}.wav", noise, rate)
        rows.append(f"{number}.wav,{'ab'[number % 2]},{number // 2 % 5}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return AudioFolder(folder / "table.csv")


@pytest.fixture(scope="module")
def noises(tmp_path_factory: pytest.TempPathFactory) -> AudioFolder:
    return write_sounds(tmp_path_factory.mktemp("noises"), *(0.2 + 0.04 * k for k in range(12)))


@pytest.fixture(scope="module")
def songs(tmp_path_factory: pytest.TempPathFactory) -> AudioFolder:
    return write_sounds(tmp_path_factory.mktemp("songs"), *(11.0 if k % 4 else 2.0 for k in range(20)))


def test_trunk_config_builds_every_architecture() -> None:
    for name in ("mean_attention", "gru", "lstm", "sha_rnn", "convolutional"):
        trunk = replace(TRUNK, trunk=name, qk_norm=True, scaled_residual_init=True).build()
        assert not isinstance(trunk, Transformer), "options of a transformer are left to the decoder"
    assert isinstance(replace(TRUNK, heads=None, ffn_dim=None).build(), Transformer)
    with pytest.raises(InputError, match="drop_path"):
        replace(TRUNK, trunk="gru", drop_path=0.1).build()
    with pytest.raises(InputError, match="'gruu'"):
        replace(TRUNK, trunk="gruu").build()


@pytest.mark.parametrize(("positions", "added"), [("rotary", "none"), ("learned", "learned"), ("none", "none")])
def test_input_positions_are_the_tokenizers(positions: Any, added: str) -> None:
    assert TrunkConfig(positions=positions).input_positions == added


def test_classifier_config_tags_or_classifies(noises: AudioFolder) -> None:
    head = ClassifierConfig(label_smoothing=0.2).build(noises, 8)
    assert isinstance(head, ClassificationHead)
    assert head.label_smoothing == 0.2
    assert isinstance(ClassifierConfig().build(noises, 8, tags=True), TaggingHead)
    with pytest.raises(InputError, match=r"label_smoothing=0\.2"):
        ClassifierConfig(label_smoothing=0.2).build(noises, 8, tags=True)
    with pytest.raises(InputError, match="pooling=cls"):
        ClassifierConfig("cls").build(noises, 8, class_token=False)


def write_pictures(folder: Path, *sides: int) -> ImageFolder:
    """Write bright pictures, a third as wide as high, of these heights, in two classes and three folds."""
    rows = ["file,fold"]
    for number, side in enumerate(sides):
        path = folder / "ab"[number % 2] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(100, 256, (side, -(-side // 3)), np.uint8)).save(path)
        rows.append(f"{path.relative_to(folder)},{number // 2 % 3}")
    (folder / "folds.csv").write_text("\n".join(rows) + "\n")
    return ImageFolder(folder)


@pytest.mark.slow
def test_patch_follows_median_picture_in_every_fold(tmp_path: Path) -> None:
    folders = [(8, 8, *[64] * 28), (64, 64, *[16] * 28), [8, 16, 64] * 10]
    for number, sides in enumerate(folders):
        write_pictures(tmp_path / str(number), *sides)
    sources: list[ImageFolder] = []
    for fold in range(3):
        sources = [ImageFolder(tmp_path / str(number), fold=fold) for number in range(3)]
        patches = [ImageFrontend().build(source, TRUNK, "mean", "stop").patch for source in sources]
        assert patches == [8, 2, 2]
    assert ImageFrontend(patch=4).build(sources[2], TRUNK, "mean", "stop").patch == 4


def test_patch_is_remembered_by_a_run(tmp_path: Path) -> None:
    small, large = (
        write_pictures(tmp_path / "a" / "same", *[16] * 12),
        write_pictures(tmp_path / "b" / "same", *[64] * 12),
    )
    with recording_fitted() as learned:
        assert ImageFrontend().build(small, TRUNK, "mean", "stop").patch == 2
    save_fitted(learned, tmp_path)
    assert ImageFrontend().build(large, TRUNK, "mean", "stop").patch == 8
    with recording_fitted(tmp_path):
        assert ImageFrontend().build(large, TRUNK, "mean", "stop").patch == 2


def test_image_normalization_uses_training_split(tmp_path: Path) -> None:
    for name, gray in (("train", 51), ("val", 153), ("test", 255)):
        for label in "ab":
            (tmp_path / name / label).mkdir(parents=True)
            Image.new("L", (8, 8), gray).save(tmp_path / name / label / "1.png")
    tokenizer = ImageFrontend().build(ImageFolder(tmp_path), TRUNK, "mean", "stop")
    torch.testing.assert_close(tokenizer.mean, torch.full((3,), 51 / 255))


def test_unreadable_pictures_are_named(tmp_path: Path) -> None:
    source = write_pictures(tmp_path, *[8] * 12)
    for path in tmp_path.glob("*/*.png"):
        path.write_text("no picture")
    with pytest.raises(InputError, match=source.name):
        ImageFrontend().build(source, TRUNK, "mean", "skip")
    with pytest.raises(InputError, match=r"\.png"):
        ImageFrontend().build(source, TRUNK, "mean", "stop")


@pytest.mark.parametrize(
    ("config", "views"),
    [
        *[(ImageAugmentationConfig(), 5), (ImageAugmentationConfig(crop=0), 1)],
        *[(ImageAugmentationConfig(num_crops=1), 1), (ImageAugmentationConfig(num_crops=3), 3)],
        (ImageAugmentationConfig(flip=True, num_crops=7), 7),
    ],
)
def test_image_views_follow_training_crops(config: ImageAugmentationConfig, views: int, tmp_path: Path) -> None:
    tokenizer = ImageFrontend(patch=2).build(write_pictures(tmp_path, *[8] * 12), TRUNK, "mean", "stop")
    tta = config.tta(tokenizer)
    assert (tta is None, config.build(tokenizer, 2) is None) == (views == 1, config.crop == 0)


@pytest.mark.parametrize(
    "option",
    [{"crop": 1}, {"flip": True}, {"randaugment": 9}, {"random_erasing": 0.5}, {"mixup": 0.8}, {"cutmix": 1.0}],
    ids=str,
)
def test_image_option_changes_batches(option: dict[str, Any], tmp_path: Path) -> None:
    source = write_pictures(tmp_path, *[16] * 24)
    tokenizer = ImageFrontend(patch=4).build(source, TRUNK, "mean", "stop")
    augmentation = replace(ImageAugmentationConfig(crop=0), **option).build(tokenizer, 2)
    assert augmentation is not None
    encoded, _ = encode_split(source.split("train"), tokenizer, ClassificationHead(source.labels, TRUNK.dim))
    batch = collate(encoded, range(len(encoded)))
    assert not torch.equal(augmentation(batch, torch.Generator().manual_seed(0)).values, batch.values)


@pytest.mark.parametrize(("seconds", "stack"), [(0.05, 2), (0.2, 2), (0.42, 4), (0.6, 8), (5.0, 8)])
def test_stack_cuts_median_clip_into_ten_tokens(seconds: float, stack: int, tmp_path: Path) -> None:
    clips = ClipStatistics(write_sounds(tmp_path, *[seconds] * 6), "genre")
    assert AudioFrontend().frames_per_token(clips) == stack


@pytest.mark.slow
def test_audio_frontend_builds_every_kind(noises: AudioFolder) -> None:
    clips = ClipStatistics(noises, "genre")
    default = AudioFrontend().build(noises, TRUNK, clips, "stop")
    assert isinstance(default, FrameTokenizer)
    assert default.tiles.patch == default.tiles.stride == (4, 64)
    assert isinstance(default.project, FrameStem)
    plain = AudioFrontend(stem=None, normalize="whole", stack=2).build(noises, TRUNK, clips, "stop")
    assert isinstance(plain.project, LinearProjection)
    patches = AudioFrontend(patch=(8, 16), stride=(4, 8)).build(noises, TRUNK, clips, "stop")
    assert (patches.tiles.patch, patches.tiles.stride) == ((8, 16), (4, 8))
    assert isinstance(patches.project, LinearProjection)
    waveform = AudioFrontend(sample_rate=4000, tokenizer="waveform", stack=2).build(noises, TRUNK, clips, "stop")
    assert isinstance(waveform, WaveformTokenizer)
    with pytest.raises(InputError, match="tokenizer=waveform"):
        AudioFrontend(tokenizer="waveform", patch=(4, 4)).build(noises, TRUNK, clips, "stop")


def test_audio_augmentation_reaches_transform(noises: AudioFolder) -> None:
    clips, frontend = ClipStatistics(noises, "genre"), AudioFrontend()
    tokenizer = frontend.build(noises, TRUNK, clips, "stop")
    config = AudioAugmentationConfig(
        mixup=0.3, speed_perturb=0.1, crop=0.25, gain=3, random_eq=2, time_masks=1, time_width=0.3, band_masks=2
    )
    transform = config.resolve(frontend, clips, "genre").build(tokenizer, 2)
    assert isinstance(transform, RandomAudioTransform)
    assert transform.mixup is not None
    assert (transform.mixup.alpha, transform.speed_perturb, transform.gain, transform.random_eq) == (0.3, 0.1, 3, 2)
    assert (transform.time_masks, transform.band_masks, transform.crop_frames) == ((1, 0.3), (2, 0.2), 24)
    off = AudioAugmentationConfig(crop=0, freq_shift=0, gain=0).resolve(frontend, clips, "genre")
    assert (off.build(tokenizer, 2), off.tta(tokenizer)) == (None, None)


def test_gain_and_shift_follow_the_task(noises: AudioFolder) -> None:
    clips = ClipStatistics(noises, "genre")

    def resolved(target: str = "genre", **frontend: Any) -> tuple[float | None, float | None]:
        config = AudioAugmentationConfig().resolve(AudioFrontend(**frontend), clips, target)
        return config.gain, config.freq_shift

    assert (resolved(), resolved("tags"), resolved(normalize="example")) == ((6, 0.1), (0, 0.1), (0, 0.1))
    assert resolved(tokenizer="waveform") == (6, 0)
    options: list[dict[str, Any]] = [{"gain": 6.0}, {"random_eq": 2.0}]
    for option in options:
        with pytest.raises(InputError, match=f"{next(iter(option))}=.*normalize=example"):
            AudioAugmentationConfig(**option).resolve(AudioFrontend(normalize="example"), clips, "genre")


def crops(source: AudioFolder, **options: Any) -> tuple[float | None, int | None]:
    config = AudioAugmentationConfig(**options).resolve(AudioFrontend(), ClipStatistics(source, "genre"), "genre")
    return config.crop, config.num_crops


def test_long_clips_are_cropped(noises: AudioFolder, songs: AudioFolder) -> None:
    assert (crops(noises), crops(songs), crops(songs, crop=0.0)) == ((None, 1), (6, 5), (None, 1))
    assert (crops(songs, crop=1.2), crops(songs, num_crops=1)) == ((1.2, 1), (6, 1))
    assert crops(songs, crop=1.2, num_crops=3) == (1.2, 3)


@pytest.mark.parametrize(("median", "longest", "crop"), [(1, 17, None), (1, 19, 6), (7, 22, None), (7, 24, 7.7)])
def test_one_outlier_turns_crops_on(median: int, longest: int, crop: float | None, tmp_path: Path) -> None:
    source = write_sounds(tmp_path, longest, *[median] * 19, rate=400)
    assert crops(source)[0] == pytest.approx(crop)


def test_durations_are_remembered_by_a_run(tmp_path: Path) -> None:
    folders = tmp_path / "a" / "same", tmp_path / "b" / "same"
    for folder in folders:
        folder.mkdir(parents=True)
    long, short = write_sounds(folders[0], *[11] * 10), write_sounds(folders[1], *[1] * 10)
    with recording_fitted() as learned:
        assert ClipStatistics(long, "genre").median == 11
    save_fitted(learned, tmp_path)
    assert ClipStatistics(short, "genre").median == 1
    with recording_fitted(tmp_path):
        assert ClipStatistics(short, "genre").median == 11


def test_parallel_text_config_opens_every_kind(tmp_path: Path) -> None:
    lines = ["a dog\tein Hund", "a dog\tein Hund", "a\teine sehr lange Katze", *(f"{k}\t{k}" for k in range(20))]
    table, sides = tmp_path / "both.tsv", [tmp_path / "en", tmp_path / "de"]
    table.write_text("\n".join(lines))
    for k, side in enumerate(sides):
        side.write_text("\n".join(line.split("\t")[k] for line in lines))
    for data in (str(table), ",".join(map(str, sides))):
        source = ParallelTextConfig(data, target="de", length_ratio=3.0, duplicates="drop").build()
        assert isinstance(source, ParallelText)
        assert source.dropped == {"length_ratio": 1, "duplicates": 1}
    assert isinstance(ParallelTextConfig().build(), GrammarPairs)
    assert isinstance(ParallelTextConfig("multi30k", test="2017").build(), Multi30k)
    assert isinstance(ParallelTextConfig(extra=str(table), duplicates="drop").build(), WithExtraPairs)
    assert ParallelTextConfig(target="de").name == "en-de"


def test_own_val_and_test_files_are_read(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("train.tsv", "val.tsv", "test.en", "test.de")}
    for name, file in files.items():
        second = "\tx" if name.endswith("tsv") else ""
        file.write_text("".join(f"{name} {k}{second}\n" for k in range(9)))
    train, val, *test = map(str, files.values())
    source = ParallelTextConfig(train, val=val, test=",".join(test)).build()
    last = [source.split(name)[8] for name in SPLITS]
    assert last == [("train.tsv 8", "x"), ("val.tsv 8", "x"), ("test.en 8", "test.de 8")]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        *[({"length_ratio": 2.0}, "data=embedded"), ({"duplicates": "drop"}, "data=embedded")],
        *[({"val": "some.tsv"}, "data=embedded"), ({"test": "some.tsv"}, "data=embedded")],
        ({"data": "multi30k", "val": "some.tsv"}, "data=multi30k"),
    ],
)
def test_options_that_the_data_lack_are_refused(option: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ParallelTextConfig(**option).build()


def test_vocabulary_is_learned_from_limited_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "both.tsv"
    table.write_text("".join(f"{k}\t{k}\n" for k in range(50)))
    source, texts = ParallelText(str(table)), list[str]()
    fit = Vocabulary.fit

    def record(learned: Any, **options: Any) -> Vocabulary:
        texts.extend(learned)
        return fit(["0123456789"], **options)

    monkeypatch.setattr(Vocabulary, "fit", record)
    monkeypatch.setattr("unifier.options.vocabulary.MAX_VOCABULARY_TEXTS", 10)
    learn_vocabulary("digits", source, 300, Training(steps=1), targets=True)
    assert texts == [text for pair in list(source.split("train"))[::4] for text in pair]
    texts.clear()
    learn_vocabulary("digits", source, 300, Training(steps=1), targets=False)
    assert texts == [pair[0] for pair in list(source.split("train"))[::4]]


def test_sized_for_fills_in_epochs_alone(noises: AudioFolder) -> None:
    count = len(noises.split("train"))
    assert Training().sized_for(noises, "noises").epochs == 50_000 / count
    assert Training().sized_for(noises, "noises", minimum=1e5).epochs == 1e5
    budgets: list[dict[str, Any]] = [{"steps": 3}, {"tokens": 3}, {"seconds": 3.0}, {"epochs": 3.0}]
    for budget in budgets:
        training = Training(**budget)
        assert training.sized_for(noises, "noises") is training
    assert fitted("noises-epochs", lambda: 7) == 7, "nothing is remembered outside of a run"
