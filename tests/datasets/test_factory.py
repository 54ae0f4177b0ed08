"""Data sets by name or path."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unifier.datasets.factory import (
    AUDIO_DATASETS,
    IMAGE_DATASETS,
    TEXT_DATASETS,
    create_audio_dataset,
    create_image_dataset,
    create_text_dataset,
)
from unifier_tokenizers import InputError

FACTORIES: list[tuple[Callable[..., Any], Any]] = [
    (create_image_dataset, IMAGE_DATASETS),
    (create_audio_dataset, AUDIO_DATASETS),
    (create_text_dataset, TEXT_DATASETS),
]


def test_names_create_their_sets() -> None:
    names = {"embedded": "digits"}
    assert [create_image_dataset(data).name for data in IMAGE_DATASETS] == [names.get(d, d) for d in IMAGE_DATASETS]
    names = {"embedded": "synthetic-music", "emotify": "emotify_16k"}
    assert [create_audio_dataset(data).name for data in AUDIO_DATASETS] == [names.get(d, d) for d in AUDIO_DATASETS]
    assert [create_text_dataset(data).name for data in TEXT_DATASETS] == ["sst2", "trec"]
    assert create_audio_dataset("emotify", target="tags").labels[0] == "amazement"


@pytest.mark.parametrize(("create", "names"), FACTORIES)
def test_other_names_are_paths(create: Callable[..., Any], names: Any, tmp_path: Path) -> None:
    for data in (str(tmp_path / "cats"), ""):
        with pytest.raises(InputError, match=f"data={data}.*{', '.join(names)}"):
            create(data)
    with pytest.raises(InputError, match=tmp_path.name):
        create(str(tmp_path)).split("train")


def test_table_columns_can_be_named(tmp_path: Path) -> None:
    table = tmp_path / "reviews.tsv"
    table.write_text("review\tstars\n" + "fine\t5\nbad\t1\n" * 10)
    assert create_text_dataset(str(table), text="review", label="stars").labels == ("1", "5")
    for data in TEXT_DATASETS:
        with pytest.raises(InputError, match=f"label=stars.*{data}"):
            create_text_dataset(data, label="stars")


def test_named_sets_refuse_missing_features() -> None:
    for data in ("gtzan", "fsdd", "esc10", "esc50"):
        with pytest.raises(InputError, match=f"target=tags.*{data}"):
            create_audio_dataset(data, target="tags")
    for data in IMAGE_DATASETS:
        with pytest.raises(InputError, match=f"fold=1: {data}"):
            create_image_dataset(data, fold=1)
        with pytest.raises(InputError, match=f"size=31.*32.*{data}"):
            create_image_dataset(data, size=31)
        assert create_image_dataset(data, size=32)
    for data in ("embedded", "gtzan"):
        with pytest.raises(InputError, match=f"fold=0: {data}"):
            create_audio_dataset(data, fold=0)
    for data in ("emotify", "fsdd", "esc50"):
        with pytest.raises(InputError, match="fold 6"):
            create_audio_dataset(data, fold=6)
