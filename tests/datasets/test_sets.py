"""Data sets: the contract of every one of them, and what each says of files that are wrong."""

import csv
import gzip
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from unifier.data.dataset import Examples
from unifier.data.source import SPLITS
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.emotify import EMOTIFY_GENRES, EMOTIONS, Emotify
from unifier.datasets.gtzan import GTZAN
from unifier.datasets.image_folder import ImageFolder
from unifier.datasets.mnist import MNIST
from unifier.datasets.multi30k import MULTI30K_FILES, Multi30k
from unifier.datasets.parallel_text import ParallelText
from unifier_tokenizers import Audio, InputError


def tone(path: Path, level: float = 0.5, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # WAV whatever its name: an Ogg file holds a number that is drawn anew each time.
    soundfile.write(path, np.full((80, channels), level), 16000, format="WAV")


def multi30k(folder: Path) -> Multi30k:
    folder.mkdir()
    for name in MULTI30K_FILES:
        texts = "".join(f"{name} {number}\n" for number in range(12))
        (folder / name).write_bytes(gzip.compress(texts.encode(), mtime=0))
    return Multi30k("de", "fr", data=folder)


def idx_files(folder: Path) -> None:
    folder.mkdir()
    for stem, count in (("train", 240), ("t10k", 20)):
        labels = bytes(i % 10 for i in range(count))
        pixels = bytes(label for label in labels for _ in range(28 * 28))
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + pixels
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images, 1, mtime=0))
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(struct.pack(">4BI", 0, 0, 8, 1, count) + labels, mtime=0)
        )


def fashion_mnist(folder: Path) -> MNIST:
    idx_files(folder)
    return MNIST("fashion_mnist", data=folder)


def mnist(folder: Path) -> MNIST:
    idx_files(folder)
    return MNIST(data=folder)


