"""Multi30k: its languages and test sets."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from unifier.datasets.multi30k import MULTI30K_FILES, Multi30k
from unifier.datasets.plain_text import Multi30kSentences
from unifier_tokenizers import InputError


def multi30k(folder: Path) -> Multi30k:
    folder.mkdir(parents=True)
    for name in MULTI30K_FILES:
        texts = "".join(f"{name} {number}\n" for number in range(12))
        (folder / name).write_bytes(gzip.compress(texts.encode(), mtime=0))
    return Multi30k("de", "fr", data=folder)


def test_multi30k_keeps_contract(check_source: Callable[..., None]) -> None:
    check_source(multi30k, named=True)


def test_multi30k_pairs_languages_and_tests(tmp_path: Path) -> None:
    source = multi30k(tmp_path / "data")
    assert (source.source_language, source.target_language) == ("de", "fr")
    assert source.split("val")[3] == ("val.de.gz 3", "val.fr.gz 3")
    assert source.split("train").example_id(11).endswith("train.de.gz, line 12")
    later = Multi30k(test="2017", data=tmp_path / "data")
    assert later.split("test")[0] == ("test_2017_flickr.en.gz 0", "test_2017_flickr.de.gz 0")


def test_multi30k_reference_is_of_one_direction() -> None:
    score_range = Multi30k("en", "de").score_range
    assert (score_range.metric, score_range.chance) == ("bleu", 0.0)
    assert score_range.reference != Multi30k("de", "en").score_range.reference
    for source in (Multi30k("en", "fr"), Multi30k("en", "de", test="2017")):
        assert source.score_range.reference is None


def sentences(folder: Path) -> Multi30kSentences:
    multi30k(folder)
    return Multi30kSentences(("de", "cs"), data=folder)


def test_sentences_keep_contract(check_source: Callable[..., None]) -> None:
    check_source(sentences, named=True)


def test_sentences_of_each_language_follow_one_another(tmp_path: Path) -> None:
    source = sentences(tmp_path / "data")
    train = source.split("train")
    assert (len(train), train[0], train[12]) == (24, ("train.de.gz 0",) * 2, ("train.cs.gz 0",) * 2)
    assert source.split("test")[13].target == "test_2016_flickr.cs.gz 1"
    with pytest.raises(InputError, match="languages"):
        Multi30kSentences(("de", "xx"))
