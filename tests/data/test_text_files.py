"""Lines, translation memories and duplicates in text files."""

import random
import tracemalloc
from pathlib import Path

import pytest

from unifier.data.readers import read_lines
from unifier.data.text_files import LineIndex, duplicate_pairs, length_outliers, open_decompressed, read_tmx


@pytest.mark.slow
def test_read_tmx_memory_is_constant(tmp_path: Path) -> None:
    peaks: list[int] = []
    for count in (2_000, 20_000):
        units = (
            f'<tu><tuv xml:lang="en"><seg>dog {k}</seg></tuv><tuv xml:lang="de"><seg>Hund {k}</seg></tuv></tu>'
            for k in range(count)
        )
        path = tmp_path / "some.tmx"
        path.write_text(f'<tmx version="1.4"><header/><body>{"".join(units)}</body></tmx>')
        tracemalloc.start()
        memory = read_tmx(path, ("en", "de"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(memory.unit_numbers) == count
        memory.source.close()
        memory.target.close()
    assert peaks[1] - peaks[0] < 18_000


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
