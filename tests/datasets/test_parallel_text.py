"""Sentence pairs from files: all formats agree, cleaning counts dropped pairs, and memory stays flat."""

import gzip
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from unifier.data.prepare import describe_data, sha256_of
from unifier.data.source import SPLITS, describe_example, readable_examples
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.parallel_text import ParallelText, WithExtraPairs
from unifier_tokenizers import InputError

PAIRS = [(f"sentence {k} of «many»", f"Satz\u00a0{(k + 1) * 'x'} & <mehr>") for k in range(30)]


def tmx(units: Iterable[str], namespace: str = "") -> str:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"{namespace}>'
        f'<header srclang="en" segtype="sentence"/><body>{"".join(units)}</body></tmx>'
    )


def unit(*variants: tuple[str, str]) -> str:
    texts = [f'<tuv xml:lang="{key}"><seg>{text}</seg></tuv>' for key, text in variants]
    return f"<tu>{''.join(texts)}</tu>"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_parallel_text_keeps_contract(check_source: Callable[..., None]) -> None:
    def make(folder: Path) -> ParallelText:
        en, de = (write(folder / f"text.{key}", "".join(f"{key} {k}\n" for k in range(40))) for key in ("en", "de"))
        return ParallelText((en, de))

    check_source(make)


def test_parallel_text_names_file_and_line(tmp_path: Path) -> None:
    en, de = write(tmp_path / "en", "one\ntwo\n"), write(tmp_path / "de.gz", "eins\nzwei")
    source = ParallelText((en, de), (en, de), (de, en), name="counting")
    assert (source.split("test")[1], source.split("test").example_id(1)) == (("zwei", "two"), f"{de}, line 2")
    assert source.name == "counting"


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_all_formats_give_equal_pairs(tmp_path: Path, ending: str) -> None:
    en = write(tmp_path / f"en{ending}", "".join(f"{source}\n" for source, _ in PAIRS))
    de = write(tmp_path / f"de{ending}", "\n".join(target for _, target in PAIRS))
    tsv = write(tmp_path / f"both.tsv{ending}", "".join(f"{source}\t{target}\r\n" for source, target in PAIRS))
    units = [unit(("en-GB", escape(source)), ("DE", escape(target))) for source, target in PAIRS]
    memory = write(tmp_path / f"both.tmx{ending}", tmx(units))
    for texts in ((en, de), tsv, memory):
        source = ParallelText(texts, texts, texts, languages=("en", "de"))
        for split in map(source.split, SPLITS):
            unpickled = pickle.loads(pickle.dumps(split))
            assert list(split) == list(unpickled) == PAIRS
            assert [unpickled.example_id(k) for k in range(3)] == [split.example_id(k) for k in range(3)]
        assert source.dropped == ({"untranslated": 0} if texts == memory else {})


