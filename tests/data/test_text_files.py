"""Lines and duplicates in text files."""

import random
from pathlib import Path

import pytest

from unifier.data.readers import read_lines
from unifier.data.text_files import LineIndex, duplicate_pairs, length_outliers, open_decompressed


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
