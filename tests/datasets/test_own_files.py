"""Texts and pictures of the user's own: every layout that is promised, and one line for what is wrong in them."""

import gzip
import re
from pathlib import Path

import pytest
from PIL import Image

from unifier.data.source import SPLITS
from unifier.datasets.image_folder import ImageFolder
from unifier.datasets.parallel_text import ParallelText
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
    assert source.split("test").example_id(1) == f"{de}, line 2"
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


def picture(path: Path, gray: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (3, 2), gray).save(path)


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
    assert [len(ImageFolder(tmp_path).split(name)) for name in SPLITS] == [1, 1, 1]


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
    split = next(split for split in map(source.split, SPLITS) if split.example_id(0).endswith("1.png"))
    with pytest.raises(InputError, match=r"1\.png cannot be read as a picture"):
        split[0]


def test_a_picture_that_is_not_there_leaves_the_others_a_hash(tmp_path: Path) -> None:
    for number in range(4):
        picture(tmp_path / "cat" / f"{number}.png")
    whole = ImageFolder(tmp_path).sha256
    (tmp_path / "cat" / "4.png").symlink_to(tmp_path / "none.png")
    assert ImageFolder(tmp_path).sha256 != whole
