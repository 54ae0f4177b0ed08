"""Read the rows of a report from a folder, and list missing, broken, diverged and copied runs."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

from unifier.files import find_files_named
from unifier.folders import TRIALS_FOLDER, find_run_folder
from unifier.report.conditions import ResultRow, data_of, metric_of, metrics_of, row_score_range, task_score_range
from unifier.report.schema import (
    ComparisonFile,
    ResultFile,
    RowEntry,
    SettingsFile,
    SimilarityEntry,
    TrialFacts,
    parse_entry,
    read_object,
)
from unifier_tokenizers import InputError

DEFAULT_FACTS = {"mode": "solo", "start": None, "shuffled": False, "trainable": "all", "varied": {}}
"""Default values of the row keys that exist only in comparison.json."""

COMPARISON_TERMS = (
    *("budget_unit", "budget", "sampling_temperature", "loss_weighting"),
    *("start_tokenizers", "count_pretraining"),
)
"""Names of settings that a comparison applies to all its tasks. Some names may be missing in the settings of a run."""

REQUIRED_RESULT_KEYS = {
    "name": str,
    "tasks": list,
    "seed": int,
    "status": str,
    "metrics": dict,
    "parameters": dict,
    "budget": dict,
}
"""The required keys of a result.json, with their types."""

TRIAL_FACTS = ("experiment", "task", "seed", "mode", "start", "shuffled", "trainable", "varied")
"""The keys of a row that say how the run was trained. With a wrong value, a score would belong to another condition."""

RESULT_KEYS = ("name", "tasks", "seed", "status", "metrics", "parameters", "budget")

COMPARISON_KEYS = ("name", "status", "rows")

REQUIRED_COMPARISON_KEYS = {"name": str, "status": str, "rows": list}
"""The required keys of a comparison.json, with their types."""


@final
@dataclass(frozen=True)
class Results:
    """Content of one report page."""

    name: str
    rows: list[ResultRow]
    """Rows of finished runs. The "folder" of each row is the path of an existing folder, or None."""
    showcase: list[ResultRow] = field(default_factory=list[ResultRow])
    """Rows of the showcase experiment, which are not compared with other rows."""
    question: str = ""
    status: str = "finished"
    problems: list[str] = field(default_factory=list[str])
    """One line for each excluded or incomplete run."""
    representation: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    """One mapping per pair of trunks and layer. The entries "a" and "b" describe the two trunks."""
    recipes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list[tuple[str, Mapping[str, Any]]])
    """The recipes that repeat the runs, each as FILE:name with its settings."""


class _Source(NamedTuple):
    """A comparison, or a run outside a comparison."""

    settings: Mapping[str, Any]
    rows: list[ResultRow]
    pairs: Sequence[Mapping[str, Any]] = ()
    """Pairs of trunks whose representations were compared."""


def read_results(folder: Path) -> Results:
    """Read the folder of a comparison, the folder of a run, or all comparisons and runs below a folder.

    Raises:
        InputError: The folder does not exist, or contains no finished run.
    """
    for name, required in (("comparison.json", REQUIRED_COMPARISON_KEYS), ("result.json", REQUIRED_RESULT_KEYS)):
        if (folder / name).exists():
            return collect_results(folder, read_object(folder / name, **required))
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    return _read_all_below(folder)


def collect_results(folder: Path, content: Mapping[str, Any]) -> Results:
    """Return the results in the content of a comparison.json or a result.json.

    Args:
        folder: The folder of the file. The file may not exist yet.
        content: The content of the file.
    """
    if "rows" in content:
        content, problems = parse_entry(ComparisonFile, content, "comparison.json", COMPARISON_KEYS)
        problems = [*map(str, content.get("problems", ())), *problems]
        showcase, rows = _split_showcase(_locate_runs(content["rows"], folder, folder, problems))
        return Results(
            name=content["name"],
            rows=_usable_rows(rows, problems),
            showcase=_usable_rows(showcase, problems),
            question=content.get("question") or "",
            status=content["status"],
            problems=problems,
            representation=_trunk_pairs(content, problems),
            recipes=_recipes(content),
        )
    content, problems = parse_entry(ResultFile, content, "result.json", RESULT_KEYS)
    settings = _run_settings(folder, problems)
    rows = _usable_rows(_rows_of_run(folder, content, settings), problems)
    recipes = _recipes_of_run(settings)
    return Results(content["name"], rows, status=content["status"], problems=problems, recipes=recipes)


def _split_showcase(rows: Sequence[ResultRow]) -> tuple[list[ResultRow], list[ResultRow]]:
    """Return the rows of a comparison's showcase, with the mode "solo", and all other rows of the comparison."""
    showcase: list[ResultRow] = [{**row, "mode": "solo"} for row in rows if row["mode"] == "showcase"]
    return showcase, [row for row in rows if row["mode"] != "showcase"]