def table(path: Path, rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def emotify(folder: Path) -> Emotify:
    tracks: list[Sequence[object]] = [("file", "genre", "artist", "fold")]
    felt: list[Sequence[object]] = [("file", "n_annotators", *EMOTIONS)]
    for number in range(20):
        genre = EMOTIFY_GENRES[number % 4]
        file = f"audio/{genre}/{number}.wav"
        tone(folder / file)
        tracks.append((file, genre, f"artist {number // 2}", number // 4))
        felt.append((file, 48, 0.3333, 0.3125, *(0.0 for _ in EMOTIONS[2:])))  # 16 and 15 listeners of 48
    table(folder / "tracks.csv", tracks)
    table(folder / "emotions.csv", felt)
    return Emotify(data=folder)


def gtzan(folder: Path) -> GTZAN:
    for genre in GTZAN.labels:
        for number in (0, 54, 79, 80, 89, 90, 99):
            tone(folder / "genres_original" / genre / f"{genre}.{number:05}.wav", level=number / 100)
    return GTZAN(data=folder)


def parallel_text(folder: Path) -> ParallelText:
    folder.mkdir()
    for language in ("en", "de"):
        (folder / f"text.{language}").write_text("".join(f"{language} {number}\n" for number in range(40)))
    return ParallelText((folder / "text.en", folder / "text.de"))


def image_folder(folder: Path) -> ImageFolder:
    for label, count in (("cat", 12), ("dog", 30), ("yeti", 1)):
        (folder / label).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (5, 4), (number, len(label), 0)).save(folder / label / f"{number}.PNG")
        (folder / label / ".hidden.png").write_text("no picture")
    (folder / ".cache").mkdir()
    return ImageFolder(folder)


def audio_folder(folder: Path) -> AudioFolder:
    rows: list[Sequence[object]] = [("file", "label", "group")]
    for number in range(60):
        tone(folder / "sounds" / f"{number}.wav", channels=1 + number % 2)
        rows.append((f"sounds/{number}.wav", "ab"[number % 2], f"speaker {number // 4}"))
    table(folder / "table.csv", rows)
    return AudioFolder(folder / "table.csv")


def files(split: Examples[Any]) -> list[Path]:
    return [Path(split.example_id(index)) for index in range(len(split))]


NAMED = [multi30k, mnist, emotify, gtzan]
MADE = [*NAMED, fashion_mnist, parallel_text, image_folder, audio_folder]
Check = Callable[..., None]


by_number = pytest.mark.filterwarnings("ignore:.* gtzan is split by number")


@by_number
@pytest.mark.parametrize("make", MADE)
def test_the_contract(make: Callable[[Path], Any], keeps_the_contract: Check) -> None:
    keeps_the_contract(make, named=make in NAMED)


def test_multi30k_pairs_its_languages_and_tests(tmp_path: Path) -> None:
    source = multi30k(tmp_path / "data")
    assert (source.source_language, source.target_language) == ("de", "fr")
    assert source.split("val")[3] == ("val.de.gz 3", "val.fr.gz 3")
    assert source.split("train").example_id(11).endswith("train.de.gz, line 12")
    later = Multi30k(test="2017", data=tmp_path / "data")
    assert later.split("test")[0] == ("test_2017_flickr.en.gz 0", "test_2017_flickr.de.gz 0")
    with pytest.raises(InputError, match="2017 test of multi30k has no Czech"):
        Multi30k("en", "cs", test="2017")
    with pytest.raises(InputError, match="no language 'es': choose one of en, de, fr, cs"):
        Multi30k("es")
    with pytest.raises(InputError, match="no test '2018'"):
        Multi30k(test="2018")


@pytest.mark.parametrize("make", [fashion_mnist, mnist])
def test_idx_pictures_and_labels_belong_together(make: Callable[[Path], Any], tmp_path: Path) -> None:
    source = make(tmp_path / "data")
    for name, count in zip(SPLITS, (22, 2, 2), strict=True):
        targets = [example.target for example in source.split(name)]
        assert {label: targets.count(label) for label in source.labels} == dict.fromkeys(source.labels, count)
    for picture, target in source.split("val"):
        assert (picture.shape, picture.dtype) == ((28, 28), np.uint8)
        assert (picture == source.labels.index(target)).all()


def test_idx_files_that_are_wrong(tmp_path: Path) -> None:
    source = fashion_mnist(tmp_path / "data")
    labels = tmp_path / "data" / "train-labels-idx1-ubyte.gz"
    for wrong, said in (
        (b"<html>", "idx file"),
        (struct.pack(">4BI", 0, 0, 8, 1, 9) + b"\0", "promises 9 bytes and holds 1"),
        (struct.pack(">4BI", 0, 0, 8, 1, 1) + b"\0", "do not fit"),
        (struct.pack(">4BI", 0, 0, 8, 1, 240) + b"\x0a" * 240, "label 10"),
    ):
        labels.write_bytes(gzip.compress(wrong))
        with pytest.raises(InputError, match=said) as error:
            source.split("train")
        assert str(labels) in str(error.value)


def test_emotify_folds_and_tasks(tmp_path: Path) -> None:
    source = emotify(tmp_path / "data")
    artists = [artist for name in SPLITS for artist in {int(clip.stem) // 2 for clip in files(source.split(name))}]
    assert len(artists) == len(set(artists)), "an artist is in two splits"
    waveform, rate = source.split("test")[0].input
    assert (waveform.shape, waveform.dtype, rate) == ((80,), np.float32, 16000)
    folds = [Emotify(fold=fold, data=tmp_path / "data") for fold in range(5)]
    for fold, following in zip(folds, folds[1:] + folds[:1], strict=True):
        assert files(fold.split("val")) == files(following.split("test"))
    tags = Emotify("tags", data=tmp_path / "data")
    assert tags.labels == EMOTIONS
    assert {example.target for example in tags.split("train")} == {EMOTIONS[:1]}
    with pytest.raises(InputError, match="no fold 5"):
        Emotify(fold=5)
    with pytest.raises(InputError, match="no task 'mood'"):
        Emotify("mood")  # pyright: ignore[reportArgumentType]


def test_emotify_tables_that_are_wrong(tmp_path: Path) -> None:
    def refused(column: str, cell: str, said: str) -> None:
        emotify(tmp_path / "data")
        path = tmp_path / "data" / "tracks.csv"
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        rows[0][column] = cell
        table(path, [list(rows[0]), *(list(row.values()) for row in rows)])
        with pytest.raises(InputError, match=said):
            Emotify(data=tmp_path / "data").split("train")

    refused("artist", "artist 9", "'artist 9' is in fold 0 and in fold 4")
    refused("genre", "polka", r"no genre \(.*line 2\) 'polka'")
    refused("fold", "x", "line 2: a number is expected")
    refused("file", "audio/pop/none.ogg", "emotions.csv has no row for audio/pop/none.ogg")


def test_gtzan_by_number_and_by_list(tmp_path: Path) -> None:
    source = gtzan(tmp_path / "data")
    with pytest.warns(UserWarning, match="gtzan is split by number, so artists and recordings recur") as said:
        assert source.split("test").example_id(0).endswith("blues.00090.wav")
    assert "\n" not in str(said[0].message)
    assert {split: len(source.split(split)) for split in SPLITS} == {"train": 30, "val": 20, "test": 20}
    lists = [
        ("train", "blues/blues.00000.wav\n\n"),
        ("valid", "jazz/jazz.00099.wav\n"),
        ("test", "pop/pop.00054.wav\n"),
    ]
    for name, clips in lists[:2]:
        (tmp_path / "data" / f"{name}_filtered.txt").write_text(clips)
    with pytest.raises(InputError, match=r"test_filtered\.txt: no such file"):
        GTZAN(data=tmp_path / "data").split("train")
    listed = tmp_path / "data" / "test_filtered.txt"
    listed.write_text(lists[2][1])
    filtered = GTZAN(data=tmp_path / "data")
    assert [[example.target for example in filtered.split(split)] for split in SPLITS] == [["blues"], ["jazz"], ["pop"]]
    assert filtered.sha256 != source.sha256
    listed.write_text("pop/pop.00001.wav\n")
    with pytest.raises(InputError, match=r"test_filtered.txt, line 1: there is no clip 'pop/pop.00001.wav'"):
        GTZAN(data=tmp_path / "data").split("train")
    listed.write_text(lists[0][1].strip())
    with pytest.raises(InputError, match=r"'blues.00000.wav' is in train_filtered.txt and in test_filtered.txt"):
        GTZAN(data=tmp_path / "data").split("train")


@by_number
def test_gtzan_names_the_clip_that_is_broken(tmp_path: Path) -> None:
    train = gtzan(tmp_path / "data").split("train")
    broken = tmp_path / "data" / "genres_original" / "jazz" / "jazz.00054.wav"
    broken.write_bytes(broken.read_bytes()[:120])
    index = next(i for i in range(len(train)) if train.example_id(i) == str(broken))
    with pytest.raises(InputError, match=r"jazz\.00054\.wav cannot be read as a sound"):
        train[index]
    assert isinstance(train[index - 1].input, Audio)


@pytest.mark.parametrize("make", MADE)
def test_every_set_says_what_chance_scores(make: Callable[[Path], Any], tmp_path: Path) -> None:
    source = make(tmp_path / "data")
    if labels := getattr(source, "labels", None):
        assert source.score_range.metric == "accuracy"
        guesses = [(guess, label) for guess in labels for label in labels]
        assert source.score_range.chance == 100 * sum(guess == label for guess, label in guesses) / len(guesses)
    else:
        assert (source.score_range.metric, source.score_range.chance) == ("bleu", 0.0)
    assert source.score_range.origin
    assert source.score_range.reference is None or source.score_range.chance < source.score_range.reference <= 100


def test_a_reference_is_of_one_task_and_direction(tmp_path: Path) -> None:
    assert Emotify("genre").score_range.metric == "accuracy"
    tags = Emotify("tags").score_range
    assert (tags.metric, tags.chance) == ("macro_auc", 0.5)
    assert Multi30k("en", "de").score_range.reference != Multi30k("de", "en").score_range.reference
    for unknown in (Multi30k("en", "fr"), Multi30k("en", "de", test="2017")):
        assert unknown.score_range.reference is None
    table(tmp_path / "sounds.csv", [("file", "label"), ("a.wav", "x; y"), ("b.wav", "")])
    own = AudioFolder(tmp_path / "sounds.csv", target="tags").score_range
    assert (own.metric, own.chance, own.reference) == ("macro_auc", 0.5, None)
