"""Texts with labels: tables of one's own, SST-2 and TREC."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from unifier.data.source import SPLITS
from unifier.datasets.text_classification import SST2, TREC, TextTable
from unifier_tokenizers import InputError


def write_table(path: Path, count: int = 40, header: str = "text,label") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [header, *(f'"review, {k}",{"good" if k % 2 else "bad"}' for k in range(count))]
    path.write_text("\n".join(rows) + "\n")
    return path


def text_table(folder: Path) -> TextTable:
    return TextTable(write_table(folder / "reviews.csv"))


def sst2(folder: Path) -> SST2:
    folder.mkdir(parents=True)
    for part, count in (("train", 6), ("dev", 4), ("test", 2)):
        text = "".join(f"{k % 2} a {part} film , no. {k} é\n" for k in range(count))
        (folder / f"stsa.binary.{part}").write_text(text)
    return SST2(data=folder)


def trec(folder: Path) -> TREC:
    folder.mkdir(parents=True)
    for part, count in (("train", 120), ("test", 6)):
        text = "".join(f"{k % 6} What {part} is no. {k} of é ?\n" for k in range(count))
        (folder / f"TREC.{part}.all").write_text(text, "latin-1")
    return TREC(data=folder)


@pytest.mark.parametrize("make", [text_table, sst2, trec])
def test_text_sources_keep_contract(make: Callable[[Path], object], check_source: Callable[..., None]) -> None:
    check_source(make, named=make is not text_table)


def test_text_table_holds_out_a_tenth_of_each_label(tmp_path: Path) -> None:
    source = text_table(tmp_path)
    assert (source.name, source.labels) == ("reviews", ("bad", "good"))
    targets = [[target for _, target in source.split(name)] for name in SPLITS]
    assert [(part.count("bad"), part.count("good")) for part in targets] == [(16, 16), (2, 2), (2, 2)]
    first = source.split("train")[0]
    assert first in [(f"review, {k}", "good" if k % 2 else "bad") for k in range(40)]
    assert source.split("train").target(0) == first.target


def test_text_table_reads_separate_files(tmp_path: Path) -> None:
    files = [write_table(tmp_path / f"{name}.csv", count) for name, count in zip(SPLITS, (20, 6, 4), strict=True)]
    assert [len(TextTable(*files).split(name)) for name in SPLITS] == [20, 6, 4]
    held_out = TextTable(files[0], test=files[2])
    assert [len(held_out.split(name)) for name in SPLITS] == [18, 2, 4]
    assert len({TextTable(*files).sha256, held_out.sha256, TextTable(files[0]).sha256}) == 3
    files[2].write_text("text,label\nnew,neutral\n")
    with pytest.raises(InputError, match="neutral"):
        TextTable(*files).split("train")


def test_text_table_names_columns_and_formats(tmp_path: Path) -> None:
    rows = [f'{k % 5 + 1}\tx\t"quoted {k}' for k in range(50)]
    content = "\n".join(["stars\tid\treview", *rows]).encode()
    (tmp_path / "plain.tsv").write_bytes(content)
    (tmp_path / "packed.tsv.gz").write_bytes(gzip.compress(content))
    plain, packed = (TextTable(tmp_path / f, text="review", label="stars") for f in ("plain.tsv", "packed.tsv.gz"))
    assert ((plain.name, packed.name), plain.labels) == (("plain", "packed"), tuple("12345"))
    for name in SPLITS:
        assert list(plain.split(name)) == list(packed.split(name))
    assert plain.split("test")[0].input.startswith('"quoted '), "a TSV file has no quoting"
    with pytest.raises(InputError, match=r"plain\.tsv.*text, label.*stars, id, review"):
        TextTable(tmp_path / "plain.tsv").split("train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\n", r"a\.csv"),
        ("a.csv", "text,label\nfine,\n", r"a\.csv, line 2.*label"),
        ("a.csv", "text,label\nfine\n", r"a\.csv, line 2"),
        ("a.txt", "text,label\nfine,1\n", r"a\.txt.*\.csv"),
    ],
)
def test_text_table_refuses_file(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        TextTable(tmp_path / name).split("train")
    with pytest.raises(InputError, match="text=label"):
        _ = TextTable(tmp_path / "a.csv", text="label").labels


def test_text_table_empty_text_fails_when_read(tmp_path: Path) -> None:
    table, val = write_table(tmp_path / "a.csv", 20), write_table(tmp_path / "b.csv", 4)
    val.write_text(val.read_text() + "new,good\n")
    assert (TextTable(table).copies, TextTable(table, val, val).copies) == (0, 8)
    table.write_text(table.read_text() + ' ,good\n"review, 3",good\n')
    split = TextTable(table, table, table).split("train")
    assert split[21].target == "good"
    with pytest.raises(InputError, match=r"a\.csv, line 22"):
        split[20]


def test_sst2_and_trec_read_labels(tmp_path: Path) -> None:
    assert sst2(tmp_path / "sst2").split("val")[1] == ("a dev film , no. 1 é", "positive")
    source = trec(tmp_path / "trec")
    assert source.split("test")[2] == ("What test is no. 2 of é ?", "abbreviation")
    assert [len(source.split(name)) for name in SPLITS] == [108, 12, 6]
    assert {target for _, target in source.split("val")} == set(source.labels)


@pytest.mark.parametrize("line", [b"2 third label\n", b"good film\n", b"\n", b"1 \xe9\n"])
def test_sst2_names_bad_line(tmp_path: Path, line: bytes) -> None:
    source = sst2(tmp_path / "sst2")
    with (tmp_path / "sst2" / "stsa.binary.dev").open("ab") as file:
        file.write(line)
    with pytest.raises(InputError, match=r"stsa\.binary\.dev, line 5"):
        source.split("val")