def test_tmx_drops_codes_and_incomplete_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = "a <bpt i='1'>\\b</bpt>bold<ept i='1'>\\b0</ept> <hi>word</hi><ph x='1'>{1}</ph>"
    units = [
        *[unit(("en", codes), ("de", "fett\n x")), unit(("en", "alone")), unit(("en", "empty"), ("de", " "))],
        unit(("fr", "ici"), ("de-AT", "hier"), ("en-US", "here"), ("en-GB", "here, sir")),
    ]
    path = write(tmp_path / "some.tmx", tmx(units))
    source = ParallelText(path, path, path, languages=("en", "de"))
    split = source.split("train")
    assert list(split) == [("a bold word", "fett x"), ("here", "hier")]
    assert [split.example_id(k) for k in range(2)] == [f"{path}, unit 1", f"{path}, unit 4"]
    assert source.dropped == {"untranslated": 2}
    assert "2 (untranslated) of 4" in capsys.readouterr().err
    assert list(ParallelText(path, path, path, languages=("en_US", "de_at")).split("train")) == [("here", "hier")]
    named = write(tmp_path / "named.tmx", tmx(units, ' xmlns="http://www.lisa.org/tmx14"'))
    assert list(ParallelText(named, path, path, languages=("en", "de")).split("train")) == list(split)
    torn, foreign = write(tmp_path / "torn.tmx", tmx(units)[:-30]), tmx([]).replace("UTF-8", "GB2312")
    refused: list[tuple[Any, Any, str]] = [
        (path, None, r"some\.tmx.*languages"),
        ((write(tmp_path / "some.TMX", ""), path), ("en", "de"), r"some\.TMX.*some\.tmx"),
        (path, ("en", "cs"), r"some\.tmx.* 4 .*en and cs"),
        (write(tmp_path / "foreign.tmx", foreign), ("en", "de"), re.escape(str(tmp_path / "foreign.tmx"))),
        (torn, ("en", "de"), re.escape(str(torn))),
    ]
    for files, languages, message in refused:
        with pytest.raises(InputError, match=message):
            ParallelText(files, **({"languages": languages} if languages else {})).split("train")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    torn, latin = tmp_path / "torn.gz", tmp_path / "latin"
    torn.write_bytes(gzip.compress(b"a\tb\n" * 1000)[:30])
    en, de = write(tmp_path / "en", "one\ntwo\n"), write(tmp_path / "de", "eins\nzwei\ndrei\n")
    lengths = re.escape(str(en)) + " .*2 .*" + re.escape(str(de)) + " 3"
    for files, message in ((tmp_path / "gone", "gone"), (torn, r"torn\.gz"), ((en, de), lengths)):
        with pytest.raises(InputError, match=message):
            ParallelText(files, (en, en), (en, en)).split("train")
    with pytest.raises(InputError, match="nothing"):
        _ = ParallelText(write(tmp_path / "nothing", "")).cleaned_pairs
    latin.write_bytes(b"one\teins\nM\xfcnchen\tx\n")
    split = ParallelText(latin, latin, latin).split("train")
    assert split[0] == ("one", "eins")
    with pytest.raises(InputError, match="latin, line 2"):
        split[1]


def test_long_line_is_left_out_like_a_bad_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unifier.data.text_files.MAX_LINE_BYTES", 9)
    path = write(tmp_path / "tsv", f"one\teins\nlong\t{'x' * 30}\ntwo\tzwei\n")
    split = ParallelText(path, path, path, length_ratio=9, duplicates="drop").split("train")
    assert list(readable_examples(split, bad_examples="skip")) == [("one", "eins"), ("two", "zwei")]
    with pytest.raises(InputError, match=r"tsv, line 2: .*35 .*9 bytes"):
        split[1]


def test_bad_pair_is_named_when_read(tmp_path: Path) -> None:
    en, de = write(tmp_path / "en", "one\n\nthree\n"), write(tmp_path / "de", "eins\nzwei\n \n")
    tsv = write(tmp_path / "tsv", "a\tb\nno tab\na\tb\tc\n\tb\na\t\n")
    lines, table = (ParallelText(files, files, files).split("val") for files in ((en, de), tsv))
    assert (lines[0], table[0]) == (("one", "eins"), ("a", "b"))
    bad = [(lines, 1, f"{en}, line 2", ""), (lines, 2, f"{de}, line 3", "")]
    bad += [(table, k, f"{tsv}, line {k + 1}: ", what) for k, what in enumerate(("0", "2", "source", "target"), 1)]
    for split, index, place, what in bad:
        with pytest.raises(InputError, match=re.escape(place) + f".*{what}"):
            split[index]


def test_missing_splits_are_held_out(tmp_path: Path) -> None:
    pairs = [(f"source {number}", f"target {number}") for number in range(50)]
    whole = write(tmp_path / "all.tsv", "".join(f"{source}\t{target}\n" for source, target in pairs))
    splits = [list(ParallelText(whole).split(name)) for name in SPLITS]
    assert sorted(pair for split in splits for pair in split) == sorted(pairs)
    assert len(splits[1]) == len(splits[2])
    given = ParallelText(whole, test=str(whole))
    assert len(given.split("train")) + len(given.split("val")) == len(given.split("test")) == len(pairs)
    for text in ("a\tb\n", "one\tun\ntwo\tdeux\n"):
        with pytest.raises(InputError, match=r"short\.tsv.*val and test.* 3 examples"):
            ParallelText(write(tmp_path / "short.tsv", text)).split("train")


