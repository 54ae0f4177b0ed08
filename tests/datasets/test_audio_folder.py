"""Sounds of one's own in a table or in class folders: splits, folds, groups, tags and wrong files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from unifier.data.dataset import Examples
from unifier.data.source import SPLITS
from unifier.datasets.audio_folder import AudioFolder
from unifier_tokenizers import InputError


def paths_of(split: Examples[Any]) -> list[Path]:
    return [Path(split.example_id(index)) for index in range(len(split))]


@pytest.mark.slow
def test_audio_folder_keeps_contract(write_tone: Callable[..., Path], check_source: Callable[..., None]) -> None:
    def make(folder: Path) -> AudioFolder:
        rows = ["file,label,group"]
        for number in range(60):
            write_tone(folder / "sounds" / f"{number}.wav", channels=1 + number % 2)
            rows.append(f"sounds/{number}.wav,{'ab'[number % 2]},speaker {number // 4}")
        (folder / "table.csv").write_text("\n".join(rows) + "\n")
        return AudioFolder(folder / "table.csv")

    check_source(make)


def write_sounds(folder: Path, header: str, *rows: str) -> Path:
    """Write a table and its sounds, and return the table."""
    for row in rows:
        soundfile.write(folder / row.split(",")[0], np.zeros((50, 2)), 22050)
    (folder / "table.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "table.csv"


def test_audio_folder_rare_label_stays_in_train_and_empty_cell_is_own_group(tmp_path: Path) -> None:
    rows = [f"{number}.wav,{'rare' if number == 7 else 'odd'}" for number in range(21)]
    source = AudioFolder(write_sounds(tmp_path, "file,label", *rows))
    assert [[target for _, target in source.split(name)].count("rare") for name in SPLITS] == [1, 0, 0]
    table = write_sounds(tmp_path, "file,label,fold,group", "a.wav,x,1,", "b.wav,x,2,", "c.wav,x,3, ")
    assert [len(AudioFolder(table).split(name)) for name in SPLITS] == [1, 1, 1]
    assert AudioFolder(write_sounds(tmp_path, "file,label,,", *[f"{k}.wav,x,," for k in range(5)])).labels == ("x",)


def test_audio_folder_reads_given_splits(tmp_path: Path) -> None:
    rows = ("a.wav,dog,test", "b.wav,dog,train", "c.wav,cat,train", "d.wav,cat,val")
    source = AudioFolder(write_sounds(tmp_path, "file,label,split", *rows))
    assert source.labels == ("cat", "dog")
    assert [[target for _, target in source.split(name)] for name in SPLITS] == [["dog", "cat"], ["cat"], ["dog"]]
    waveform, rate = source.split("test")[0].input
    assert (waveform.shape, waveform.dtype, rate) == ((2, 50), np.float32, 22050)


@pytest.mark.parametrize("groups", [False, True])
def test_audio_folder_holds_out_missing_splits(tmp_path: Path, groups: bool) -> None:
    train = [f"{k}.wav,{'dog' if k % 2 else 'cat'},train,speaker {k // 4}" for k in range(40)]
    test = [f"{k}.wav,dog,test,other" for k in range(40, 45)]
    rows = [row if groups else row.rpartition(",")[0] for row in [*test, *train]]
    source = AudioFolder(write_sounds(tmp_path, "file,label,split" + ",group" * groups, *rows))
    assert [len(source.split(name)) for name in SPLITS] == [36, 4, 5]
    assert {target for _, target in source.split("val")} == {"cat", "dog"}
    if groups:
        speakers = [{int(path.stem) // 4 for path in paths_of(source.split(name))} for name in ("train", "val")]
        assert set.isdisjoint(*speakers)
    assert {path.name for path in paths_of(source.split("test"))} == {f"{k}.wav" for k in range(40, 45)}


def test_audio_folder_reads_folds(tmp_path: Path) -> None:
    rows = [f"{fold}{k}.wav,dog,{fold},train" for fold in (1, 2, 3, 4) for k in range(2)]
    path = write_sounds(tmp_path, "file,label,fold,split", *rows)
    tested = [AudioFolder(path, fold=fold).split("test") for fold in (1, 2, 3, 4)]
    assert [Path(split.example_id(0)).name for split in tested] == ["10.wav", "20.wav", "30.wav", "40.wav"]
    assert Path(AudioFolder(path, fold=4).split("val").example_id(0)).name == "10.wav"
    assert len(AudioFolder(path).split("train")) == 6  # The column split counts if no fold is given.
    with pytest.raises(InputError, match=r"fold 0.*1, 2, 3, 4"):
        AudioFolder(path, fold=0).split("test")
    with pytest.raises(InputError, match=r"fold=1.*file, label"):
        AudioFolder(write_sounds(tmp_path, "file,label", "a.wav,x"), fold=1).split("train")


def test_audio_folder_tags(tmp_path: Path) -> None:
    rows = [f"{k}.wav,{tags}" for k, tags in enumerate(["loud;fast", "loud", "", "slow; loud"] * 5)]
    source = AudioFolder(write_sounds(tmp_path, "file,label", *rows), target="tags")
    assert source.labels == ("fast", "loud", "slow")
    assert (source.score_range.metric, source.score_range.chance) == ("macro_auc", 0.5)
    targets = [target for name in SPLITS for _, target in source.split(name)]
    assert set(targets) == {("loud", "fast"), ("loud",), (), ("slow", "loud")}
    commas = write_sounds(tmp_path, "file,label", *[f'{k}.wav,"loud,fast"' for k in range(5)])
    with pytest.warns(UserWarning, match="'loud,fast'"):
        assert AudioFolder(commas, target="tags").labels == ("loud,fast",)


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("name,genre", ["a.wav,pop"], "file, label.*name, genre"),
        ("file,label,label", ["a.wav,x,y"], "two columns label"),
        ("file,label", [], "table.csv"),
        ("file,label", ["a.wav,"], "line 2.*label"),
        ("file,label", ["a.wav,x", "b.wav,x", "a.wav,y"], "'a.wav' is in line 2 and in line 4"),
        ("file,label", ["a.wav,x", "./a.wav,y"], "'a.wav' is in line 2 and in line 3"),
        ("file,label,split", ["a.wav,x,dev"], r"no split \(.*line 2\) 'dev'"),
        ("file,label,split", ["a.wav,x,test", "b.wav,x,val"], "split.train"),
        ("file,label,fold", ["a.wav,x,one"], "line 2.*'one'"),
        ("file,label,fold", ["a.wav,x,1.5"], "line 2.*'1.5'"),
        (
            "file,label,split,group",
            ["a.wav,x,train,Ann", "b.wav,x,val,Ann"],
            "'Ann' is in split train and in split val",
        ),
        ("file,label,fold,group", ["a.wav,x,1,Ann", "b.wav,x,2,Ann"], "group 'Ann' is in fold 1 and in fold 2"),
        ("file,label,fold,group", ["a.wav,x,1,Ann", "b.wav,x,2, Ann"], "group 'Ann' is in fold 1 and in fold 2"),
    ],
)
def test_audio_folder_refuses_table(tmp_path: Path, header: str, rows: list[str], message: str) -> None:
    source = AudioFolder(write_sounds(tmp_path, header, *rows))
    with pytest.raises(InputError, match=message) as error:
        source.split("train")
    assert "\n" not in str(error.value)
    assert "table.csv" in str(error.value)


def test_audio_folder_names_missing_sound(tmp_path: Path) -> None:
    path = write_sounds(tmp_path, "file,label,split", "a.wav,x,train", "b.wav,x,train", "c.wav,x,val", "d.wav,x,test")
    (tmp_path / "a.wav").unlink()
    split = AudioFolder(path).split("train")
    with pytest.raises(InputError, match=r"a\.wav"):
        split[0]
    assert split[1].target == "x"


def write_sound(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.zeros(4000), 8000)


@pytest.mark.slow
def test_audio_folder_reads_class_folders(tmp_path: Path) -> None:
    endings = ("wav", "flac", "ogg", "mp3", "aiff", "AU")
    for number, ending in enumerate(endings * 4):
        write_sound(tmp_path / ("cat" if number % 2 else "dog") / f"{number:02}.{ending}")
    for other in (".hidden.wav", "notes.txt", "1.m4a", "2.M4A"):
        (tmp_path / "cat" / other).write_text("no sound")
    source = AudioFolder(tmp_path)
    with pytest.warns(UserWarning, match=r"2 \.m4a, 1 \.txt"):
        assert len(source.split("train"))
    assert (source.labels, source.folds) == (("cat", "dog"), ())
    splits = [source.split(name) for name in SPLITS]
    assert [len(split) for split in splits] == [20, 2, 2]
    assert {Path(split.example_id(i)).suffix[1:] for split in splits for i in range(len(split))} == {*endings}
    assert all(
        Path(split.example_id(i)).parent.name == target for split in splits for i, (_, target) in enumerate(split)
    )
    assert {target for _, target in splits[2]} == {"cat", "dog"}
    for other in ("notes.txt", "1.m4a", "2.M4A"):
        (tmp_path / "cat" / other).unlink()
    before = source.sha256
    write_sound(tmp_path / "cat" / "99.wav")
    assert AudioFolder(tmp_path).sha256 != before


def test_audio_folder_reads_folds_of_folder(tmp_path: Path) -> None:
    rows = ["file,fold,group"]
    for number in range(12):
        file = f"{'cat' if number % 2 else 'dog'}/{number:02}.wav"
        write_sound(tmp_path / file)
        rows.append(f"{file},{number % 4 + 1},owner {number % 8}")
    before = AudioFolder(tmp_path).sha256
    (tmp_path / "folds.csv").write_text("\n".join([rows[0], *reversed(rows[1:])]) + "\n")
    sources = [AudioFolder(tmp_path, fold=fold) for fold in (None, 2, 3, 4)]
    tested, validated = [source.split("test") for source in sources], [source.split("val") for source in sources]
    assert [{int(Path(split.example_id(i)).stem) % 4 + 1 for i in range(3)} for split in (*tested, *validated)] == [
        {fold} for fold in (1, 2, 3, 4, 2, 3, 4, 1)
    ]
    assert (sources[0].labels, sources[0].folds) == (("cat", "dog"), (1, 2, 3, 4))
    assert sources[0].sha256 != before
    (tmp_path / "folds.csv").write_text((tmp_path / "folds.csv").read_text().replace("owner 7", "owner 2"))
    with pytest.raises(InputError, match=r"folds\.csv: group 'owner 2' is in fold 4 and in fold 3"):
        AudioFolder(tmp_path).split("train")


def test_audio_folder_reads_split_folders(tmp_path: Path) -> None:
    for name in SPLITS:
        write_sound(tmp_path / name / "cat" / f"{name}.wav")
    split = {name: AudioFolder(tmp_path).split(name) for name in SPLITS}
    assert {name: Path(one.example_id(0)).stem for name, one in split.items()} == {name: name for name in SPLITS}


def test_audio_folder_refuses_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/dog/1\.wav") as error:
        AudioFolder(tmp_path).split("train")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="target=tags"):
        AudioFolder(tmp_path, target="tags").split("train")
    write_sound(tmp_path / "cat" / "1.wav")
    with pytest.raises(InputError, match=r"folds\.csv"):
        AudioFolder(tmp_path, fold=1).split("train")


@pytest.mark.parametrize(
    "name", ["../secret.wav", "{}/secret.wav", "a/../../secret.wav", "link.wav", "linked/secret.wav"]
)
def test_files_outside_the_folder_need_a_setting(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    (folder / "a").mkdir(parents=True)
    table = write_sounds(folder, "file,label", *[f"{k}.wav,x" for k in range(4)])
    soundfile.write(tmp_path / "secret.wav", np.zeros(50), 22050)
    (folder / "link.wav").symlink_to(tmp_path / "secret.wav")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "inside.wav").symlink_to(folder / "0.wav")
    table.write_text(table.read_text() + "a/../inside.wav,x\n")
    assert len(AudioFolder(table).split("train")) == 3
    table.write_text(table.read_text() + f"{name.format(tmp_path)},x\n")
    with pytest.raises(InputError, match=r"table\.csv, line 7: .*allow_outside=true"):
        AudioFolder(table).split("train")
    assert sum(len(AudioFolder(table, allow_outside=True).split(part)) for part in SPLITS) == 6


@pytest.mark.parametrize("name", ["a\0b.wav", "x" * 300 + ".wav", "pipe.wav"])
def test_impossible_file_names_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    table = write_sounds(tmp_path, "file,label,split", *[f"{k}.wav,x,train" for k in range(4)])
    os.mkfifo(tmp_path / "pipe.wav")
    table.write_text(table.read_text() + f"{name},x,test\n")
    source = AudioFolder(table)
    assert len(source.sha256) == 64
    with pytest.raises(InputError) as error:
        source.split("test")[0]
    assert "\n" not in str(error.value)
