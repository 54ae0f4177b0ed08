"""Class folders of images and sounds: all files are found, and wrong layouts are refused."""

import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from unifier.data.audio_files import AUDIO_SUFFIXES
from unifier.data.image_files import IMAGE_SUFFIXES
from unifier.data.source import SPLITS
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.digits import Digits
from unifier.datasets.image_folder import ImageFolder
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (3, 2)).save(path, format="JPEG" if path.suffix == ".jpe" else None)
    return path


def sound(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    named = {".aif": "AIFF", ".aifc": "AIFF", ".oga": "OGG", ".opus": "OGG", ".wave": "WAV"}
    kind, subtype = named.get(path.suffix), "OPUS" if path.suffix == ".opus" else None
    soundfile.write(path, np.zeros(4000), 8000, format=kind, subtype=subtype)
    return path


def found(source: ImageFolder | AudioFolder) -> set[tuple[Path, str]]:
    splits = [source.split(name) for name in SPLITS]
    return {(Path(split.example_id(i)), split[i].target) for split in splits for i in range(len(split))}


@pytest.mark.slow
def test_every_suffix_is_read(tmp_path: Path) -> None:
    for kind, write, suffixes in ((ImageFolder, picture, IMAGE_SUFFIXES), (AudioFolder, sound, AUDIO_SUFFIXES)):
        folder = tmp_path / kind.__name__
        there = {(write(folder / "ab"[k] / f"1{ending}"), "ab"[k]) for ending in suffixes for k in (0, 1)}
        assert found(kind(folder)) == there


def test_files_at_any_depth_without_hidden_ones(tmp_path: Path) -> None:
    names = ("dog/1.png", "dog/2019/1.png", "dog/2019/may/1.png", "cat/2019/1.png")
    there = {(picture(tmp_path / name), name[:3]) for name in names}
    for hidden in (".thumbnails/1.png", "2019/.thumbnails/may/1.png", "2019/._1.png"):
        picture(tmp_path / "dog" / hidden)
    picture(tmp_path / ".elsewhere" / "4.png")
    (tmp_path / "cat" / "2020").symlink_to(tmp_path / ".elsewhere")
    (tmp_path / "dog" / "2019" / "again").symlink_to(tmp_path / "dog")  # A link to a parent is not followed.
    (tmp_path / "dog" / "itself").symlink_to(tmp_path / "dog" / "itself")
    with pytest.warns(UserWarning, match="itself"):
        assert found(ImageFolder(tmp_path)) == there | {(tmp_path / "cat" / "2020" / "4.png", "cat")}


@pytest.mark.parametrize("link", ["dog", "dog/1"])
@pytest.mark.parametrize("kind", [ImageFolder, AudioFolder])
def test_links_outside_the_folder_need_a_setting(
    kind: type[ImageFolder | AudioFolder], link: str, tmp_path: Path
) -> None:
    write, suffix = (picture, ".png") if kind is ImageFolder else (sound, ".wav")
    for name in ("cat/1", "cat/2", "cat/3"):
        write(tmp_path / "data" / f"{name}{suffix}")
    secret = write(tmp_path / "secret" / f"1{suffix}")
    at = tmp_path / "data" / (link if link == "dog" else f"{link}{suffix}")
    at.parent.mkdir(exist_ok=True)
    at.symlink_to(secret.parent if link == "dog" else secret)
    with pytest.raises(InputError, match=r"dog.*allow_outside=true") as error:
        kind(tmp_path / "data").split("train")
    assert "\n" not in str(error.value)
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    assert kind(tmp_path / "alias", allow_outside=True).labels == ("cat", "dog")


@pytest.mark.parametrize("part", ["", "test"])
def test_class_without_files_is_refused(tmp_path: Path, part: str) -> None:
    for name in ("train", "test") if part else ("",):
        for label in ("cat", "dog"):
            picture(tmp_path / name / label / "1.png")
    (tmp_path / part / "yeti" / ".thumbnails").mkdir(parents=True)
    (tmp_path / part / "yeti" / "1.heic").write_text("a format that is not read")
    with pytest.raises(InputError, match=r"/yeti .*\.avif, .*\.webp") as error:
        _ = ImageFolder(tmp_path).labels
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        *[(["Training/cat", "Testing/cat"], "Testing, Training"), (["Train/cat", "Test/cat"], "Test, Train")],
        (["valid/cat", "dev/cat"], "dev, valid"),
        (["training_set/dog", "training_set/cat", "test_set/dog", "test_set/cat"], "test_set, training_set"),
        (["seg_train/dog", "seg_train/cat", "seg_test/dog", "seg_test/cat"], "seg_test, seg_train"),
        (["Train 1/dog", "Train 1/cat", "Test 1/dog", "Test 1/cat"], "Test 1, Train 1"),
        *[(["train", "val/cat", "test/cat"], "/train/cat/1.png"), (["train/cat", "val", "test/cat"], "/val/cat/1.png")],
        (["train/cat", "val/cat", "test"], "/test/cat/1.png"),
        (["dog/train", "dog/Test", "cat/train", "cat/Test"], r"test/cat .*cat/test"),
        (["animals/dog", "animals/cat"], r"cat, dog.*/animals$"),
        (["horse", os.fsdecode(b"\xe2ne")], r"'\\udce2ne'"),
    ],
)
def test_other_folders_than_splits_and_classes_are_refused(tmp_path: Path, folders: list[str], message: str) -> None:
    for folder in folders:
        picture(tmp_path / folder / "1.png")
    for read in (lambda source: source.labels, lambda source: source.split("train")):
        with pytest.raises(InputError, match=message):
            read(ImageFolder(tmp_path))


