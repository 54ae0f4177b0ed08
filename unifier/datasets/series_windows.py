"""Windows of time series with the values that follow: ETTh1, Beijing weather, Los Angeles traffic, your own table."""

import csv
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.arrow_files import (
    TABLES,
    column_names,
    find_column,
    find_split_files,
    locate_row,
    read_column,
    read_number,
    rows_of,
)
from unifier.data.dataset import Examples
from unifier.data.inputs import SeriesReader
from unifier.data.readers import hash_files, iterate_table, parse_number
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, data_folder
from unifier.data.text_files import open_lines
from unifier.heads.forecasting import Future
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice
from unifier_tokenizers.series import window_moments

TIME_COLUMNS = ("date", "time", "timestamp", "datetime")
"""Names of columns with times, in any case. Such a column is no channel."""


class SeriesTable(NamedTuple):
    """A table of a named data set."""

    file: str
    channels: tuple[str, ...] = ()
    """The columns of the channels. An empty tuple means all columns except the times."""
    rows: tuple[int, int, int] | None = None
    """The numbers of rows of train, val and test. None means 70, 10 and 20 percent of all rows."""
    standardized: bool = True
    """False if errors are measured in the units of the table."""
    license: str | None = None


SERIES: dict[str, SeriesTable] = {
    "etth1": SeriesTable("ETTh1.csv", rows=(8640, 2880, 2880), license="CC BY-ND 4.0"),
    "beijing_weather": SeriesTable(
        "beijing.csv", ("DEWP", "TEMP", "PRES", "Iws"), (30676, 4383, 8765), license="CC BY 4.0"
    ),
    "los_speed": SeriesTable("los_speed.csv", rows=(1451, 161, 404), standardized=False),
}
"""The named data sets: Zhou et al. 2021, Liang et al. 2015, and Zhao et al. 2019 (T-GCN), as prepared by their authors.

The last tenth of the training rows of los_speed is val.
"""


class Window(NamedTuple):
    """The first row of a window, and its channel, or None for all channels."""

    start: int
    channel: int | None


