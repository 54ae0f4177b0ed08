"""Names of data sets: each is the set it says, and what a set does not have is refused."""

from pathlib import Path

import pytest

from unifier.datasets.factory import AUDIO_DATASETS, IMAGE_DATASETS, create_audio_dataset, create_image_dataset
from unifier_tokenizers import InputError


def test_every_name_is_its_set() -> None:
    assert [create_image_dataset(name).name for name in IMAGE_DATASETS if name != "embedded"] == list(IMAGE_DATASETS)[
        1:
    ]
    assert create_image_dataset("embedded").name == "digits"
    assert [create_audio_dataset(name).name for name in AUDIO_DATASETS] == [
        "synthetic-music",
        "emotify_16k",
        *AUDIO_DATASETS[2:],
    ]
    assert create_audio_dataset("emotify", target="tags").labels[0] == "amazement"


def test_any_other_name_is_a_place(tmp_path: Path) -> None:
    for find, names in ((create_image_dataset, IMAGE_DATASETS), (create_audio_dataset, AUDIO_DATASETS)):
        with pytest.raises(InputError, match=f"cats: neither a place nor one of the sets {', '.join(names)}"):
            find(str(tmp_path / "cats"))
        with pytest.raises(InputError, match="an empty text: neither a place nor one of the sets"):
            find("")
        with pytest.raises(InputError, match=r"has no (pictures|sounds) in folders of classes"):
            find(str(tmp_path)).split("train")


def test_what_a_set_does_not_have() -> None:
    for name in ("gtzan", "fsdd", "esc10", "esc50"):
        with pytest.raises(InputError, match=f"{name} has one label a sound and no tags"):
            create_audio_dataset(name, target="tags")
    for name in IMAGE_DATASETS:
        with pytest.raises(InputError, match=f"fold=1: {name} has no folds"):
            create_image_dataset(name, fold=1)
        with pytest.raises(
            InputError, match=f"size=31: only pictures of a folder are shrunk; for {name} it is at least 32"
        ):
            create_image_dataset(name, size=31)
        assert create_image_dataset(name, size=32)
    for name in ("embedded", "gtzan"):
        with pytest.raises(InputError, match=f"fold=0: {name} has no folds"):
            create_audio_dataset(name, fold=0)
    for name in ("emotify", "fsdd", "esc50"):
        with pytest.raises(InputError, match="no fold 6: choose one of"):
            create_audio_dataset(name, fold=6)
