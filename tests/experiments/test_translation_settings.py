"""Each setting of the translation experiment reaches what it names."""

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from unifier.augmentation.text import BpeDropout
from unifier.config import list_experiments
from unifier.data.dataset import open_split
from unifier.data.source import SPLITS
from unifier.datasets.parallel_text import ParallelText
from unifier.experiment import Experiment, Task
from unifier.heads.transformer_decoder import TranslationHead
from unifier.nn.attention import Attention
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary

FILE = Path(__file__).parents[2] / "experiments" / "translation.py"


def translation(**settings: Any) -> Experiment:
    make = cast("Callable[..., Experiment]", list_experiments(FILE)["translation"])
    return make(**{"vocabulary": 300, "dim": 16, "ffn_dim": 16, "depth": 1, "decoder_depth": 1, **settings})


def task(**settings: Any) -> tuple[Task, SubwordTokenizer, TranslationHead]:
    (one,) = translation(**settings).tasks.values()
    assert isinstance(one.tokenizer, SubwordTokenizer)
    assert isinstance(one.head, TranslationHead)
    return one, one.tokenizer, one.head


@pytest.mark.parametrize(
    ("tied", "read", "written"),
    [("all", True, True), ("source", True, False), ("target", False, True), ("none", False, False)],
)
def test_tables_are_shared_as_asked(tied: str, read: bool, written: bool) -> None:
    _, tokenizer, head = task(tied=tied)
    assert (head.embedding is tokenizer.embedding) == read
    assert (head.output is head.embedding) == written
    with pytest.raises(InputError, match="no tied 'both': choose one of all, source, target, none"):
        task(tied="both")


@pytest.mark.parametrize(
    "settings",
    [{"label_smoothing": 0.2}, {"r_drop": 2.0}, {"beam_width": 3}, {"length_penalty": 0.4}],
    ids=lambda settings: next(iter(settings)),
)
def test_the_head_is_told(settings: dict[str, Any]) -> None:
    _, _, head = task(**settings)
    assert {name: getattr(head, name) for name in settings} == settings


@pytest.mark.parametrize(
    "settings",
    [
        {"ema_decay": 0.9}, {"average_last": 3}, {"grad_accumulation": 2}, {"optimizer": "adamw"}, {"schedule": "inverse_sqrt"},
        {"warmup_ratio": 0.3}, {"batch_tokens": 64}, {"learning_rate": 0.1}, {"num_validations": 3}, {"precision": "float32"},
        {"bad_examples": "skip"}, {"epochs": 2.0}, {"tokens": 77},
    ],
    ids=lambda settings: next(iter(settings)),
)  # fmt: skip
def test_training_is_told(settings: dict[str, Any]) -> None:
    training = translation(**settings).training
    assert {name: getattr(training, name) for name in settings} == settings