def test_class_missing_in_train_is_refused(tmp_path: Path) -> None:
    for name in ("train/cat", "train/dog", "test/cat", "test/yeti", "val/kraken"):
        picture(tmp_path / "pictures" / name / "1.png")
        sound(tmp_path / "sounds" / name / "1.wav")
    rows = ["file,label,split"]
    for k, (label, split) in enumerate((("cat", "train"), ("dog", "train"), ("yeti", "test"), ("kraken", "val"))):
        sound(tmp_path / f"{k}.wav")
        rows.append(f"{k}.wav,{label},{split}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    for source in (
        ImageFolder(tmp_path / "pictures"),
        AudioFolder(tmp_path / "sounds"),
        AudioFolder(tmp_path / "table.csv"),
    ):
        with pytest.raises(InputError, match="kraken, yeti") as error:
            source.split("train")
        assert "\n" not in str(error.value)
    assert len(AudioFolder(tmp_path / "table.csv", target="tags").split("train")) == 2, "a tag may be rare"


def test_class_missing_in_training_folds_is_refused(tmp_path: Path) -> None:
    for name in ("cat/1", "cat/2", "cat/3", "yeti/1"):
        picture(tmp_path / "pictures" / f"{name}.png")
        sound(tmp_path / "sounds" / f"{name}.wav")
    for folder, suffix in (("pictures", "png"), ("sounds", "wav")):
        rows = [f"{name}.{suffix},{fold}" for name, fold in (("cat/1", 1), ("cat/2", 2), ("cat/3", 3), ("yeti/1", 2))]
        (tmp_path / folder / "folds.csv").write_text("\n".join(["file,fold", *rows]))
    for kind, folder in ((ImageFolder, "pictures"), (AudioFolder, "sounds")):
        for fold in (1, 2):
            with pytest.raises(InputError, match=f"fold {fold}: .*yeti"):
                kind(tmp_path / folder, fold=fold).split("train")
        assert len(kind(tmp_path / folder, fold=3).split("train")) == 2


def test_class_named_like_split_is_read(tmp_path: Path) -> None:
    there = {(picture(tmp_path / name / f"{k}.png"), name) for name in ("test tube", "flask") for k in range(3)}
    assert found(ImageFolder(tmp_path)) == there


@pytest.mark.parametrize("kind", ["images", "sounds"])
def test_copies_in_val_and_test_are_counted(kind: str, tmp_path: Path) -> None:
    for part, label, level in [(part, label, k) for part in SPLITS for k, label in enumerate(("dog", "cat"))]:
        path = tmp_path / part / label / ("1.png" if kind == "images" else "1.wav")
        path.parent.mkdir(parents=True)
        value = 10 * SPLITS.index(part) + level
        if kind == "images":
            Image.new("L", (8, 8), value).save(path)
        else:
            soundfile.write(path, np.full(80, value / 100), 8000)
    held_out, trained = (next((tmp_path / part / "dog").iterdir()) for part in ("test", "train"))
    source = ImageFolder if kind == "images" else AudioFolder
    assert source(tmp_path).copies == 0
    held_out.write_bytes(trained.read_bytes())
    assert source(tmp_path).copies == 1


@pytest.mark.parametrize(
    ("folder", "name"), [("birds", "birds"), ("my birds, 2019", "my_birds_2019"), ("train", "train_data")]
)
def test_source_has_name_of_its_folder(folder: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / folder).mkdir()
    assert (ImageFolder(tmp_path / folder).name, AudioFolder(tmp_path / folder).name) == (name, name)
    assert AudioFolder(tmp_path / folder / "table.csv").name == name
    monkeypatch.chdir(tmp_path / folder)
    assert ImageFolder(".").name == name
    task = Task(Digits(), PatchTokenizer(8, channels=1), ClassificationHead(Digits.labels, 8))
    assert Experiment(Transformer(8, 1), {name: task}, Training(steps=1)).tasks.keys() == {name}
