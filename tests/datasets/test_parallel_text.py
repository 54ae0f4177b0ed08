"""Pairs of texts from disk: every format gives the same pairs, cleaning counts what it drops, and memory stays flat."""

import gzip
import pickle
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from unifier.data.prepare import describe_data
from unifier.data.readers import read_lines
from unifier.data.source import SPLITS
from unifier.data.text_files import LineIndex, duplicate_pairs, length_outliers, open_decompressed, read_tmx
from unifier.datasets.parallel_text import ParallelText
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


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_two_files_a_table_and_a_memory_say_the_same(tmp_path: Path, ending: str) -> None:
    en = written(tmp_path / f"en{ending}", "".join(f"{source}\n" for source, _ in PAIRS))
    de = written(tmp_path / f"de{ending}", "\n".join(target for _, target in PAIRS))
    tsv = written(tmp_path / f"both.tsv{ending}", "".join(f"{source}\t{target}\r\n" for source, target in PAIRS))
    units = [unit(("en-GB", escape(source)), ("DE", escape(target))) for source, target in PAIRS]
    memory = written(tmp_path / f"both.tmx{ending}", tmx(units))
    for texts in ((en, de), tsv, memory):
        source = ParallelText(texts, texts, texts, languages=("en", "de"))
        for name in SPLITS:
            assert list(source.split(name)) == PAIRS
        assert source.dropped == ({"untranslated": 0} if texts == memory else {})


def test_a_memory_is_read_without_its_codes_and_units_without_both_languages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = [
        unit(
            ("en", "a <bpt i='1'>\\b</bpt>bold<ept i='1'>\\b0</ept> <hi>word</hi><ph x='1'>{1}</ph>"),
            ("de", "fett\n x"),
        ),
        unit(("en", "alone")),
        unit(("fr", "ici"), ("de-AT", "hier"), ("en-US", "here"), ("en-GB", "here, sir")),
        unit(("en", "empty"), ("de", " ")),
    ]
    path = written(tmp_path / "some.tmx", tmx(units))
    source = ParallelText(path, path, path, languages=("en", "de"))
    split = source.split("train")
    assert list(split) == [("a bold word", "fett x"), ("here", "hier")]
    assert [split.example_id(k) for k in range(2)] == [f"{path}, unit 1", f"{path}, unit 3"]
    assert source.dropped == {"untranslated": 2}
    assert "of 4 pairs to train, dropped 2 (untranslated)" in capsys.readouterr().err
    with pytest.raises(InputError, match="say which two are meant"):
        ParallelText(path).split("train")
    with pytest.raises(InputError, match=r"some\.TMX holds both languages, and .*some\.tmx stands beside it"):
        ParallelText((written(tmp_path / "some.TMX", ""), path), languages=("en", "de")).split("train")
    with pytest.raises(InputError, match=r"some\.tmx: none of its 4 units has both en and cs$"):
        ParallelText(path, languages=("en", "cs")).split("train")
    assert list(ParallelText(path, path, path, languages=("en_US", "de_at")).split("train")) == [("here", "hier")]
    named = written(tmp_path / "named.tmx", tmx(units, ' xmlns="http://www.lisa.org/tmx14"'))
    assert list(ParallelText(named, path, path, languages=("en", "de")).split("train")) == list(split)
    torn = written(tmp_path / "torn.tmx", tmx(units)[:-30])
    foreign = tmp_path / "foreign.tmx"
    foreign.write_bytes(tmx([]).replace("UTF-8", "GB2312").encode())
    with pytest.raises(InputError, match=re.escape(f"{foreign}: not a translation memory (multi-byte encodings")):
        ParallelText(foreign, languages=("en", "de")).split("train")
    with pytest.raises(InputError, match=re.escape(f"{torn}: not a translation memory (")):
        ParallelText(torn, languages=("en", "de")).split("train")


def test_a_memory_of_any_size_takes_as_much_memory(tmp_path: Path) -> None:
    taken: list[int] = []
    for count in (2_000, 20_000):
        units = (unit(("en", f"dog {k}"), ("de", f"Hund {k}")) for k in range(count))
        path = written(tmp_path / "some.tmx", tmx(units))
        tracemalloc.start()
        memory = read_tmx(path, ("en", "de"))
        taken.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(memory.unit_numbers) == count
        memory.source.close()
        memory.target.close()
    assert taken[1] - taken[0] < 18_000


