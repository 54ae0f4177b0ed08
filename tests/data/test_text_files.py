"""Lines and duplicates in text files."""

import bz2
import gzip
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from unifier.data import text_files
from unifier.data.readers import read_lines
from unifier.data.text_files import LineIndex, duplicate_pairs, length_outliers, open_decompressed
from unifier_tokenizers import InputError


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["", "\n", "a", "a\n", "\ufeffa\r\nb", "a\u2028b\n\n\nc\r\n", "\ufeff", "é\n" * 300_000]
)
def test_line_index_equals_reading_all(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lines"
    path.write_bytes(text.encode())
    lines, expected = LineIndex(open_decompressed(path)), text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if not expected[-1]:
        expected.pop()
    assert (read_lines(path), len(lines)) == (expected, len(expected))
    assert [line.decode() for line in lines] == expected
    for row in random.Random(0).sample(range(len(expected)), min(len(expected), 50)):
        assert lines[row].decode() == expected[row]


@pytest.mark.parametrize("text", ["a\rb\rc\r", "a\rb\rc", "\ufeffa\rb\rc\n", "a\nb\rx\nc\r\n", "a\rb\r\n"])
def test_carriage_returns_end_lines_only_without_line_feeds(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lines"
    path.write_bytes(text.encode())
    expected = {"a\nb\rx\nc\r\n": ["a", "b\rx", "c"], "a\rb\r\n": ["a\rb"]}.get(text, ["a", "b", "c"])
    lines = LineIndex(open_decompressed(path))
    assert (read_lines(path), [lines[k].decode() for k in range(len(lines))]) == (expected, expected)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("name", ["a.GZ", "a.bz2", "a.XZ", "a.txt"])
def test_compressed_files_are_recognized_by_content(
    tmp_path: Path, compress: Callable[[bytes], bytes], name: str
) -> None:
    (tmp_path / name).write_bytes(compress("é\nb\n".encode()))
    assert read_lines(tmp_path / name) == ["é", "b"]


@pytest.mark.parametrize(
    "name", ["pipe", "/dev/zero", "a\0b", "x" * 300, "a.zip", "bomb.xz", "bomb.gz", "long", "utf-16", "utf-16-le"]
)
def test_unreadable_files_are_refused_in_one_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_UNPACKED", 1 << 20)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "bomb.xz").write_bytes(lzma.compress(bytes(2 << 20)))
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    for encoding in ("utf-16", "utf-16-le"):
        (tmp_path / encoding).write_text("text\n", encoding)
    (tmp_path / "long").write_bytes(b"a\n" + b"b" * (text_files.MAX_LINE_BYTES + 1))
    with pytest.raises(InputError) as error:
        read_lines(tmp_path / name)
    assert "\n" not in str(error.value)
    assert name[:20] in str(error.value).replace("\\x00", "\0")


@pytest.mark.slow
def test_duplicate_pairs_equal_a_set() -> None:
    draw = random.Random(0)
    pairs = [(b"%d" % draw.randrange(60), b"%d" % draw.randrange(60)) for _ in range(3000)]
    pairs += [(b"1\t2", b"3"), (b"1", b"2\t3"), (b"12", b"3"), (b"1", b"23")]
    seen: set[tuple[bytes, bytes]] = set()
    expected = [pair in seen or seen.add(pair) is not None for pair in pairs]
    several = [pairs.count(pair) > 1 for pair in pairs]
    assert duplicate_pairs(pairs).tolist() == expected
    assert duplicate_pairs(pairs, first_too=True).tolist() == several
    assert length_outliers([(b"ab", b"abcd"), (b"abc", b"a"), (b"", b""), (b"", b"a")], 2).tolist() == [0, 1, 0, 1]