def test_cleaning_drops_and_counts_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["a\tb", "a\tb", "aaaa\tb", "a\tbb", "a\tb", "ä\tbb", "\tb", "no tab"]
    path = write(tmp_path / "some.tsv", "\n".join(rows))

    def kept_lines(**options: object) -> list[str]:
        split = ParallelText(path, path, path, **options).split("train")  # pyright: ignore[reportArgumentType]
        return [split.example_id(k).rpartition(" ")[2] for k in range(len(split))]

    assert kept_lines() == list("12345678")
    assert not capsys.readouterr().err
    assert kept_lines(duplicates="drop") == list("134678")
    assert "2 (duplicates) of 8" in capsys.readouterr().err
    assert kept_lines(length_ratio=2) == list("12456")
    assert kept_lines(length_ratio=2, duplicates="drop") == list("146")
    source = ParallelText(path, path, path, length_ratio=2, duplicates="drop")
    assert [len(source.split(name)) for name in SPLITS] == [3, 8, 8]
    assert source.dropped == {"length_ratio": 3, "duplicates": 2}
    for ratio in (0.5, float("nan")):
        with pytest.raises(InputError, match=f"length_ratio={ratio}"):
            ParallelText(path, length_ratio=ratio)
    with pytest.raises(InputError, match="duplicates"):
        ParallelText(path, duplicates="delete")  # pyright: ignore[reportArgumentType]


def test_duplicates_are_in_one_split(tmp_path: Path) -> None:
    path = write(tmp_path / "some.tsv", "".join(f"{k % 40}\t{k % 40}\n" for k in range(400)))
    source = ParallelText(path, duplicates="drop")
    pairs = [pair for name in SPLITS for pair in source.split(name)]
    assert len(pairs) == len(set(pairs)) == 40
    with pytest.raises(InputError, match=r"some\.tsv, 400 pairs.* duplicates=drop"):
        ParallelText(path).split("train")


def test_kept_duplicates_are_not_held_out(tmp_path: Path) -> None:
    numbers = [*range(300), *range(0, 300, 2), *range(0, 300, 3)]
    path = write(tmp_path / "some.tsv", "".join(f"{k}\t{k}\n" for k in numbers))
    train, val, test = (list(ParallelText(path).split(name)) for name in SPLITS)
    assert len(val) == len(test) == 50  # Half of the pairs that occur once.
    assert len(train) == len(numbers) - 100
    assert not set(train) & {*val, *test}


@pytest.mark.slow
def test_unique_pairs_split_as_cleaned_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "some.tsv", "".join(f"{k}\t{k}\n" for k in range(300)))
    one, other = ParallelText(path), ParallelText(path, duplicates="drop")
    assert all(list(one.split(name)) == list(other.split(name)) for name in SPLITS)
    many = ParallelText(write(tmp_path / "many.tsv", "".join(f"{k}\t{k}\n" for k in range(30_000))))
    assert [len(many.split(name)) for name in SPLITS] == [26_000, 2_000, 2_000], "held-out pairs are limited"


PROGRAM = """
import sys, tracemalloc
from functools import partial
from unifier.data import dataloader, text_files
from unifier.data.encoding import encode_split
from unifier.datasets.parallel_text import ParallelText
from unifier.heads.head import Head
from unifier.training import cost
from unifier_tokenizers import Tokenizer, Units
import torch

class Letters(Tokenizer):
    def encode(self, raw):
        return Units(torch.tensor(list(raw.encode()), dtype=torch.int8), torch.arange(len(raw.encode()))[None])
    def embed(self, values, positions):
        raise NotImplementedError

class Same(Head):
    def encode(self, target):
        return torch.tensor(list(target.encode()), dtype=torch.int8)
    loss = predict = metrics = lambda *_: None

def loss(batch):
    return (torch.ones(1, 1, requires_grad=True) @ batch.values.float()).sum()

text_files.INDEX_BLOCK = dataloader.LIST_ROWS = 1000
cost.distinct_lengths = partial(cost.distinct_lengths, block=1000)

def work(path):
    source = ParallelText(path, length_ratio=9, duplicates="drop")
    train, _ = encode_split(source.split("train"), Letters(4), Same(), num_workers=0)
    costs = {"a": cost.flops_of_example(loss, train)}
    budget = {"steps": 20, "flops": 1e12}
    batches = dataloader.TrainDataLoader({"a": train}, max_tokens=2048, seed=0, budget=budget, costs=costs)
    assert len(list(batches)) == 20
    return len(train)

work(sys.argv[1])  # Warm up the caches.
tracemalloc.start()
for path in sys.argv[1:]:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    count = work(path)
    print(count, tracemalloc.get_traced_memory()[1] - before)
"""