@final
class SeriesWindows:
    """All windows of a time series with the values that follow, one after each time step.

    The input is a window (C, context) in float64, and the target is a `Future` of `horizon` time steps. Windows of val
    and test begin in the split before, so each time step of a split is forecast. Each channel is standardized with the
    mean and the standard deviation of its training rows, as in Zhou et al. 2021.
    """

    def __init__(
        self,
        data: str,
        *,
        context: int,
        horizon: int,
        channels: Sequence[str] = (),
        joint: bool = False,
        folder: str | Path | None = None,
    ) -> None:
        """Store the settings. The table is read later.

        Args:
            data: A name in `SERIES`, the path of a CSV file with one row per time step, or a word such as
                "parquet:DIR" (see `ArrowTable`). The rows are in the order of time, from train to test.
            context: The number of time steps of a window.
            horizon: The number of time steps that follow, or 0 for windows without a future, as in pretraining.
            channels: The columns of your own table. An empty tuple means all columns except the times.
            joint: True if an example contains all channels. False if each channel is an example.
            folder: The folder with the file of a named data set, or None for the default folder.
        """
        if data in SERIES and channels:
            raise InputError(f"channels={','.join(channels)}: {data} has its own channels; leave the setting out")
        self._table = SERIES.get(data) or SeriesTable(data, tuple(channels))
        self._word = data if data.startswith(TABLES) else None
        path = data.partition(":")[2] if self._word else data
        self.name = data if data in SERIES else Path(path).stem
        self._path = data_folder(data, folder) / self._table.file if data in SERIES else Path(path)
        if not self._word and not self._path.is_file():
            raise InputError(
                f"data={data}: {self._path} does not exist; give a CSV file, datasets:DIR, parquet:DIR, or one of "
                f"{', '.join(SERIES)}"
            )
        for setting, value, least in (("context", context, 1), ("horizon", horizon, 0)):
            if value < least:
                raise InputError(f"{setting}={value}: at least {least} time steps are needed")
        self.context, self.horizon, self._joint, self.license = context, horizon, joint, self._table.license

    def split(self, name: SplitName) -> Examples[Window]:
        """Return the windows of one split, in the order of time, and then of the channels.

        Raises:
            InputError: The table has a gap, a channel is constant in train, or a split is shorter than a window.
        """
        starts = self._starts(check_choice("split", name, SPLITS))
        channels = (None,) if self._joint else range(len(self.reader.channels))
        windows = [Window(start, channel) for start in starts for channel in channels]
        return Examples(windows, partial(_read, self._standardized, self.context, self.horizon), self._locate)

    @cached_property
    def reader(self) -> SeriesReader:
        """The preparation of new series, with the channels and their training moments."""
        self._starts("train")  # A training split without a window has no moments either.
        channels, values = self._content
        train = values[:, : self._bounds["train"][1]]
        mean, std = train.mean(1), train.std(1)
        if constant := [name for name, row in zip(channels, train, strict=True) if np.ptp(row) == 0]:
            raise InputError(
                f"{self._path}: {constant[0]} has the same value in all training rows; leave it out with channels=..."
            )
        if not self._table.standardized:
            mean, std = np.zeros_like(mean), np.ones_like(std)
        return SeriesReader(channels, tuple(mean.tolist()), tuple(std.tolist()), self.context, self._joint)

    @cached_property
    def score_range(self) -> ScoreRange | None:
        """The error in test if the last value is repeated. Windows without a future have none."""
        if not self.horizon:
            return None
        series, ends = self._standardized, torch.tensor(self._starts("test")) + self.context - 1
        errors = [(series[:, ends + k] - series[:, ends]).square().mean() for k in range(1, self.horizon + 1)]
        return ScoreRange("mse", float(torch.stack(errors).mean()), None, NO_SCORE_RANGE)

    @cached_property
    def sha256(self) -> str:
        """The hash of the table and of the settings of the windows."""
        files = [path for part in self._files.values() for path in part] or [self._path]
        return hash_files({f"{self.context} {self.horizon} {self._joint} {path.name}": path for path in files})

    @cached_property
    def _files(self) -> Mapping[SplitName, Sequence[Path]]:
        """The files of a table with rows, in the order of time. A CSV file has no splits."""
        return find_split_files(self._word) if self._word else {}

    @cached_property
    def _content(self) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        if self._files:
            return read_series_rows(
                [path for part in SPLITS for path in self._files.get(part, ())], self._table.channels
            )
        return read_series(self._path, self._table.channels)

    @cached_property
    def _bounds(self) -> dict[SplitName, tuple[int, int]]:
        """The first row and the end of each split."""
        count = self._content[1].shape[1]
        rows = self._table.rows or (int(0.7 * count), count - int(0.7 * count) - int(0.2 * count), int(0.2 * count))
        if len(self._files) > 1:
            rows = tuple(len(rows_of(self._files.get(part, ()))) for part in SPLITS)
        if sum(rows) > count:
            raise InputError(f"{self._path} has {count} rows, but {sum(rows)} are expected: use the original file")
        ends = np.cumsum(rows).tolist()
        return {name: (end - own, end) for name, own, end in zip(SPLITS, rows, ends, strict=True)}

    @cached_property
    def _standardized(self) -> Tensor:
        """The standardized channels (C, rows), in float64."""
        return torch.from_numpy(self.reader.standardize(self._content[1]))

    def _starts(self, name: SplitName) -> range:
        """Return the first rows of the windows of a split, or raise InputError if the split has no window."""
        first, end = self._bounds[name]
        starts = range(first if name == "train" else first - self.context, end - self.context - self.horizon + 1)
        if not starts:
            needed = self.horizon + (self.context if name == "train" else 0)
            raise InputError(
                f"{self._path}: {name} has {end - first} rows, but context={self.context} and horizon={self.horizon} "
                f"need at least {needed}: set a smaller horizon or context"
            )
        return starts

    def _locate(self, window: Window) -> str:
        channel = "" if window.channel is None else f", {self.reader.channels[window.channel]}"
        return f"{self._path}, rows {window.start + 1} to {window.start + self.context}{channel}"


