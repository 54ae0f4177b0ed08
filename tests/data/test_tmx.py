"""Translation memories: codes between words, units inside units, and constant memory."""

import tracemalloc
from pathlib import Path

import pytest

from benchmarks.chaos.memories import memory_cases
from unifier.data.tmx import read_tmx


def read(tmp_path: Path, body: str) -> list[str]:
    """Return the English texts of a translation memory with the languages en and de."""
    path = tmp_path / "some.tmx"
    path.write_text(f'<tmx version="1.4"><header/><body>{body}</body></tmx>')
    memory = read_tmx(path, ("en", "de"))
    memory.source.seek(0)
    with memory.source as source, memory.target:
        return source.read().decode().splitlines()


def unit(english: str, inside: str = "") -> str:
    return f'<tu><tuv xml:lang="en"><seg>{english}</seg></tuv>{inside}<tuv xml:lang="de"><seg>deutsch</seg></tuv></tu>'


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


@pytest.mark.slow
def test_memories_are_read_as_declared(tmp_path: Path) -> None:
    assert not [fault for case in memory_cases() if (fault := case.fault(tmp_path))]


def test_deep_nesting_and_units_inside_units(tmp_path: Path) -> None:
    deep = "<hi>" * 3000 + "deep" + "</hi>" * 3000
    codes = "a" + "<ph><sub>" * 2000 + "x" + "</sub></ph>" * 2000 + "b"
    assert read(tmp_path, unit(deep) + unit(codes)) == ["deep", "a b"]
    assert read(tmp_path, unit("outer", unit("inner"))) == ["inner", "outer"]
    assert len(read(tmp_path, "<tu>" * 5000 + unit("inner") + "</tu>" * 5000)) == 1
    assert read(tmp_path, unit("out" + unit("inner") + "er")) == ["inner", "outer"]