def test_blocks_of_encoder_and_decoder_normalize_queries_and_start_quietly() -> None:
    plain, asked = (
        translation(qk_norm=False, scaled_residual_init=False),
        translation(qk_norm=True, scaled_residual_init=True),
    )
    for before, after in zip(plain.tasks.values(), asked.tasks.values(), strict=True):
        for one, other in ((plain.trunk, asked.trunk), (before.head, after.head)):
            names = [{name for name, _ in each.named_parameters()} for each in (one, other)]
            assert {name.rpartition("_norm")[0].rpartition(".")[2] for name in names[1] - names[0]} == {"query", "key"}
            ends = [[part.out for part in each.modules() if isinstance(part, Attention)] for each in (one, other)]
            assert all(b.weight.std() < 0.9 * a.weight.std() for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("trunk", ["mean_attention", "lstm", "convolutional"])
def test_other_trunks_need_no_settings_of_a_transformer(trunk: str) -> None:
    assert not isinstance(translation(trunk=trunk).trunk, Transformer)


def test_subwords_are_cut_anew_where_positions_let_them() -> None:
    assert isinstance(task(bpe_dropout=0.1)[0].augmentation, BpeDropout)
    assert task()[0].augmentation is None
    with pytest.raises(InputError, match="bpe_dropout makes texts longer"):
        task(bpe_dropout=0.1, positions="learned")


def test_pairs_of_ones_own_are_read_and_cleaned(tmp_path: Path) -> None:
    lines = ["a dog\tein Hund", "a dog\tein Hund", "a\teine sehr lange Katze", *(f"{k}\t{k}" for k in range(20))]
    table = tmp_path / "both.tsv"
    table.write_text("\n".join(lines))
    sides = [tmp_path / "en", tmp_path / "de"]
    for k, side in enumerate(sides):
        side.write_text("\n".join(line.split("\t")[k] for line in lines))
    for data in (str(table), ",".join(map(str, sides))):
        source = task(data=data, target="de", length_ratio=3.0, duplicates="drop")[0].source
        assert isinstance(source, ParallelText)
        assert source.dropped == {"length_ratio": 1, "duplicates": 1}


def test_few_pairs_are_read_more_often(tmp_path: Path) -> None:
    table = tmp_path / "few.tsv"
    table.write_text("".join(f"{k}\t{k}\n" for k in range(400)))
    assert translation(data=str(table)).training.epochs == 50_000 / 320
    assert translation().training.epochs == 40
    assert translation(tokens=77).training.epochs is None


def test_what_is_validated_and_tested_on_may_be_of_ones_own(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("train.tsv", "val.tsv", "test.en", "test.de")}
    for name, file in files.items():
        second = "\tx" if name.endswith("tsv") else ""
        file.write_text("".join(f"{name} {k}{second}\n" for k in range(9)))
    train, val, *test = map(str, files.values())
    source = task(data=train, val=val, test=",".join(test))[0].source
    found = [source.split(name)[8] for name in SPLITS]
    assert found == [("train.tsv 8", "x"), ("val.tsv 8", "x"), ("test.en 8", "test.de 8")]
    assert [len(task(data=train, test=val)[0].source.split(name)) for name in SPLITS] == [8, 1, 9]


def test_the_test_of_multi30k_is_a_year(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "multi30k").mkdir()
    for stem in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for language in ("en", "fr"):
            (tmp_path / "multi30k" / f"{stem}.{language}.gz").write_bytes(gzip.compress(stem.encode()))
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    for settings, year in (({}, 2016), ({"test": "2016"}, 2016), ({"test": "2017"}, 2017)):
        assert open_split(task(data="multi30k", **settings)[0].source, "test")[0].input == f"test_{year}_flickr"
    with pytest.raises(InputError, match="no test '2018': choose one of 2016, 2017"):
        task(data="multi30k", test="2018")


@pytest.mark.parametrize(("data", "part"), [("embedded", "val"), ("embedded", "test"), ("multi30k", "val")])
def test_sets_with_their_own_val_and_test_take_none(data: str, part: str) -> None:
    with pytest.raises(InputError, match=f"data={data} has its own val and test: give them with files of your own"):
        task(data=data, **{part: "some.tsv"})


def test_a_vocabulary_is_learned_from_no_more_pairs_than_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, make = tmp_path / "both.tsv", list_experiments(FILE)["translation"]
    table.write_text("".join(f"{k}\t{k}\n" for k in range(50)))
    learned, digits = list[str](), Vocabulary.fit(["0123456789"], size=300)

    def learn(texts: Iterable[str], **_: int) -> Vocabulary:
        learned.extend(texts)
        return digits

    monkeypatch.setattr(Vocabulary, "fit", learn)
    monkeypatch.setitem(make.__globals__, "LEARNED_FROM", 10)
    train = open_split(task(data=str(table))[0].source, "train")
    assert learned == [text for pair in train[::4] for text in pair]


def test_further_pairs_are_trained_on_and_cleaned(tmp_path: Path) -> None:
    table = tmp_path / "more.tsv"
    table.write_text("the dog\tle chien\n" * 3)
    plain = task()[0].source
    for settings, count in (({}, 3), ({"duplicates": "drop"}, 1)):
        source = task(extra=str(table), **settings)[0].source
        assert list(open_split(source, "train")) == [*open_split(plain, "train"), *[("the dog", "le chien")] * count]
        assert list(open_split(source, "val")) == list(open_split(plain, "val"))


@pytest.mark.parametrize("settings", [{"length_ratio": 2.0}, {"duplicates": "drop"}])
def test_what_comes_clean_is_not_cleaned(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="leave them out with data=embedded"):
        task(**settings)


def test_two_readings_without_dropout_are_one() -> None:
    with pytest.raises(
        InputError, match=r"r_drop=5\.0 compares two readings that dropout=0 makes the same: give r_drop=0"
    ):
        task(dropout=0.0)
    assert task(dropout=0.0, r_drop=0.0)[2].num_passes == 1