@pytest.mark.parametrize(
    "text", ["", "\n", "a", "a\n", "\ufeffa\r\nb", "a\u2028b\n\n\nc\r\n", "\ufeff", "é\n" * 300_000]
)
def test_lines_are_those_that_reading_all_at_once_gives(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "lines", text)
    lines, expected = LineIndex(open_decompressed(path)), text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if not expected[-1]:
        expected.pop()
    assert read_lines(path) == expected
    assert len(lines) == len(expected)
    assert [line.decode() for line in lines] == expected
    for row in random.Random(0).sample(range(len(expected)), min(len(expected), 50)):
        assert lines[row].decode() == expected[row]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gone: no such file"):
        ParallelText(tmp_path / "gone").split("train")
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(b"a\tb\n" * 1000)[:30])
    with pytest.raises(InputError, match=r"torn\.gz cannot be read"):
        ParallelText(torn).split("train")
    with pytest.raises(InputError, match=r"nothing is empty$"):
        _ = ParallelText(written(tmp_path / "nothing", "")).whole
    latin = tmp_path / "latin"
    latin.write_bytes(b"one\teins\nM\xfcnchen\tx\n")
    split = ParallelText(latin, latin, latin).split("train")
    assert split[0] == ("one", "eins")
    with pytest.raises(InputError, match=r"latin, line 2: not UTF-8 text"):
        split[1]


def test_cleaning_drops_from_training_what_was_asked_and_counts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["a\tb", "a\tb", "aaaa\tb", "a\tbb", "a\tb", "ä\tbb", "\tb", "no tab"]
    path = written(tmp_path / "some.tsv", "\n".join(rows))

    def kept(**options: object) -> list[str]:
        split = ParallelText(path, path, path, **options).split("train")  # pyright: ignore[reportArgumentType]
        return [split.example_id(k).rpartition(" ")[2] for k in range(len(split))]

    assert kept() == list("12345678")
    assert not capsys.readouterr().err
    assert kept(duplicates="drop") == list("134678")
    assert "of 8 pairs to train, dropped 2 (duplicates)" in capsys.readouterr().err
    assert kept(length_ratio=2) == list("12456")
    assert kept(length_ratio=2, duplicates="drop") == list("146")
    source = ParallelText(path, path, path, length_ratio=2, duplicates="drop")
    assert [len(source.split(name)) for name in SPLITS] == [3, 8, 8]
    assert source.dropped == {"length_ratio": 3, "duplicates": 2}
    for ratio in (0.5, float("nan")):
        with pytest.raises(InputError, match=r"length_ratio=.*at least 1"):
            ParallelText(path, length_ratio=ratio)
    with pytest.raises(InputError, match="duplicates"):
        ParallelText(path, duplicates="delete")  # pyright: ignore[reportArgumentType]


def test_no_duplicate_is_on_two_sides_of_a_split(tmp_path: Path) -> None:
    path = written(tmp_path / "some.tsv", "".join(f"{k % 40}\t{k % 40}\n" for k in range(400)))
    source = ParallelText(path, duplicates="drop")
    pairs = [pair for name in SPLITS for pair in source.split(name)]
    assert len(pairs) == len(set(pairs)) == 40
    with pytest.raises(InputError, match=r"some\.tsv, 400 pairs.* duplicates=drop"):
        ParallelText(path).split("train")


def test_two_pairs_are_too_few_to_hold_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 3 examples"):
        ParallelText(written(tmp_path / "some.tsv", "one\tun\ntwo\tdeux\n")).split("train")


def test_of_duplicates_that_stay_none_is_held_out(tmp_path: Path) -> None:
    numbers = [*range(300), *range(0, 300, 2), *range(0, 300, 3)]
    path = written(tmp_path / "some.tsv", "".join(f"{k}\t{k}\n" for k in numbers))
    train, val, test = (list(ParallelText(path).split(name)) for name in SPLITS)
    assert len(val) == len(test) == 50  # half of those that occur once, of which there are fewer than two tenths
    assert len(train) == len(numbers) - 100
    assert not set(train) & {*val, *test}