def find_changed_data(rows: Iterable[ResultRow]) -> list[str]:
    """Return one line for each task with different data in runs with equal settings."""
    hashes: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        if "share" not in row["varied"]:  # With `share`, each seed uses different examples.
            for experiment in _experiments(row):
                key = experiment, row["task"], str((row.get("fold"), row["varied"]))
                hashes.setdefault(key, set()).add(data_of(row).get("sha256", ""))
    changed = dict.fromkeys(f"{experiment}, {task}" for (experiment, task, _), each in hashes.items() if len(each) > 1)
    return [f"{name}: its runs read different data, so they are not comparable" for name in changed]


def _read_all_below(folder: Path) -> Results:
    problems: list[str] = []
    sources: list[_Source] = []
    recipes: list[tuple[str, Mapping[str, Any]]] = []
    for path in find_files_named(folder, "comparison.json"):
        try:
            content = read_object(path, **REQUIRED_COMPARISON_KEYS)
            content, faults = parse_entry(ComparisonFile, content, str(path), COMPARISON_KEYS)
            _, rows = _split_showcase(_locate_runs(content["rows"], path.parent, folder, faults))
        except InputError as error:
            problems.append(str(error))
            continue
        problems += faults
        settings = {**content.get("settings", {}), "comparison": content["name"], **_comparison_terms(content)}
        sources.append(_Source(settings, rows, _trunk_pairs(content, problems)))
        problems += map(str, content.get("problems", ()))
        recipes += _recipes(content)
    compared = {row["folder"].resolve() for source in sources for row in source.rows if row["folder"]}
    for run in sorted({path.parent for path in find_files_named(folder, "result.json", "settings.json")}):
        if run.resolve() not in compared:
            try:
                sources.append(_read_run(run, recipes, problems))
            except InputError as error:
                if str(error) not in problems:
                    problems.append(str(error))
    problems += dict.fromkeys(
        f"{path}: no such file, so its question and the similarity of its trunks are left out"
        for source in sources
        for row in source.rows
        if row["folder"]
        and row["folder"].parent.name == TRIALS_FOLDER
        and not (path := row["folder"].parents[1] / "comparison.json").exists()
    )
    sources = _add_distinguishing_settings(sources)
    pairs = [pair for source in sources for pair in source.pairs]
    rows = _usable_rows(_drop_copies([row for source in sources for row in source.rows], problems), problems)
    if not rows:
        reason = f"; {problems[0]}" if problems else ""
        raise InputError(
            f"{folder}: holds no comparison.json and no finished result.json{reason}; give the folder of a run"
        )
    return Results(folder.resolve().name, rows, problems=problems, representation=pairs, recipes=recipes)


def _read_run(run: Path, recipes: list[tuple[str, Mapping[str, Any]]], problems: list[str]) -> _Source:
    """Return the source of a run outside a comparison, and append the run's recipe and faults to the lists."""
    path = run / "result.json"
    result, faults = parse_entry(ResultFile, read_object(path, **REQUIRED_RESULT_KEYS), str(path), RESULT_KEYS)
    settings = _run_settings(run, faults)
    problems += faults
    terms = {"comparison": settings.get("comparison") or "none", **_comparison_terms(settings.get("trial") or {})}
    rows = _rows_of_run(run, result, settings)
    recipes += _recipes_of_run(settings)
    return _Source(_flatten(result.get("settings", {})) | terms, rows)


