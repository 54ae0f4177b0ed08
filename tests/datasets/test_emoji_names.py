"""Emoji with names: inputs of captions and translations, groups of the test split, and exchanged pictures."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unifier.datasets import EmojiNames, PicturesOf
from unifier_tokenizers import InputError, MarkedText

SPLITS = ("train", "train", "train", "val", "val", "val_style", "test", "test", "test_style")


def emoji(folder: Path, header: str = "file,artist,split,group,en,de,fr") -> EmojiNames:
    """Write nine gray pictures of 8 x 8 pixels with their names."""
    folder.mkdir(parents=True)
    rows = [header]
    with zipfile.ZipFile(folder / "pictures.zip", "w") as pictures:
        for k, split in enumerate(SPLITS):
            file = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), 20 * k, np.uint8)).save(file, "PNG")
            pictures.writestr(zipfile.ZipInfo(f"art/{k}.png"), file.getvalue())
            rows.append(f"art/{k}.png,art,{split},1,cat {k},Katze {k},chat {k}")
    (folder / "names.csv").write_text("\n".join(rows) + "\n")
    return EmojiNames(data=folder)


def test_emoji_keep_contract(check_source: Callable[..., None]) -> None:
    check_source(emoji, named=True)


def test_codes_select_the_language_of_the_name(tmp_path: Path) -> None:
    test = emoji(tmp_path / "emoji").split("test")
    assert len(test) == 9
    value, target = test[5]
    assert (value["text"], target) == ("<de>", "Katze 8")
    assert isinstance(value["text"], MarkedText)
    assert (target.groups, target.language) == (("other_artist", "other_artist_de"), "de")
    assert test[3].target.groups == ("seen_artist", "seen_artist_de")
    assert [example.target.cluster for example in test] == ["cat 6", "cat 7", "cat 8"] * 3
    assert value["picture"].shape == (8, 8, 3)
    assert value["picture"].max() == 160


def test_translation_has_the_own_or_another_or_no_picture(tmp_path: Path) -> None:
    emoji(tmp_path / "emoji")
    own, other, none = (
        EmojiNames(("fr",), source="en", picture=picture, data=tmp_path / "emoji", size=4).split("train")
        for picture in ("own", "other", "none")
    )
    assert [value["text"] for value, _ in none] == [f"<fr> cat {k}" for k in range(3)]
    assert [value.keys() for value, _ in none] == [{"text"}] * 3
    levels = [[int(value["picture"].max()) for value, _ in each] for each in (own, other)]
    assert sorted(levels[1]) == levels[0] == [0, 20, 40]
    assert all(a != b for a, b in zip(*levels, strict=True))
    assert own[0].input["picture"].shape == (4, 4, 3)


def test_pictures_alone_have_the_same_targets(tmp_path: Path) -> None:
    source = emoji(tmp_path / "emoji")
    picture, target = PicturesOf(source).split("train")[4]
    assert (int(picture.max()), target) == (20, "Katze 1")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Katze 1", " ", "line 3.*de"),
        (",train,", ",dev,", "line 2.*dev"),
        ("en,de,fr", "en,de,it", "fr"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    source = emoji(tmp_path / "emoji")
    table = tmp_path / "emoji" / "names.csv"
    table.write_text(table.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        source.split("train")


def test_languages_without_names_are_refused() -> None:
    for languages, source in ((("it",), None), (("de",), "it"), (("de",), "de"), ((), None)):
        with pytest.raises(InputError, match=r"languages|source"):
            EmojiNames(languages, source=source)
