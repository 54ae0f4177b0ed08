"""Images of one's own in class folders: splits, folds and wrong files."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from unifier.data.source import SPLITS
from unifier.datasets.image_folder import ImageFolder
from unifier_tokenizers import InputError


def write_image(path: Path, gray: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (3, 2), gray).save(path)
    return path


def write_cats(folder: Path, count: int) -> None:
    for number in range(1, count + 1):
        write_image(folder / "cat" / f"{number}.png", number)


def image_folder(folder: Path) -> ImageFolder:
    for label, count in (("cat", 12), ("dog", 30), ("yeti", 1)):
        (folder / label).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (5, 4), (number, len(label), 0)).save(folder / label / f"{number}.PNG")
        (folder / label / ".hidden.png").write_text("not an image")
    (folder / ".cache").mkdir()
    return ImageFolder(folder)


def test_image_folder_keeps_contract(check_source: Callable[..., None]) -> None:
    check_source(image_folder)


def test_image_folder_holds_out_missing_splits(tmp_path: Path) -> None:
    for number in range(30):
        write_image(tmp_path / "train" / "cat" / f"{number}.png")
    write_image(tmp_path / "test" / "cat" / "1.png")
    assert [len(ImageFolder(tmp_path).split(name)) for name in SPLITS] == [27, 3, 1]
    source = image_folder(tmp_path / "rare")
    assert [[target for _, target in source.split(name)].count("yeti") for name in SPLITS] == [1, 0, 0]
    write_cats(tmp_path / "empty cells", 3)
    rows = ["file,fold,group", *(f"cat/{number}.png,{number},{' ' * (number - 1)}" for number in (1, 2, 3))]
    (tmp_path / "empty cells" / "folds.csv").write_text("\n".join(rows) + "\n")
    assert [len(ImageFolder(tmp_path / "empty cells").split(name)) for name in SPLITS] == [1, 1, 1]


def test_image_folder_reads_given_splits(tmp_path: Path) -> None:
    for number, name in enumerate(SPLITS):
        write_image(tmp_path / name / "cat" / "1.png", number)
        write_image(tmp_path / name / "dog" / "1.jpg")
    source = ImageFolder(tmp_path, channels=1)
    assert source.labels == ("cat", "dog")
    for number, name in enumerate(SPLITS):
        pixels, target = source.split(name)[0]
        assert (pixels == number).all()
        assert (pixels.shape, target) == ((2, 3, 1), "cat")


def test_image_folder_size_shrinks_and_changes_identity(tmp_path: Path) -> None:
    write_cats(tmp_path, 3)
    full, small = (ImageFolder(tmp_path, size=size).split("train") for size in (None, 2))
    assert (full[0].input.shape, small[0].input.shape) == ((2, 3, 3), (1, 2, 3))
    assert full.identities() != small.identities(), "the cache must not mix them up"
    with pytest.raises(InputError, match="size=0"):
        ImageFolder(tmp_path, size=0)


def test_image_folder_folds_table_defines_splits(tmp_path: Path) -> None:
    rows = ["file,fold,group"]
    for number in range(12):
        file = f"{'cat' if number % 2 else 'dog'}/{number:02}.png"
        write_image(tmp_path / file, number)
        rows.append(f"{file},{number % 4 + 1},owner {number % 8}")
    table = tmp_path / "folds.csv"
    table.write_text("\n".join([rows[0], *reversed(rows[1:])]) + "\n")

    def folds_of(name: str, fold: int | None) -> set[int]:
        split = ImageFolder(tmp_path, channels=1, fold=fold).split(name)  # pyright: ignore[reportArgumentType]
        return {int(pixels[0, 0, 0]) % 4 + 1 for pixels, _ in split}

    assert [folds_of("test", fold) for fold in (None, 1, 2, 3, 4)] == [{1}, {1}, {2}, {3}, {4}]
    assert folds_of("val", 4) == {1}
    before = ImageFolder(tmp_path).sha256
    table.write_text(table.read_text().replace("owner 7", "owner 3"))
    assert ImageFolder(tmp_path).sha256 != before
    with pytest.raises(InputError, match=r"fold 5.*1, 2, 3, 4"):
        ImageFolder(tmp_path, fold=5).split("test")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("file,label\n", "column fold.*file, label"),
        ("file,fold\ncat/1.png,1\n", "cat/2.png"),
        ("file,fold\ncat/1.png,1\ncat/2.png,2\ncat/3.png,3\ncat/4.png,4\n", "line 5.*'cat/4.png'"),
        ("file,fold\ncat/1.png,1\ncat/1.png,2\n", "'cat/1.png' is in line 2 and in line 3"),
        ("file,fold\ncat/1.png,1\ncat/2.png,1.5\ncat/3.png,3\n", "line 3.*'1.5'"),
        ("file,fold\ncat/1.png,1\ncat/2.png,2\ncat/3.png,1\n", "2 folds"),
        ("file,fold,group\ncat/1.png,1,Ann\ncat/2.png,2,Ben\ncat/3.png,3,Ann\n", "'Ann' is in fold 1 and in fold 3"),
        ("file,fold,group\ncat/1.png,1,Ann\ncat/2.png,2,Ann \ncat/3.png,3, \n", "'Ann' is in fold 1 and in fold 2"),
        (None, "no such file"),
    ],
)
def test_image_folder_refuses_folds_table(tmp_path: Path, table: str | None, message: str) -> None:
    write_cats(tmp_path, 3)
    if table is not None:
        (tmp_path / "folds.csv").write_text(table)
    with pytest.raises(InputError, match=message) as error:
        ImageFolder(tmp_path, fold=1).split("train")
    assert "\n" not in str(error.value)
    assert "folds.csv" in str(error.value)


def test_image_folder_names_unreadable_image(tmp_path: Path) -> None:
    write_cats(tmp_path, 4)
    before = ImageFolder(tmp_path).sha256
    (tmp_path / "cat" / "5.png").symlink_to(tmp_path / "none.png")
    assert ImageFolder(tmp_path).sha256 != before, "a missing image does not prevent the hash"
    (tmp_path / "cat" / "1.png").write_text("not an image")
    for split in map(ImageFolder(tmp_path).split, SPLITS):
        for index in range(len(split)):
            if (path := Path(split.example_id(index))).name in ("1.png", "5.png"):
                with pytest.raises(InputError, match=re.escape(path.name)):
                    split[index]
            else:
                assert split[index].target == "cat"