def _comparison_terms(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a file that are in `COMPARISON_TERMS`. Files of older versions may not have all entries."""
    return {name: content[name] for name in COMPARISON_TERMS if name in content}


def _recipes(content: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return a list with the recipe and its settings from a comparison.json or settings.json, or an empty list."""
    study = content.get("study")  # In a joint run of a comparison, "study" is a list of recipes.
    return [(study, content.get("settings", {}))] if study and isinstance(study, str) else []


def _recipes_of_run(settings: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the recipe of a run with its seed.

    The list is empty for a run of a comparison, because no command repeats a single run of a comparison.
    """
    if settings.get("comparison"):
        return []
    return [(study, {**given, "seed": settings["seed"]}) for study, given in _recipes(settings)]


def _run_settings(folder: Path, problems: list[str]) -> dict[str, Any]:
    """Return the content of a run's settings.json. If the file is missing, add a line to `problems` and return {}.

    Raises:
        InputError: The run belongs to a comparison, but settings.json has no key "trial".
    """
    path = folder / "settings.json"
    settings: dict[str, Any] = {}
    if path.exists():
        content = read_object(path, settings=dict, seed=int)
        settings, _ = parse_entry(SettingsFile, content, str(path), ("settings", "seed", "comparison", "trial"))
        _, _ = parse_entry(TrialFacts, settings.get("trial") or {}, str(path), TRIAL_FACTS)
    else:
        problems.append(f"{path}: no such file, so the command and the comparison of the run are unknown")
    if (name := settings.get("comparison")) and not settings.get("trial"):
        raise InputError(
            f'{folder.parent}: settings.json of runs of the comparison "{name}" lacks their "trial": '
            f"run `unifier report {folder.parent.parent / name}` instead"
        )
    return settings


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the settings of a joint run, which has one mapping per experiment, into one mapping."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= value if isinstance(value, Mapping) else {name: value}
    return flat


def _trunk_pairs(content: Mapping[str, Any], problems: list[str]) -> list[Mapping[str, Any]]:
    """Return the pairs of trunks in a comparison.json, with the fold of each trunk as a separate key."""
    pairs = _fit_each(SimilarityEntry, content.get("representation", ()), "representation", tuple("ab"), problems)
    return [{**pair, **{side: _extract_fold(pair[side]) for side in "ab"}} for pair in pairs]


def _fit_each(
    kind: type, entries: Iterable[Any], name: str, needed: Sequence[str], problems: list[str]
) -> list[Mapping[str, Any]]:
    """Return the entries that fit, and add at most one line per kind of fault to `problems`."""
    fitting: list[Mapping[str, Any]] = []
    for entry in entries:
        try:
            entry, faults = parse_entry(kind, entry, name, needed)
            fitting.append(entry)
        except InputError as error:
            faults = [str(error)]
        problems += [fault for fault in faults if fault not in problems]
    return fitting


def _rows_of_run(folder: Path, result: Mapping[str, Any], settings: Mapping[str, Any]) -> list[ResultRow]:
    mode = "solo" if len(result["tasks"]) == 1 else "joint"
    facts = {"experiment": result["name"], "seed": result["seed"], "folder": folder, "result": result}
    trial = settings.get("trial") or {}
    return [{**DEFAULT_FACTS, "mode": mode, **facts, **trial, "task": task} for task in result["tasks"]]


def _locate_runs(rows: Iterable[Any], base: Path, root: Path, problems: list[str]) -> list[ResultRow]:
    rows = list(rows)
    if rows and not any(isinstance(row, Mapping) and {"experiment", "task", "seed"} <= row.keys() for row in rows):
        raise InputError(f"{base / 'comparison.json'}: broken (no row has its experiment, task and seed)")
    fitting = _fit_each(RowEntry, rows, "a row of comparison.json", TRIAL_FACTS, problems)
    return [{**DEFAULT_FACTS, **row, "folder": find_run_folder(row.get("folder") or "", base, root)} for row in fitting]


def _add_distinguishing_settings(sources: Sequence[_Source]) -> list[_Source]:
    """Add the settings that differ between sources of one task to the varied settings of each row.

    A comparison's name and its terms, such as the budget (`COMPARISON_TERMS`), also count as settings.
    """
    sources = [source._replace(settings=_constant_settings(source.settings, source.rows)) for source in sources]
    values: dict[tuple[str, str], dict[str, set[str]]] = {}
    for settings, rows, _ in sources:
        for row in rows:
            for experiment, (name, value) in itertools.product(_experiments(row), settings.items()):
                values.setdefault((experiment, row["task"]), {}).setdefault(name, set()).add(str(value))
    distinguished: list[_Source] = []
    for settings, rows, pairs in sources:
        rivals = [values.get((experiment, row["task"]), {}) for row in rows for experiment in _experiments(row)]
        distinct = {
            name: value for name, value in settings.items() if any(len(each.get(name, ())) > 1 for each in rivals)
        }
        sides = [{**pair, **{side: _add_varied(pair[side], distinct) for side in "ab"}} for pair in pairs]
        distinguished.append(_Source(settings, [_add_varied(row, distinct) for row in rows], sides))
    return distinguished


def _experiments(row: ResultRow) -> list[str]:
    """Return the experiments that may contain the row's task: the row's own, or all experiments of a joint run."""
    settings = (row.get("result") or {}).get("settings", {})
    return [row["experiment"], *(name for name, value in settings.items() if isinstance(value, Mapping))]


def _add_varied(row: ResultRow, settings: Mapping[str, Any]) -> ResultRow:
    return {**row, "varied": {**settings, **row["varied"]}}


def _constant_settings(settings: Mapping[str, Any], rows: Iterable[ResultRow]) -> dict[str, Any]:
    """Return the settings that have the same value in all rows."""
    varied = {"seeds"}.union(*(row["varied"] for row in rows))
    return {name: value for name, value in settings.items() if name not in varied}


def _drop_copies(rows: list[ResultRow], problems: list[str]) -> list[ResultRow]:
    """Return the rows without copied runs, and add a line for each copied run to `problems`.

    The name of a run's folder is the run id. Two folders with the same name therefore contain the same run.
    """
    first: dict[str, Path] = {}
    unique: list[ResultRow] = []
    seen: set[tuple[Path, str]] = set()
    for row in rows:
        folder = row["folder"]
        if folder is None:
            unique.append(row)
            continue
        path = folder.resolve()
        if (path, row["task"]) in seen:
            continue  # Two comparisons contain the run.
        seen.add((path, row["task"]))
        problem = f"{folder}: left out, because it has the same run id as {first.setdefault(folder.name, path)}"
        if first[folder.name] == path:
            unique.append(row)
        elif problem not in problems:
            problems.append(problem)
    return unique


def _usable_rows(rows: Iterable[ResultRow], problems: list[str]) -> list[ResultRow]:
    """Return the rows that have a score. Add a line to `problems` for each run without a score and for each caveat."""
    usable: list[ResultRow] = []
    named: set[str] = set()
    for row in rows:
        result, task = row.get("result") or {}, row["task"]
        name = f"{row['experiment']}, {task}, seed {row['seed']}"
        run_id = row["folder"].name if row["folder"] else ""
        if missing := [key for key, kind in REQUIRED_RESULT_KEYS.items() if not isinstance(result.get(key), kind)]:
            problem = f"{name}: no whole result (it lacks {', '.join(missing)}); left out"
        elif result["status"] != "finished":
            problem = f"{row['experiment']}, seed {row['seed']}: {result.get('error') or result['status']}; left out"
        elif not metrics_of(row):
            problem = f"{name}: no score on the test split; left out"
        elif not all(score is not None and math.isfinite(score) for score in _deciding_scores(row)):
            problem = f"{name}: a score is not a number; left out"
        else:
            usable.append(_extract_fold(_null_to_nan(row)))
            problem = "" if row["folder"] else f"{name}: its folder is gone, so its curves and samples are missing"
        if problem and problem not in named and not (run_id and any(run_id in line for line in problems)):
            named.add(problem)
            problems.append(problem + (f" ({run_id})" if run_id else ""))
    problems += find_changed_data(usable)
    problems += dict.fromkeys(caveat for row in usable for caveat in _caveats(row) if caveat not in problems)
    return usable


def _deciding_scores(row: ResultRow) -> list[float | None]:
    """Return the task's scores in its main metric: on the test split, and if available on the validation split."""
    scores, metric = row["result"]["metrics"], metric_of(row)
    names = [f"{split}/{row['task']}/{metric}" for split in ("val", "test")]
    return [scores[name] for name in names if name in scores]


def _null_to_nan(row: ResultRow) -> ResultRow:
    """Return the row with NaN in place of each null score. The scores in the main metric are never null."""
    scores = {name: math.nan if score is None else score for name, score in row["result"]["metrics"].items()}
    return {**row, "result": {**row["result"], "metrics": scores}}


def _caveats(row: ResultRow) -> Iterator[str]:
    """Yield warnings about a score: test examples in the training split, or a score range for another metric."""
    data = data_of(row)
    if copies := data.get("copies"):
        yield (
            f"{data['name']}: {copies:,} examples of val and test are exact copies of examples of train, "
            "so its scores are too high"
        )
    if (score_range := task_score_range(row)) and not row_score_range(row):
        yield (
            f"{row['experiment']}, {row['task']}: no normalized score, because its score range is for "
            f"{score_range['metric']}, but its metrics are {', '.join(metrics_of(row))}"
        )


def _extract_fold(row: ResultRow) -> ResultRow:
    """Move an integer "fold" from the varied settings to the row, because scores are averaged over folds."""
    if not isinstance(fold := row["varied"].get("fold"), int):
        return row
    return {**row, "varied": {name: value for name, value in row["varied"].items() if name != "fold"}, "fold": fold}