def read_series(path: Path, channels: Sequence[str] = ()) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the names and the values (C, rows) of the channels of a table with one row per time step.

    Args:
        path: A CSV file with a header.
        channels: The columns to read. An empty sequence means all columns except the times.

    Raises:
        InputError: A column is missing, a cell is no finite number, or a time step is missing.
    """
    header = next(csv.reader(line.decode("utf-8", "replace") for line in open_lines(path)), [])
    times = next((column for column in header if column.lower() in TIME_COLUMNS), None)
    names = tuple(channels) or tuple(column for column in header if column != times)
    if not names:
        raise InputError(f"{path} has no channels: give a table with a header and one column per channel")
    rows, previous = list[list[float]](), list[datetime]()
    for line, cells in iterate_table(path, names if times is None else (times, *names)):
        place = f"{path}, line {line}"
        try:
            rows.append([parse_number(cells[name], f"{place}, {name}") for name in names])
        except InputError as error:
            hint = "" if channels else ", or select other columns with channels=..."
            raise InputError(f"{error}; fill the gap{hint}") from error
        if times is not None:
            previous.append(_parse_time(cells[times], f"{place}, {times}"))
    if not rows:
        raise InputError(f"{path} has a header but no rows: add one row per time step")
    _check_times(path, previous)
    return names, np.array(rows).T


def read_series_rows(
    paths: Sequence[Path], channels: Sequence[str] = ()
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the names and the values (C, rows) of the channels of tables with one row per time step.

    Args:
        paths: Parquet or Arrow files in the order of time.
        channels: The columns to read. An empty sequence means all columns except the times.

    Raises:
        InputError: The files differ in their columns, a column is missing, a cell is no finite number, or a time step
            is missing.
    """
    columns = column_names(paths[0])
    for path in paths:
        if different := set(columns) ^ set(column_names(path)):
            raise InputError(
                f"{path} and {paths[0]} differ in the column {min(different)}: give all files the same columns"
            )
    times = next((column for column in columns if column.lower() in TIME_COLUMNS), None)
    names = tuple(find_column(paths[0], [name], "numbers") for name in channels) or tuple(
        column for column in columns if column != times
    )
    rows = rows_of(paths)
    if not names or not rows:
        raise InputError(f"{paths[0]} has no channels or no rows: give a column per channel, and a row per time step")
    values = list[list[float]]()
    for name in names:
        cells = [cell for path in paths for cell in read_column(path, name)]
        values.append([read_number(cell, row, name) for row, cell in zip(rows, cells, strict=True)])
    if times is not None:
        found = [cell for path in paths for cell in read_column(path, times)]
        _check_times(
            paths[0], [_parse_time(cell, f"{locate_row(row)}, {times}") for row, cell in zip(rows, found, strict=True)]
        )
    return names, np.array(values)


def _parse_time(cell: object, place: str) -> datetime:
    try:
        return cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell))
    except ValueError as error:
        raise InputError(f"{place}: a time such as 2016-07-01 00:00 is expected") from error


def _check_times(path: Path, times: Sequence[datetime]) -> None:
    """Raise InputError if a time step is missing or repeated. Months may differ in length."""
    try:
        steps = [(after - before).total_seconds() for before, after in pairwise(times)]
    except TypeError as error:
        raise InputError(f"{path}: some times have a time zone, and others have none") from error
    usual = median(steps) if steps else 0.0
    for row, step in enumerate(steps):
        if step == 0:
            raise InputError(f"{path}: the time {times[row]} occurs twice; remove one of its rows")
        if not 0 < step < 1.5 * usual:
            raise InputError(
                f"{path}: the time {times[row + 1]} follows {times[row]}, but the usual step is {usual:g} s; fill the "
                "gap, or sort the rows"
            )


def labeled_windows(path: Path, reader: SeriesReader, horizon: int) -> list[tuple[str, Tensor, Future]]:
    """Return the name, the standardized window and the future of each window of a new table.

    Args:
        path: The table.
        reader: The preparation of the model.
        horizon: The number of time steps that follow a window.
    """
    _, values = read_series(path, reader.channels)
    series, count = torch.from_numpy(reader.standardize(values)), values.shape[1] - reader.context - horizon + 1
    if count < 1:
        raise InputError(
            f"{path} has {values.shape[1]} rows, but a window and its future need {reader.context + horizon} rows"
        )
    channels, lengths = (None,) if reader.joint else range(len(reader.channels)), (reader.context, horizon)
    windows = [Window(start, channel) for start in range(count) for channel in channels]
    return [
        (f"{path}, rows {window.start + 1} to {window.start + reader.context}", *_read(series, *lengths, window))
        for window in windows
    ]


def _read(series: Tensor, context: int, horizon: int, window: Window) -> Example:
    rows = series if window.channel is None else series[window.channel : window.channel + 1]
    past, values = rows[:, window.start : window.start + context + horizon].split([context, horizon], 1)
    return Example(past.clone(), Future(values.clone(), *window_moments(past), window.start + context))
