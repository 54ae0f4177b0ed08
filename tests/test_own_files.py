"""Files of the user's own: every layout that is promised, and one line for what is wrong in them."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from unifier.data.own.audio_folder import AudioFolder
from unifier.data.own.image_folder import ImageFolder
from unifier.data.own.parallel_text import ParallelText
from unifier.data.source import SPLITS
from unifier_tokenizers import InputError


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_two_files_packed_or_not(tmp_path: Path) -> None:
    en = written(tmp_path / "en", "one\ntwo\n")
    de = tmp_path / "de.gz"
    de.write_bytes(gzip.compress(b"eins\nzwei"))
    source = ParallelText((en, de), (en, de), (de, en), name="counting")
    assert list(source.split("train")) == [("one", "eins"), ("two", "zwei")]
    assert source.split("test")[1] == ("zwei", "two")
    assert source.split("test").where(1) == f"{de}, line 2"
    assert source.name == "counting"


def test_what_is_not_given_is_held_out_of_training(tmp_path: Path) -> None:
    pairs = [(f"source {number}", f"target {number}") for number in range(50)]
    whole = written(tmp_path / "all.tsv", "".join(f"{source}\t{target}\n" for source, target in pairs))
    splits = [list(ParallelText(whole).split(name)) for name in SPLITS]
    assert sorted(pair for split in splits for pair in split) == sorted(pairs)
    assert len(splits[1]) == len(splits[2])
    given = ParallelText(whole, test=str(whole))
    assert len(given.split("train")) + len(given.split("val")) == len(given.split("test")) == len(pairs)
    short = written(tmp_path / "short.tsv", "a\tb\n")
    with pytest.raises(InputError, match="too few examples to hold out val and test"):
        ParallelText(short).split("train")


def test_files_of_unlike_length(tmp_path: Path) -> None:
    en, de = written(tmp_path / "en", "one\ntwo\n"), written(tmp_path / "de", "eins\nzwei\ndrei\n")
    with pytest.raises(InputError, match=re.escape(f"{en} has 2 lines and {de} 3")):
        ParallelText((en, de), (en, en), (en, en)).split("train")


def test_a_bad_pair_is_named_when_it_is_read_and_the_others_are_not_lost(tmp_path: Path) -> None:
    en, de = written(tmp_path / "en", "one\n\nthree\n"), written(tmp_path / "de", "eins\nzwei\n \n")
    split = ParallelText((en, de), (en, de), (en, de)).split("train")
    assert split[0] == ("one", "eins")
    with pytest.raises(InputError, match=re.escape(f"{en}, line 2: the source is empty")):
        split[1]
    with pytest.raises(InputError, match=re.escape(f"{de}, line 3: the target is empty")):
        split[2]
    tsv = written(tmp_path / "tsv", "a\tb\nno tab\na\tb\tc\n\tb\na\t\n")
    split = ParallelText(tsv, tsv, tsv).split("val")
    assert split[0] == ("a", "b")
    for index, said in ((1, "there are 0"), (2, "there are 2"), (3, "the source is empty"), (4, "the target is empty")):
        with pytest.raises(InputError, match=re.escape(f"{tsv}, line {index + 1}: ") + f".*{said}"):
            split[index]


def picture(path: Path, grey: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (3, 2), grey).save(path)


def test_pictures_in_given_splits(tmp_path: Path) -> None:
    for number, name in enumerate(SPLITS):
        picture(tmp_path / name / "cat" / "1.png", number)
        picture(tmp_path / name / "dog" / "1.jpg")
    source = ImageFolder(tmp_path, channels=1)
    assert source.labels == ("cat", "dog")
    for number, name in enumerate(SPLITS):
        pixels, target = source.split(name)[0]
        assert (pixels == number).all()
        assert (pixels.shape, target) == ((2, 3, 1), "cat")


def test_pictures_are_shrunk_and_known_by_their_size(tmp_path: Path) -> None:
    for k in range(3):
        picture(tmp_path / "cat" / f"{k}.png")
    whole, small = (ImageFolder(tmp_path, size=size).split("train") for size in (None, 2))
    assert (whole[0].input.shape, small[0].input.shape) == ((2, 3, 3), (1, 2, 3))
    assert whole.identities() != small.identities()  # or what is kept of one would be read for the other
    with pytest.raises(InputError, match="size=0: at least 1 pixel"):
        ImageFolder(tmp_path, size=0)


def test_a_split_without_a_folder_is_held_out_of_training(tmp_path: Path) -> None:
    for number in range(30):
        picture(tmp_path / "train" / "cat" / f"{number}.png")
    picture(tmp_path / "test" / "cat" / "1.png")
    source = ImageFolder(tmp_path)
    assert [len(source.split(name)) for name in SPLITS] == [27, 3, 1]


def test_a_class_of_one_picture_is_trained_on(tmp_path: Path) -> None:
    for number in range(10):
        picture(tmp_path / "cat" / f"{number}.png")
    picture(tmp_path / "yeti" / "1.png")
    source = ImageFolder(tmp_path)
    assert [[target for _, target in source.split(name)].count("yeti") for name in SPLITS] == [1, 0, 0]


def test_pictures_in_folds(tmp_path: Path) -> None:
    rows = ["file,fold,group"]
    for number in range(12):
        file = f"{'cat' if number % 2 else 'dog'}/{number:02}.png"
        picture(tmp_path / file, number)
        rows.append(f"{file},{number % 4 + 1},owner {number % 8}")
    written(tmp_path / "folds.csv", "\n".join([rows[0], *reversed(rows[1:])]) + "\n")
    tested = [ImageFolder(tmp_path, channels=1, fold=fold).split("test") for fold in (1, 2, 3, 4)]
    assert [{int(pixels[0, 0, 0]) % 4 + 1 for pixels, _ in split} for split in tested] == [{1}, {2}, {3}, {4}]
    assert [set(split.groups or ()) for split in tested] == [
        {f"owner {fold - 1}", f"owner {fold + 3}"} for fold in (1, 2, 3, 4)
    ]
    first = ImageFolder(tmp_path)
    assert [pixels.tolist() for pixels, _ in first.split("test")] == [
        pixels.tolist() for pixels, _ in ImageFolder(tmp_path, fold=1).split("test")
    ]
    assert {int(pixels[0, 0, 0]) % 4 + 1 for pixels, _ in ImageFolder(tmp_path, fold=4).split("val")} == {1}
    before = first.sha256
    written(tmp_path / "folds.csv", (tmp_path / "folds.csv").read_text().replace("owner 7", "owner 3"))
    assert ImageFolder(tmp_path).sha256 != before
    with pytest.raises(InputError, match="no fold 5: choose one of 1, 2, 3, 4"):
        ImageFolder(tmp_path, fold=5).split("test")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("file,label\n", "has no column fold; its columns are file, label"),
        ("file,fold\ncat/1.png,1\n", "has no row for cat/2.png"),
        ("file,fold\ncat/1.png,1\ncat/2.png,2\ncat/3.png,3\ncat/4.png,4\n", "line 5: there is no 'cat/4.png'"),
        ("file,fold\ncat/1.png,1\ncat/1.png,2\n", "'cat/1.png' is in line 2 and in line 3"),
        ("file,fold\ncat/1.png,1\ncat/2.png,1.5\ncat/3.png,3\n", "line 3: a whole number is expected, not '1.5'"),
        ("file,fold\ncat/1.png,1\ncat/2.png,2\ncat/3.png,1\n", "has 2 folds: train, val and test take at least three"),
        (
            "file,fold,group\ncat/1.png,1,Ann\ncat/2.png,2,Ben\ncat/3.png,3,Ann\n",
            "group 'Ann' is in fold 1 and in fold 3",
        ),
        (
            "file,fold,group\ncat/1.png,1,Ann\ncat/2.png,2,Ann \ncat/3.png,3, \n",
            "group 'Ann' is in fold 1 and in fold 2",
        ),
        (None, r"folds\.csv: no such file"),
    ],
)
def test_folds_of_pictures_that_are_wrong(tmp_path: Path, table: str | None, said: str) -> None:
    for number in (1, 2, 3):
        picture(tmp_path / "cat" / f"{number}.png")
    if table is not None:
        written(tmp_path / "folds.csv", table)
    with pytest.raises(InputError, match=said) as error:
        ImageFolder(tmp_path, fold=1).split("train")
    assert "\n" not in str(error.value)
    assert "folds.csv" in str(error.value)


def test_an_empty_cell_is_a_group_of_its_own(tmp_path: Path) -> None:
    rows = ["file,fold,group"]
    for number in (1, 2, 3):
        picture(tmp_path / "cat" / f"{number}.png")
        rows.append(f"cat/{number}.png,{number},{' ' * (number - 1)}")
    written(tmp_path / "folds.csv", "\n".join(rows) + "\n")
    source = ImageFolder(tmp_path)
    assert len({group for name in SPLITS for group in source.split(name).groups or ()}) == 3
    table = sounds(tmp_path, "file,label,fold,group", "a.wav,x,1,", "b.wav,x,2,", "c.wav,x,3, ")
    assert len({group for name in SPLITS for group in AudioFolder(table).split(name).groups or ()}) == 3


def test_folders_of_pictures_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder of pictures"):
        ImageFolder(tmp_path / "none").split("train")
    with pytest.raises(InputError, match="has no pictures in folders of classes"):
        _ = ImageFolder(tmp_path).labels
    picture(tmp_path / "train" / "cat" / "1.png")
    picture(tmp_path / "valid" / "cat" / "1.png")
    with pytest.raises(InputError, match="has the folders train, valid: expected are train, val and test"):
        ImageFolder(tmp_path).split("train")


def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for number in range(3):
        picture(tmp_path / "cat" / f"{number}.png")
    written(tmp_path / "cat" / "1.png", "no picture")
    source = ImageFolder(tmp_path)
    split = next(split for split in map(source.split, SPLITS) if split.where(0).endswith("1.png"))
    with pytest.raises(InputError, match=r"1\.png cannot be read as a picture"):
        split[0]


def test_a_picture_that_is_not_there_leaves_the_others_a_hash(tmp_path: Path) -> None:
    for number in range(4):
        picture(tmp_path / "cat" / f"{number}.png")
    whole = ImageFolder(tmp_path).sha256
    (tmp_path / "cat" / "4.png").symlink_to(tmp_path / "none.png")
    assert ImageFolder(tmp_path).sha256 != whole


def sounds(folder: Path, header: str, *rows: str) -> Path:
    """A table of sounds, each of which is written beside it."""
    for row in rows:
        soundfile.write(folder / row.split(",")[0], np.zeros((50, 2)), 22050)
    return written(folder / "table.csv", "\n".join([header, *rows]) + "\n")


def test_sounds_in_given_splits(tmp_path: Path) -> None:
    source = AudioFolder(sounds(tmp_path, "file,label,split", "a.wav,dog,test", "b.wav,dog,train", "c.wav,cat,train"))
    assert source.labels == ("cat", "dog")
    assert [[target for _, target in source.split(name)] for name in SPLITS] == [["dog", "cat"], [], ["dog"]]
    waveform, rate = source.split("test")[0].input
    assert (waveform.shape, waveform.dtype, rate) == ((2, 50), np.float32, 22050)


def test_sounds_in_folds(tmp_path: Path) -> None:
    rows = [f"{fold}{k}.wav,dog,{fold},train" for fold in (1, 2, 3, 4) for k in range(2)]
    path = sounds(tmp_path, "file,label,fold,split", *rows)
    tested = [AudioFolder(path, fold=fold).split("test") for fold in (1, 2, 3, 4)]
    assert [Path(split.where(0)).name for split in tested] == ["10.wav", "20.wav", "30.wav", "40.wav"]
    assert Path(AudioFolder(path, fold=4).split("val").where(0)).name == "10.wav"
    assert len(AudioFolder(path).split("train")) == len(rows)  # the column split, where no fold is asked for
    with pytest.raises(InputError, match="no fold 0: choose one of 1, 2, 3, 4"):
        AudioFolder(path, fold=0).split("test")


def test_tags_of_sounds(tmp_path: Path) -> None:
    rows = [f"{k}.wav,{tags}" for k, tags in enumerate(["loud;fast", "loud", "", "slow; loud"] * 5)]
    source = AudioFolder(sounds(tmp_path, "file,label", *rows), task="tags")
    assert source.labels == ("fast", "loud", "slow")
    targets = [target for name in SPLITS for _, target in source.split(name)]
    assert set(targets) == {("loud", "fast"), ("loud",), (), ("slow", "loud")}


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        ("name,genre", ["a.wav,pop"], "has no column file, label; its columns are name, genre"),
        ("file,label", [], "lists no sounds"),
        ("file,label", ["a.wav,"], "line 2: the label is empty"),
        ("file,label", ["a.wav,x", "b.wav,x", "a.wav,y"], "'a.wav' is in line 2 and in line 4"),
        ("file,label,split", ["a.wav,x,dev"], r"no split \(.*line 2\) 'dev'"),
        ("file,label,fold", ["a.wav,x,one"], "line 2: a number is expected"),
        ("file,label,fold", ["a.wav,x,1.5"], "line 2: a whole number is expected, not '1.5'"),
        (
            "file,label,split,group",
            ["a.wav,x,train,Ann", "b.wav,x,val,Ann"],
            "'Ann' is in split train and in split val",
        ),
        ("file,label,fold,group", ["a.wav,x,1,Ann", "b.wav,x,2,Ann"], "group 'Ann' is in fold 1 and in fold 2"),
        ("file,label,fold,group", ["a.wav,x,1,Ann", "b.wav,x,2, Ann"], "group 'Ann' is in fold 1 and in fold 2"),
    ],
)
def test_tables_of_sounds_that_are_wrong(tmp_path: Path, header: str, rows: list[str], said: str) -> None:
    source = AudioFolder(sounds(tmp_path, header, *rows))
    with pytest.raises(InputError, match=said) as error:
        source.split("train")
    assert "\n" not in str(error.value)
    assert "table.csv" in str(error.value)


def test_a_fold_that_the_table_does_not_tell(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no column fold; its columns are file, label"):
        AudioFolder(sounds(tmp_path, "file,label", "a.wav,x"), fold=1).split("train")


def test_a_sound_that_is_not_there_is_named_when_it_is_read(tmp_path: Path) -> None:
    path = sounds(tmp_path, "file,label,split", "a.wav,x,train", "b.wav,x,train")
    (tmp_path / "a.wav").unlink()
    split = AudioFolder(path).split("train")
    with pytest.raises(InputError, match=r"a\.wav cannot be read as a sound: no such file"):
        split[0]
    assert split[1].target == "x"


def sound(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.zeros(4000), 8000)


def test_a_folder_of_sounds_for_each_class(tmp_path: Path) -> None:
    endings = ("wav", "flac", "ogg", "mp3", "aiff", "AU")
    for number, ending in enumerate(endings * 4):
        sound(tmp_path / ("cat" if number % 2 else "dog") / f"{number:02}.{ending}")
    for other in (".hidden.wav", "notes.txt", "1.m4a", "2.M4A"):
        written(tmp_path / "cat" / other, "no sound")
    source = AudioFolder(tmp_path)
    with pytest.warns(UserWarning, match=r"left out are files that do not end as sounds do \(2 .m4a, 1 .txt\)"):
        assert len(source.split("train"))
    assert (source.labels, source.folds) == (("cat", "dog"), ())
    splits = [source.split(name) for name in SPLITS]
    assert [len(split) for split in splits] == [20, 2, 2]
    assert {Path(split.where(i)).suffix[1:] for split in splits for i in range(len(split))} == {*endings}
    assert all(Path(split.where(i)).parent.name == target for split in splits for i, (_, target) in enumerate(split))
    assert {target for _, target in splits[2]} == {"cat", "dog"}
    for other in ("notes.txt", "1.m4a", "2.M4A"):
        (tmp_path / "cat" / other).unlink()
    before = source.sha256
    sound(tmp_path / "cat" / "99.wav")
    assert AudioFolder(tmp_path).sha256 != before


def test_a_folder_of_sounds_in_folds(tmp_path: Path) -> None:
    rows = ["file,fold,group"]
    for number in range(12):
        file = f"{'cat' if number % 2 else 'dog'}/{number:02}.wav"
        sound(tmp_path / file)
        rows.append(f"{file},{number % 4 + 1},owner {number % 8}")
    before = AudioFolder(tmp_path).sha256
    written(tmp_path / "folds.csv", "\n".join([rows[0], *reversed(rows[1:])]) + "\n")
    sources = [AudioFolder(tmp_path, fold=fold) for fold in (None, 2, 3, 4)]
    tested, validated = [source.split("test") for source in sources], [source.split("val") for source in sources]
    assert [{int(Path(split.where(i)).stem) % 4 + 1 for i in range(3)} for split in (*tested, *validated)] == [
        {fold} for fold in (1, 2, 3, 4, 2, 3, 4, 1)
    ]
    assert (sources[0].labels, sources[0].folds) == (("cat", "dog"), (1, 2, 3, 4))
    assert sources[0].sha256 != before
    written(tmp_path / "folds.csv", (tmp_path / "folds.csv").read_text().replace("owner 7", "owner 2"))
    with pytest.raises(InputError, match=r"folds\.csv: group 'owner 2' is in fold 4 and in fold 3"):
        AudioFolder(tmp_path).split("train")


def test_folders_of_sounds_in_given_splits(tmp_path: Path) -> None:
    for name in SPLITS:
        sound(tmp_path / name / "cat" / f"{name}.wav")
    split = {name: AudioFolder(tmp_path).split(name) for name in SPLITS}
    assert {name: Path(one.where(0)).stem for name, one in split.items()} == {name: name for name in SPLITS}


def test_folders_of_sounds_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no sounds in folders of classes, such as .*/dog/1\.wav") as error:
        AudioFolder(tmp_path).split("train")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="is a folder, which has no tags: list its sounds in a table"):
        AudioFolder(tmp_path, task="tags").split("train")
    sound(tmp_path / "cat" / "1.wav")
    with pytest.raises(InputError, match=r"folds\.csv: no such file"):
        AudioFolder(tmp_path, fold=1).split("train")