@pytest.mark.slow
def test_memory_grows_by_bytes_per_pair(tmp_path: Path) -> None:
    """Read files into batches; as Python objects, the texts and tokens of a pair would take about 700 bytes."""
    files = [tmp_path / "few.tsv", tmp_path / "many.tsv"]
    for path, count in zip(files, (1_000, 5_000), strict=True):
        path.write_text("".join(f"sentence number {k}\tSatz Nummer {k}\n" for k in range(count)))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *files], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    (few, small), (many, large) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == (800, 4000)
    assert (large - small) / (many - few) < 24


OWN = GrammarPairs(train=30, val=3, test=3)


def write_extra(path: Path, count: int = 20) -> ParallelText:
    path.write_text("".join(f"line {k}\tligne {k}\n" for k in range(count)))
    return ParallelText(path)


def test_extra_pairs_are_appended_to_train(tmp_path: Path) -> None:
    extra = write_extra(tmp_path / "more.tsv")
    both = WithExtraPairs(OWN, extra)
    unpickled = pickle.loads(pickle.dumps(both.split("train")))
    assert list(both.split("train")) == list(unpickled) == [*OWN.split("train"), *extra.cleaned_pairs]
    assert all(list(both.split(name)) == list(OWN.split(name)) for name in ("val", "test"))
    assert (both.name, both.score_range) == (OWN.name, OWN.score_range)
    assert describe_example(unpickled, 29) == describe_example(OWN.split("train"), 29)
    assert describe_example(unpickled, 30) == f"{tmp_path / 'more.tsv'}, line 1"
    with pytest.raises(IndexError):
        both.split("train")[50]
    few, many = (write_extra(tmp_path / f"{count}.tsv", count) for count in (4, 5))
    assert len({sha256_of(source) for source in (OWN, WithExtraPairs(OWN, few), WithExtraPairs(OWN, many))}) == 3


def test_cleaned_pairs_include_held_out(tmp_path: Path) -> None:
    file = write_extra(tmp_path / "more.tsv")
    assert sorted(file.cleaned_pairs) == sorted(pair for name in ("train", "val", "test") for pair in file.split(name))
    with (tmp_path / "more.tsv").open("a") as table:
        table.write("line 1\tligne 1\n")
    assert len(ParallelText(tmp_path / "more.tsv").cleaned_pairs) == 21
    assert len(ParallelText(tmp_path / "more.tsv", duplicates="drop").cleaned_pairs) == 20


def test_dropped_pairs_are_described(tmp_path: Path) -> None:
    for name, times in (("own", 3), ("more", 5)):
        lines = [*(f"{k}\t{k}\n" for k in range(30)), *["again\tencore\n"] * times]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    own, extra = (ParallelText(tmp_path / f"{name}.tsv", duplicates="drop") for name in ("own", "more"))
    sources = (extra, WithExtraPairs(own, extra), WithExtraPairs(OWN, extra))
    assert [describe_data(source, {})["dropped"]["duplicates"] for source in sources] == [4, 6, 4]
    assert "dropped" not in describe_data(ParallelText(tmp_path / "more.tsv"), {})


def test_extra_files_are_read_with_train(tmp_path: Path) -> None:
    both = WithExtraPairs(OWN, ParallelText(tmp_path / "gone.tsv"))
    assert list(both.split("val")) == list(OWN.split("val"))
    with pytest.raises(InputError, match=r"gone\.tsv"):
        both.split("train")
