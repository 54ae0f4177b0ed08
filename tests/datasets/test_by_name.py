"""Names of data sets: each is the set it says, and what a set does not have is refused."""

from pathlib import Path

import pytest

from unifier.datasets.factory import PICTURES, SOUNDS, picture_source, sound_source
from unifier_tokenizers import InputError


def test_every_name_is_its_set() -> None:
    assert [picture_source(name).name for name in PICTURES if name != "embedded"] == list(PICTURES)[1:]
    assert picture_source("embedded").name == "digits"
    assert [sound_source(name).name for name in SOUNDS] == ["synthetic-music", "emotify_16k", *SOUNDS[2:]]
    assert sound_source("emotify", task="tags").labels[0] == "amazement"


def test_any_other_name_is_a_place(tmp_path: Path) -> None:
    for find, names in ((picture_source, PICTURES), (sound_source, SOUNDS)):
        with pytest.raises(InputError, match=f"cats: neither a place nor one of the sets {', '.join(names)}"):
            find(str(tmp_path / "cats"))
        with pytest.raises(InputError, match="an empty text: neither a place nor one of the sets"):
            find("")
        with pytest.raises(InputError, match=r"has no (pictures|sounds) in folders of classes"):
            find(str(tmp_path)).split("train")


def test_what_a_set_does_not_have() -> None:
    for name in ("gtzan", "fsdd", "esc10", "esc50"):
        with pytest.raises(InputError, match=f"{name} has one label a sound and no tags"):
            sound_source(name, task="tags")
    for name in PICTURES:
        with pytest.raises(InputError, match=f"fold=1: {name} has no folds"):
            picture_source(name, fold=1)
        with pytest.raises(
            InputError, match=f"size=31: only pictures of a folder are shrunk; for {name} it is at least 32"
        ):
            picture_source(name, size=31)
        assert picture_source(name, size=32)
    for name in ("embedded", "gtzan"):
        with pytest.raises(InputError, match=f"fold=0: {name} has no folds"):
            sound_source(name, fold=0)
    for name in ("emotify", "fsdd", "esc50"):
        with pytest.raises(InputError, match="no fold 6: choose one of"):
            sound_source(name, fold=6)
