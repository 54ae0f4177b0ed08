"""Runs and comparisons whose folder the user has named: the same command continues an unfinished run."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unifier.config import split_reference
from unifier.files import read_json, to_json
from unifier.folders import chosen_name, find_run_folder
from unifier.report.conditions import format_setting
from unifier.training.result import Result
from unifier_tokenizers import InputError

MISSING = object()


def find_named_folder(out: Path, name: str, function: str) -> Path | None:
    """Find the folder of a run or a comparison that was started with a name.

    Args:
        out: The folder of all runs.
        name: The chosen name, which is the name of the folder.
        function: The name of the experiment's function.

    Returns:
        The folder, or None if the run has not started.
    """
    for folder in sorted(out.glob(f"*/{name}")):
        with suppress(InputError):
            earlier, _ = _read_start(folder)
            study = earlier.get("study")
            if chosen_name(folder) and isinstance(study, str) and split_reference(study)[1] == function:
                return folder.resolve()
    return None


def check_same_settings(folder: Path, settings: Mapping[str, Any], seed: int | None) -> None:
    """Compare the settings of a command with the settings with which the folder was started.

    Args:
        folder: The folder of a run or a comparison.
        settings: The values of all settings.
        seed: The seed of a run, or None for a comparison.

    Raises:
        InputError: A setting or the seed differs.
    """
    earlier, _ = _read_start(folder)
    started = {**earlier["settings"], **({} if seed is None else {"seed": earlier.get("seed", seed)})}
    given = to_json({**settings, **({} if seed is None else {"seed": seed})})
    for key in {**started, **given}:
        first, second = started.get(key, MISSING), given.get(key, MISSING)
        if first != second:
            raise InputError(
                f"{folder} was started with {_describe(key, first)}, so it cannot continue with "
                f"{_describe(key, second)}: give the same settings, or another name"
            )


def read_finished(folder: Path) -> list[Result] | None:
    """Return the results of a finished run or comparison, or None if the run or comparison has not finished."""
    earlier, is_comparison = _read_start(folder)
    if not is_comparison:
        results = [Result.read(folder)] if (folder / "result.json").exists() else []
        return results if results and results[0].status == "finished" else None
    if earlier.get("status") != "finished":
        return None
    runs = dict.fromkeys(find_run_folder(str(row["folder"]), folder) for row in earlier["rows"])
    return [Result.read(run) for run in runs if run is not None]


def _read_start(folder: Path) -> tuple[dict[str, Any], bool]:
    """Return the content of settings.json or comparison.json, and True for a comparison."""
    is_comparison = (folder / "comparison.json").exists()
    return read_json(folder / ("comparison.json" if is_comparison else "settings.json"), settings=dict), is_comparison


def _describe(key: str, value: Any) -> str:
    return f"no {key}" if value is MISSING else f"{key}={format_setting(value)}"
