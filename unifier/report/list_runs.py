"""The runs below a folder with name, score, date and size, and the differences between two runs."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, final

from unifier.files import read_json
from unifier.folders import RUN_ID, folder_size
from unifier.report.estimates import format_value
from unifier_tokenizers import InputError

COMPARED = ("name", "seed", "status", "metrics", "settings", "data", "experiment", "parameters", "budget")
FACTS = ("commit", "versions", "machine", "threads", "error")
"""The keys of result.json and settings.json that `compare_runs` compares, in this order."""

LOWER_IS_BETTER = "↓"
"""The mark of a metric for which a lower value is better."""

MAX_CELL = 40
"""Maximum length of a value in a comparison, in characters. The end of a longer value is left out."""


@final
class RunSummary(NamedTuple):
    """A run in one line."""

    folder: Path
    name: str
    """The name of the experiment, or "" if the files of the run are broken."""
    score: str
    """The first test metric of each task, or the status of a run without test scores."""
    started: str
    """The time of the start, such as 2026-01-31 23:59."""
    size: int
    """The size of the run's folder in bytes."""


def list_runs(folder: Path) -> list[RunSummary]:
    """Return all runs below a folder, also the trials of comparisons, from the oldest to the newest.

    Raises:
        InputError: The folder does not exist or contains no run.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder that contains the runs")
    runs = [_summarize(run) for run in _find_runs(folder)]
    if not runs:
        raise InputError(f"{folder} contains no run: give the folder that contains the runs")
    return sorted(runs, key=lambda run: (run.started, run.folder))


def compare_runs(first: Path, second: Path) -> list[tuple[str, str, str]]:
    """Return all test scores of two runs, and all other facts that differ, each with the values of both runs.

    Raises:
        InputError: A folder is not the folder of a run, or a file of a run is broken.
    """
    contents = [_read(folder) for folder in (first, second)]
    facts = [_facts(content) for content in contents]
    names = dict.fromkeys([*facts[0], *facts[1]])
    order = {key: place for place, key in enumerate((*COMPARED, *FACTS))}
    rows: list[tuple[str, str, str]] = []
    for name in sorted(names, key=lambda name: order[name[0]]):
        one, two = (fact.get(name) for fact in facts)
        if one != two or (name[0] == "metrics" and name[1].startswith("test/")):
            direction = _direction(contents[0], *name[1].split("/")[1:]) if name[0] == "metrics" else ""
            rows.append((".".join(name) + direction, _cell(one), _cell(two)))
    return rows


def _find_runs(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs. The files of a run are not searched, and neither are links."""
    for path, inner, files in os.walk(folder):
        if "settings.json" in files and _is_run(Path(path)):
            inner.clear()
            yield Path(path)
        inner.sort()


def _is_run(folder: Path) -> bool:
    """Return True for the folder of a run, also if its file is broken. Other programs have a settings.json too."""
    with suppress(InputError):
        return "study" in read_json(folder / "settings.json")
    return bool(RUN_ID.fullmatch(folder.name))


def _summarize(folder: Path) -> RunSummary:
    try:
        content = _read(folder)
        name, score = str(content.get("name", "")), _score(content)
    except InputError:
        name, score = "", "broken"
    return RunSummary(folder, name, score, _started(folder), folder_size(folder))


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / "settings.json").is_file():
        raise InputError(f"{folder}: not the folder of a run, because settings.json is missing")
    settings = read_json(folder / "settings.json", name=str, settings=dict)
    has_result = (folder / "result.json").is_file()
    return {"status": "unfinished", **settings, **(read_json(folder / "result.json") if has_result else {})}


def _score(content: Mapping[str, Any]) -> str:
    """Return the first test metric of each task, or the status of the run."""
    first: dict[str, str] = {}
    metrics = content.get("metrics")
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        split, _, rest = str(name).partition("/")
        task, _, metric = rest.rpartition("/")
        if split == "test" and task not in first:
            first[task] = f"{task} {metric} {_number(value)}{_direction(content, task, metric)}"
    return ", ".join(first.values()) or str(content["status"])


def _started(folder: Path) -> str:
    """Return the time in the name of a run's folder. If the folder was renamed, return the time of its settings."""
    with suppress(ValueError):
        return time.strftime("%Y-%m-%d %H:%M", time.strptime(folder.name[:15], "%Y%m%d-%H%M%S"))
    return time.strftime("%Y-%m-%d %H:%M", time.localtime((folder / "settings.json").stat().st_mtime))


def _direction(content: Mapping[str, Any], task: str = "", metric: str = "") -> str:
    """Return `LOWER_IS_BETTER` after a space if a task's metric is an error, else ""."""
    data = content.get("data")
    described = data.get(task) if isinstance(data, Mapping) else None
    errors = described.get("lower_is_better") if isinstance(described, Mapping) else None
    return f" {LOWER_IS_BETTER}" if isinstance(errors, list) and metric in errors else ""


def _facts(content: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    return dict(_flatten({key: content[key] for key in (*COMPARED, *FACTS) if key in content}))


def _flatten(content: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, (*path, name))
        else:
            yield (*path, name), value


def _cell(value: object) -> str:
    text = "" if value is None else _number(value)
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


def _number(value: object) -> str:
    if isinstance(value, float):
        return format_value(value, 2) if abs(value) < 1e6 else f"{value:.4g}"
    return "undefined" if value is None else str(value)