def test_where_none_is_repeated_the_split_is_that_of_cleaned_pairs(tmp_path: Path) -> None:
    path = written(tmp_path / "some.tsv", "".join(f"{k}\t{k}\n" for k in range(300)))
    one, other = ParallelText(path), ParallelText(path, duplicates="drop")
    assert all(list(one.split(name)) == list(other.split(name)) for name in SPLITS)


def test_of_many_pairs_no_more_are_held_out_than_can_be_translated_time_and_again(tmp_path: Path) -> None:
    path = written(tmp_path / "many.tsv", "".join(f"{k}\t{k}\n" for k in range(30_000)))
    source = ParallelText(path)
    assert [len(source.split(name)) for name in SPLITS] == [26_000, 2_000, 2_000]


def test_what_has_occurred_before_is_what_a_set_has_seen() -> None:
    draw = random.Random(0)
    pairs = [(b"%d" % draw.randrange(60), b"%d" % draw.randrange(60)) for _ in range(3000)]
    pairs += [(b"1\t2", b"3"), (b"1", b"2\t3"), (b"12", b"3"), (b"1", b"23")]
    seen: set[tuple[bytes, bytes]] = set()
    expected = [pair in seen or seen.add(pair) is not None for pair in pairs]
    several = [pairs.count(pair) > 1 for pair in pairs]
    assert duplicate_pairs(pairs).tolist() == expected
    assert duplicate_pairs(pairs, first_too=True).tolist() == several
    assert length_outliers([(b"ab", b"abcd"), (b"abc", b"a"), (b"", b""), (b"", b"a")], 2).tolist() == [0, 1, 0, 1]


def test_pairs_go_into_other_processes(tmp_path: Path) -> None:
    path = written(tmp_path / "some.tsv.gz", "".join(f"{source}\t{target}\n" for source, target in PAIRS))
    split = ParallelText(path).split("train")
    again = pickle.loads(pickle.dumps(split))
    assert list(again) == list(split)
    assert [again.example_id(k) for k in range(3)] == [split.example_id(k) for k in range(3)]


PROGRAM = """
import sys, tracemalloc
from unifier.data import loading
from unifier.data.reading import lines
from unifier.data.encoding import encode_split
from unifier.datasets.parallel_text import ParallelText
from unifier.heads.head import Head
from unifier.study import flops
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

lines.BLOCK = loading.BLOCK = flops.BLOCK = 1000

def work(path):
    source = ParallelText(path, length_ratio=9, duplicates="drop")
    train, _ = encode_split(source.split("train"), Letters(4), Same(), num_workers=0)
    cost = {"a": flops.flops_of_example(loss, train)}
    budget = {"steps": 20, "flops": 1e12}
    batches = loading.TrainingBatches({"a": train}, columns=2048, seed=0, budget=budget, costs=cost)
    assert len(list(batches)) == 20
    return len(train)

work(sys.argv[1])  # what is made once
tracemalloc.start()
for path in sys.argv[1:]:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    count = work(path)
    print(count, tracemalloc.get_traced_memory()[1] - before)
"""


def test_memory_does_not_grow_with_the_lines_but_by_bytes(tmp_path: Path) -> None:
    """From the file to the batches; a pair's own texts and columns are some 700 bytes as Python's objects."""
    files = [tmp_path / "few.tsv", tmp_path / "many.tsv"]
    for path, count in zip(files, (1_000, 10_000), strict=True):
        path.write_text("".join(f"sentence number {k}\tSatz Nummer {k}\n" for k in range(count)))
    done = subprocess.run([sys.executable, "-c", PROGRAM, *files], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    (few, small), (many, large) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == (800, 8000)
    assert (large - small) / (many - few) < 24


def test_a_run_says_what_its_data_lost(tmp_path: Path) -> None:
    path = written(tmp_path / "some.tsv", "a\tb\n" * 5 + "".join(f"{k}\t{k}\n" for k in range(20)))
    source = ParallelText(path, duplicates="drop")
    assert describe_data(source, {})["dropped"] == {"duplicates": 4}
    assert "dropped" not in describe_data(ParallelText(path), {})
