"""Windows of series against a plain loop, floors of the published data, and tables that are refused."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from unifier.datasets.series_windows import SeriesWindows, labeled_windows
from unifier_tokenizers import InputError


def write_table(path: Path, rows: int = 60, changes: dict[int, str] | None = None) -> str:
    """Write a table of two channels with one row per hour, with other texts in some rows."""
    lines = [f"2020-01-{1 + k // 24:02} {k % 24:02}:00,{np.sin(k):.6f},{k * 2}" for k in range(rows)]
    for row, text in (changes or {}).items():
        lines[row] = text
    path.write_text("\n".join(["date,a,b", *lines]))
    return str(path)


@pytest.mark.parametrize("joint", [False, True])
def test_windows_equal_a_plain_loop(tmp_path: Path, joint: bool) -> None:
    source = SeriesWindows(write_table(tmp_path / "t.csv"), context=5, horizon=2, joint=joint)
    table = np.array([[np.round(np.sin(k), 6), 2.0 * k] for k in range(60)]).T
    table = (table - table[:, :42].mean(1, keepdims=True)) / table[:, :42].std(1, keepdims=True)
    for name, first, end in (("train", 0, 42), ("val", 42 - 5, 48), ("test", 48 - 5, 60)):
        split = source.split(name)  # pyright: ignore[reportArgumentType]
        windows = [(start, slice(c, c + 1)) for start in range(first, end - 6) for c in range(2)]
        windows = [(start, slice(None)) for start, _ in windows[::2]] if joint else windows
        assert len(split) == len(windows)
        for (past, future), (start, channel) in zip(split, windows, strict=True):
            np.testing.assert_allclose(past, table[channel, start : start + 5])
            np.testing.assert_allclose(future.values, table[channel, start + 5 : start + 7])
            np.testing.assert_allclose(future.mean[:, 0], past.numpy().mean(1))
            np.testing.assert_allclose(future.std[:, 0], past.numpy().std(1))
    test = [(past[:, -1:], future.values) for past, future in source.split("test")]
    last_value = np.mean([((future - last) ** 2).numpy() for last, future in test])
    assert source.score_range is not None
    assert source.score_range.chance == pytest.approx(last_value)


def test_new_table_is_cut_as_the_test_split(tmp_path: Path) -> None:
    source = SeriesWindows(write_table(tmp_path / "t.csv"), context=5, horizon=2)
    windows = labeled_windows(tmp_path / "t.csv", source.reader, 2)
    for (_, past, future), expected in zip(windows[-20:], list(source.split("test"))[-20:], strict=True):
        np.testing.assert_allclose(past, expected.input)
        np.testing.assert_allclose(future.values, expected.target.values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({3: "2020-01-01 03:00,,1"}, r"line 5, a: a number is expected, not ''; fill the gap"),
        ({3: "2020-01-01 03:00,NaN,1"}, "line 5, a"),
        ({3: "2020-01-01 05:30,0,1"}, "fill the gap"),
        ({3: "2020-01-01 01:00,0,1"}, "sort the rows"),
        ({3: "2020-01-01 02:00,0,1"}, "02:00:00 occurs twice; remove"),
        ({3: "yesterday,0,1"}, "line 5, date"),
    ],
)
def test_gap_is_named(tmp_path: Path, changes: dict[int, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SeriesWindows(write_table(tmp_path / "t.csv", changes=changes), context=5, horizon=2).split("train")


def test_series_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    constant = {k: f"2020-01-{1 + k // 24:02} {k % 24:02}:00,{k},7" for k in range(60)}
    with pytest.raises(InputError, match="b has the same value"):
        SeriesWindows(write_table(tmp_path / "c.csv", changes=constant), context=5, horizon=2).split("train")
    table = write_table(tmp_path / "t.csv")
    for context, horizon, split in ((40, 3, "train"), (5, 7, "val"), (5, 13, "test")):
        with pytest.raises(InputError, match=f"{split} has .* rows"):
            SeriesWindows(table, context=context, horizon=horizon).split(split)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="test has 12 rows"):
        assert SeriesWindows(table, context=5, horizon=13).score_range
    with pytest.raises(InputError, match="train has 0 rows"):
        SeriesWindows(write_table(tmp_path / "one.csv", rows=1), context=1, horizon=1).split("train")
    (tmp_path / "semicolons.csv").write_text("date;a\n2020-01-01;1\n")
    with pytest.raises(InputError, match="semicolons"):
        SeriesWindows(str(tmp_path / "semicolons.csv"), context=1, horizon=1).split("train")
    with pytest.raises(InputError, match="one row per time step"):
        SeriesWindows(write_table(tmp_path / "empty.csv", rows=0), context=5, horizon=2).split("train")
    with pytest.raises(InputError, match="horizon=-1"):
        SeriesWindows(table, context=5, horizon=-1)
    with pytest.raises(InputError, match="no column z"):
        SeriesWindows(table, context=5, horizon=2, channels=("z",)).split("train")
    with pytest.raises(InputError, match="its own channels"):
        SeriesWindows("etth1", context=5, horizon=2, channels=("OT",))
    with pytest.raises(InputError, match="does not exist"):
        SeriesWindows(str(tmp_path / "no.csv"), context=5, horizon=2)


def test_files_with_other_channels_are_refused(tmp_path: Path) -> None:
    for split, channel in (("train", "b"), ("val", "c"), ("test", "b")):
        table = pyarrow.table({"a": np.arange(60.0), channel: np.arange(60.0)})
        pyarrow.parquet.write_table(table, tmp_path / f"{split}.parquet")
    with pytest.raises(InputError, match=r"val.parquet and .*train.parquet differ in the column b"):
        SeriesWindows(f"parquet:{tmp_path}", context=5, horizon=2).split("train")
