"""Data sets by name or path."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unifier.datasets import ESC, FSDD, Digits, Emotify, GrammarPairs, Multi30k, SyntheticMusic, factory
from unifier_tokenizers import InputError

FACTORIES: list[tuple[Callable[..., Any], Any]] = [
    (factory.create_image_dataset, factory.IMAGE_DATASETS),
    (factory.create_audio_dataset, factory.AUDIO_DATASETS),
    (factory.create_text_dataset, factory.TEXT_DATASETS),
    (factory.create_token_dataset, factory.TOKEN_DATASETS),
]


def test_names_create_their_sets() -> None:
    names = {"digits": "embedded", "synthetic-music": "embedded", "emotify_16k": "emotify"}
    for create, data_sets in FACTORIES[:2]:
        assert [names.get(name := create(data).name, name) for data in data_sets] == list(data_sets)
    assert [factory.create_text_dataset(data).name for data in factory.TEXT_DATASETS] == ["sst2", "trec"]
    assert [factory.create_token_dataset(data).name for data in factory.TOKEN_DATASETS] == [*factory.TOKEN_DATASETS]
    assert factory.create_audio_dataset("emotify", target="tags").labels[0] == "amazement"


@pytest.mark.parametrize(("create", "names"), FACTORIES)
def test_other_names_are_paths(create: Callable[..., Any], names: Any, tmp_path: Path) -> None:
    for data in (str(tmp_path / "cats"), ""):
        with pytest.raises(InputError, match=f"data={data}.*{', '.join(names)}"):
            create(data)
    with pytest.raises(InputError, match=tmp_path.name):
        create(str(tmp_path)).split("train")


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        *[(Digits, {"val": 0}, r"val=0.*10"), (Digits, {"test": 1700}, r"test=1700.*1,?787")],
        *[(Emotify, {"fold": 5}, "fold 5"), (Emotify, {"target": "mood"}, "target 'mood'")],
        *[(ESC, {"fold": 0}, r"fold 0.*1, 2, 3, 4, 5"), (ESC, {"name": "esc"}, "set 'esc'")],
        *[(FSDD, {"speaker": "theodor"}, "'theodor'.*george"), (GrammarPairs, {"train": 0}, "train=0")],
        (GrammarPairs, {"source": "fr", "target": "fr"}, "source=fr, target=fr"),
        (GrammarPairs, {"source": "en", "target": "de"}, "source=en, target=de"),
        (Multi30k, {"target": "cs", "test": "2017"}, "2017"),
        *[(Multi30k, {"source": "es"}, "'es'.*en, de, fr, cs"), (Multi30k, {"test": "2018"}, "'2018'")],
        *[(SyntheticMusic, {"test": -1}, "test=-1"), (SyntheticMusic, {"target": "mood"}, "'mood'.*genre, tags")],
        *[(SyntheticMusic, {"seconds": 0.1}, "seconds=0.1"), (SyntheticMusic, {"rate": 100}, "rate=100")],
    ],
)
def test_unknown_settings_are_refused(make: Callable[..., Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**settings)


@pytest.mark.slow
def test_grammar_without_enough_sentences_is_refused() -> None:
    with pytest.raises(InputError, match="val=100"):
        GrammarPairs(train=2, val=100).split("val")


def test_table_columns_can_be_named(tmp_path: Path) -> None:
    table = tmp_path / "reviews.tsv"
    table.write_text("review\tstars\n" + "fine\t5\nbad\t1\n" * 10)
    assert factory.create_text_dataset(str(table), text="review", label="stars").labels == ("1", "5")
    for data in factory.TEXT_DATASETS:
        with pytest.raises(InputError, match=f"label=stars.*{data}"):
            factory.create_text_dataset(data, label="stars")


@pytest.mark.parametrize("data", ["x" * 300, "a\0b", ""])
def test_impossible_paths_are_refused(data: str) -> None:
    for create in (factory.create_image_dataset, factory.create_audio_dataset, factory.create_text_dataset):
        with pytest.raises(InputError, match="data="):
            create(data)


def test_named_sets_refuse_missing_features() -> None:
    for data in ("gtzan", "fsdd", "esc10", "esc50"):
        with pytest.raises(InputError, match=f"target=tags.*{data}"):
            factory.create_audio_dataset(data, target="tags")
    for data in factory.IMAGE_DATASETS:
        with pytest.raises(InputError, match=f"fold=1: {data}"):
            factory.create_image_dataset(data, fold=1)
        with pytest.raises(InputError, match=f"size=31.*32.*{data}"):
            factory.create_image_dataset(data, size=31)
        assert factory.create_image_dataset(data, size=32)
    for data in ("embedded", "gtzan"):
        with pytest.raises(InputError, match=f"fold=0: {data}"):
            factory.create_audio_dataset(data, fold=0)
    for data in ("emotify", "fsdd", "esc50"):
        with pytest.raises(InputError, match="fold 6"):
            factory.create_audio_dataset(data, fold=6)
