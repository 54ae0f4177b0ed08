"""The experiment on sounds: each setting reaches what it is for, and none costs anything unless asked for."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch

from unifier import run
from unifier.config import check_settings, load_experiment
from unifier.data.dataloader import Batch, TrainDataLoader, trained_lengths
from unifier.data.encoding import encode_split
from unifier.datasets.audio_folder import AudioFolder
from unifier.experiment import Training, recording_fitted, save_fitted, sufficient_epochs
from unifier.heads.classification import ClassificationHead
from unifier_tokenizers import FrameTokenizer, InputError, WaveformTokenizer
from unifier_tokenizers.stems import FrameStem, LinearProjection

GENRES: Any = load_experiment(str(Path(__file__).parents[2] / "experiments" / "genres.py"))
SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16, "tokens": 400, "batch_tokens": 64}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve noises of 0.2 to 0.6 s, each of two labels, loud and soft."""
    folder, random = tmp_path_factory.mktemp("sounds"), np.random.default_rng(0)
    rows = ["file,label"]
    for number in range(12):
        loud = number % 2
        soundfile.write(
            folder / f"{number}.wav", random.normal(size=1600 + 300 * number) * (0.2 if loud else 0.02), 8000
        )
        rows.append(f"{number}.wav,{'loud' if loud else 'soft'}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder / "table.csv"


def described(table: Path, **given: str) -> Any:
    """The one task of an experiment whose settings are texts, as on the command line."""
    (task,) = GENRES(**check_settings(GENRES, {"data": str(table), **SMALL, **given})).tasks.values()
    return task


PLAIN = {"stem": "none", "mixup": "0", "speed_perturb": "0", "shift": "0", "gain": "0", "time_masks": "0"}


def test_by_default_sounds_go_through_a_stem_and_are_changed(table: Path) -> None:
    task = described(table)
    assert isinstance(task.tokenizer, FrameTokenizer)
    assert task.tokenizer.sample_rate == 16000
    assert task.tokenizer.tiles.patch == task.tokenizer.tiles.stride == (4, 64)
    assert isinstance(task.tokenizer.project, FrameStem)
    assert task.tokenizer.norm.kind == "band"
    changed = task.augment
    assert (changed.mixup.alpha, changed.stretch, changed.shift, changed.gain) == (0.2, 0.2, 6, 6)
    assert (changed.time_masks, changed.band_masks, changed.longest) == ((2, 0.1), (0, 0.2), None)
    learned = described(table, tokenizer="waveform").augment
    assert (learned.shift, learned.time_masks[0]) == (0, 2)


def test_a_plain_experiment_has_neither(table: Path) -> None:
    task = described(table, **PLAIN, normalize="whole")
    assert task.augment is None
    assert isinstance(task.tokenizer.project, LinearProjection)
    assert task.tokenizer.normal.kind == "whole"
    assert task.head.label_smoothing == 0


@pytest.fixture(scope="module")
def songs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen noises of 11 s and five short ones, in five folds."""
    folder, random = tmp_path_factory.mktemp("songs"), np.random.default_rng(0)
    rows = ["file,label,fold"]
    for number in range(20):
        soundfile.write(folder / f"{number}.wav", random.normal(size=4000 * (11 if number % 4 else 2)) * 0.1, 4000)
        rows.append(f"{number}.wav,{'ab'[number % 2]},{number // 4}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder / "table.csv"


def test_of_long_sounds_pieces_are_read_unless_other_settings_are_given(table: Path, songs: Path) -> None:
    ways: list[dict[str, str]] = [{}, {"crop": "0"}, {"crop": "1.2"}, {"crops": "1"}, {"crop": "1.2", "crops": "3"}]
    for given, longest, views in zip(ways, (600, None, 120, 600, 120), (5, 1, 1, 1, 3), strict=True):
        task, still = described(songs, **given), described(songs, **given, shift_views="false")
        assert task.augment.longest == longest
        columns = FrameTokenizer.encode(task.tokenizer, task.source.split("train")[1].input)
        values, positions = columns.values[None], columns.positions[None]
        batch = Batch(values, positions, torch.ones(1, values.shape[2]).bool(), torch.zeros(1), torch.zeros(1))
        assert len(list(task.views(batch))) == 3 * views, "as it is, moved up, and moved down"
        assert len(list(still.views(batch)) if still.views else [batch]) == views
    short = described(table, shift="0")
    assert (short.augment.longest, short.views) == (None, None)
    with pytest.raises(InputError, match="crops=3: 1 is the whole sound"):
        described(table, crops="3")


@pytest.mark.parametrize(("usual", "longest", "piece"), [(1, 17, None), (1, 19, 600), (7, 22, None), (7, 24, 768)])
def test_one_sound_that_is_far_longer_is_read_in_pieces_too(
    tmp_path: Path, usual: int, longest: int, piece: int | None
) -> None:
    rows = ["file,label"]
    for number in range(20):
        soundfile.write(tmp_path / f"{number}.wav", np.zeros(4000 * (usual if number else longest)), 4000)
        rows.append(f"{number}.wav,{'ab'[number % 2]}")
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    task = described(tmp_path / "table.csv", shift="0")
    assert (task.augment.longest, task.views is None) == (piece, piece is None)
    if piece is not None:
        split, _ = encode_split(list(task.source.split("train"))[:9], task.tokenizer, task.head)
        assert (split.lengths()[1:, 0] <= task.augment.max_length()).all(), "a usual one is left whole"


@pytest.mark.parametrize(("seconds", "stack"), [(0.05, 2), (0.2, 2), (0.42, 4), (0.6, 8), (5.0, 8)])
def test_short_sounds_are_cut_into_enough_columns(seconds: float, stack: int, tmp_path: Path) -> None:
    for number in range(6):
        sound = np.random.default_rng(number).normal(size=round(4000 * seconds)) * 0.1
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        soundfile.write(tmp_path / "ab"[number % 2] / f"{number}.wav", sound, 4000)
    assert described(tmp_path).tokenizer.tiles.patch[0] == stack


def test_a_plain_experiment_reads_long_sounds_whole(songs: Path) -> None:
    """As the study of one trunk does, whatever the recipe is."""
    plain: dict[str, Any] = inspect.getmodule(GENRES).PLAIN  # pyright: ignore
    (task,) = GENRES(data=str(songs), **plain).tasks.values()
    assert (task.augment, task.views) == (None, None)


def test_an_epoch_of_long_sounds_is_a_piece_of_each(songs: Path) -> None:
    """So 10 s or 10 minutes cost the same, and enough epochs are as many as of short ones."""
    task = described(songs, stack="8")
    split, _ = encode_split(task.source.split("train"), task.tokenizer, task.head)
    read = trained_lengths(split, task.augment)[:, 0]
    assert sorted(set(read.tolist())) == [25, 75]
    batches = TrainDataLoader({"a": split}, max_tokens=300, seed=0, budget={"epochs": 2}, augment={"a": task.augment})
    assert sum(len(batch.mask) for _, batch in batches) == pytest.approx(2 * len(split), abs=4)


def test_every_fold_hears_alike_and_a_run_goes_on_as_it_began(songs: Path, tmp_path: Path) -> None:
    found: list[float] = []
    for fold in range(5):
        with recording_fitted() as learned:
            described(songs, fold=str(fold))
        found.append(cast("float", learned["audio_folder-genre-seconds"]))
        save_fitted(learned, tmp_path)
    assert found == [11] * 5
    for number in range(20):
        soundfile.write(songs.parent / f"{number}.wav", np.zeros(8000), 4000)
    assert described(songs).augment.longest is None
    with recording_fitted(tmp_path):
        assert described(songs).augment.longest == 600


def test_a_small_set_is_read_more_often(table: Path) -> None:
    sounds: Any = [SimpleNamespace(split=lambda _, count=count: range(count)) for count in (500, 5000)]
    assert [sufficient_epochs(source) for source in sounds] == [100, 30]
    assert [sufficient_epochs(source, batch_examples=100) for source in sounds] == [300, 30]
    assert sufficient_epochs(sounds[0], batch_examples=10**6) == 1500, "a step reads no example twice"
    assert GENRES(data=str(table)).training.epochs == sufficient_epochs(AudioFolder(table))
    assert GENRES(data=str(table), epochs=3).training.epochs == 3
    assert GENRES(data=str(table), tokens=100).training.epochs is None
    with pytest.raises(InputError, match="epochs=0: a number above 0"):
        GENRES(data=str(table), epochs=0)


@pytest.mark.parametrize("seconds", [0.2, 0.4, 2.0])
def test_a_set_of_short_sounds_has_as_many_steps_as_one_of_long_ones(seconds: float, tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        sound = np.random.default_rng(number).normal(size=round(4000 * seconds)) * 0.1
        soundfile.write(tmp_path / "ab"[number % 2] / f"{number}.wav", sound, 4000)
    experiment = GENRES(data=str(tmp_path))
    (task,) = experiment.tasks.values()
    split, _ = encode_split(task.source.split("train"), task.tokenizer, task.head)
    plan = TrainDataLoader({"a": split}, max_tokens=2048, seed=0, budget={"epochs": experiment.training.epochs or 0})
    assert 1200 < len(plan) < 3000


def test_what_normalization_takes_away_is_not_asked_for(table: Path) -> None:
    with pytest.raises(InputError, match=r"gain=6.0: normalize=example"):
        described(table, gain="6.0", normalize="example")
    assert described(table, normalize="example").augment.gain == 0
    assert described(table, task="tags").augment.gain == 0, "how loud it is may be what a tag says"


def test_settings_reach_what_they_are_for(table: Path) -> None:
    patches = described(table, patch="8,16", stride="4,8", normalize="band", label_smoothing="0.1")
    assert (patches.tokenizer.tiles.patch, patches.tokenizer.tiles.stride) == ((8, 16), (4, 8))
    assert patches.tokenizer.tiles.across == 7
    assert len(patches.tokenizer.normal.mean.unique()) == 64
    assert isinstance(patches.head, ClassificationHead)
    assert patches.head.label_smoothing == 0.1
    waveform = described(table, tokenizer="waveform", stack="2", normalize="example", rate="4000")
    assert isinstance(waveform.tokenizer, WaveformTokenizer)
    assert waveform.tokenizer.tiles.patch == (100 + 40, 1)
    changed = described(
        table,
        speed_perturb="0.1",
        crop="0.25",
        gain="3",
        random_eq="2",
        time_masks="1",
        time_width="0.3",
        band_masks="2",
        band_width="0.4",
    ).augment
    assert (changed.stretch, changed.longest, changed.gain, changed.equalize) == (0.1, 24, 3, 2)
    assert (changed.time_masks, changed.band_masks) == ((1, 0.3), (2, 0.4))


def test_the_learning_rate_rises_and_falls_as_asked(table: Path) -> None:
    usual, other = (
        GENRES(data=str(table), **given).training for given in ({}, {"schedule": "constant", "warmup_ratio": 0.3})
    )
    assert (usual.schedule, usual.warmup) == (Training(steps=1).schedule, Training(steps=1).warmup_ratio)
    assert (other.schedule, other.warmup) == ("constant", 0.3)


@pytest.mark.parametrize(
    "settings",
    [
        {"speed_perturb": 0.1, "crop": 0.25, "gain": 6.0, "time_masks": 2, "band_masks": 2, "label_smoothing": 0.1},
        {
            "patch": (8, 16),
            "stride": (4, 16),
            "normalize": "band",
            "speed_perturb": 0.1,
            "band_masks": 1,
            "positions": "learned",
        },
        {"tokenizer": "waveform", "normalize": "band", "crop": 0.25, "gain": 6.0, "time_masks": 2},
    ],
    ids=["stacks", "patches", "waveform"],
)
def test_recipes_train(table: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    (result,) = run(GENRES, data=str(table), **SMALL, **settings, out=tmp_path, track="off")
    assert result.status == "finished"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tokenizer": "waveform", "patch": "4,4"}, "a patch is of a spectrogram: with tokenizer=waveform"),
        ({"patch": "4,4", "stack": "2"}, "give stack or patch, not both"),
        ({"tokenizer": "waveform", "band_masks": "1"}, "a waveform has no bands"),
        ({"normalize": "example", "random_eq": "2"}, "random_eq=2.0: normalize=example takes it away again"),
        ({"target": "tags", "label_smoothing": "0.1"}, "label_smoothing=0.1: tags have none"),
        ({"tokenizer": "leaf"}, "the setting tokenizer='leaf' does not fit"),
    ],
)
def test_settings_that_do_not_go_together(table: Path, given: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        described(table, **given)
