"""From a folder to the rows of a report; missing, broken, diverged and duplicate runs are named."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

from unifier.files import read_json
from unifier.report.conditions import ResultRow, data_of, metric_of, metrics_of, row_score_range, task_score_range
from unifier_tokenizers import InputError

DEFAULT_TERMS = {"mode": "solo", "start": None, "shuffled": False, "trainable": "all", "varied": {}}
"""Defaults for a row that lacks these, as that of a run that belongs to no comparison."""


COMPARISON_TERMS = ("budget_unit", "budget", "sampling_temperature", "loss_weighting")
"""What all tasks of a comparison are held to, which its settings need not tell."""


REQUIRED_KEYS = {
    "name": str,
    "tasks": list,
    "seed": int,
    "status": str,
    "metrics": dict,
    "parameters": dict,
    "budget": dict,
}
"""What a result must have to be reported, each of its type."""


REQUIRED_ROW_KEYS = {"name": str, "status": str, "rows": list}
"""What a comparison must have."""


@final
@dataclass(frozen=True)
class Results:
    """What one page reports."""

    name: str
    rows: list[ResultRow]
    """Those of runs that ended well; "folder" is a Path that is there, or None."""
    question: str = ""
    status: str = "finished"
    problems: list[str] = field(default_factory=list[str])
    """A line for each run that is left out, or not whole."""
    representation: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    repeats: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list[tuple[str, Mapping[str, Any]]])
    """What repeats it, each by itself: FILE:name of an experiment or a comparison, and its settings."""


def read_results(folder: Path) -> Results:
    """What lies in a folder: a comparison's, a run's, or one with several of either somewhere below it.

    Raises InputError where there is nothing to report.
    """
    for name, needed in (("comparison.json", REQUIRED_ROW_KEYS), ("result.json", REQUIRED_KEYS)):
        if (folder / name).exists():
            return collect_results(folder, read_json(folder / name, **needed))
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    return _study_of_all(folder)


def collect_results(folder: Path, content: Mapping[str, Any]) -> Results:
    """The study that a comparison.json or a result.json holds, which lies in `folder` or is about to."""
    if "rows" in content:
        problems = [str(line) for line in content.get("problems", ())]
        rows = _sound(_placed(content["rows"], folder), problems)
        return Results(
            name=content["name"],
            rows=rows,
            question=content.get("question") or "",
            status=content["status"],
            problems=problems,
            representation=_pairs(content),
            repeats=_repeats(content),
        )
    problems, about = list[str](), _about(folder)
    rows = _sound(_rows(folder, content, about), problems)
    return Results(content["name"], rows, status=content["status"], problems=problems, repeats=_repeats_of_run(about))


def _study_of_all(folder: Path) -> Results:
    problems: list[str] = []
    sources: list[_Source] = []
    repeats: list[tuple[str, Mapping[str, Any]]] = []
    for path in sorted(folder.rglob("comparison.json")):
        try:
            content = read_json(path, **REQUIRED_ROW_KEYS)
            rows = _placed(content["rows"], path.parent)
        except InputError as error:
            problems.append(str(error))
            continue
        whole = {**content.get("settings", {}), "comparison": content["name"], **_terms(content)}
        sources.append(_Source(whole, rows, _pairs(content)))
        problems += map(str, content.get("problems", ()))
        repeats += _repeats(content)
    known = {row["folder"].resolve() for source in sources for row in source.rows if row["folder"]}
    for run in sorted({path.parent for name in ("result.json", "settings.json") for path in folder.rglob(name)}):
        if run.resolve() not in known:
            try:
                result, about = read_json(run / "result.json", **REQUIRED_KEYS), _about(run)
                whole = {"comparison": about.get("comparison") or "none", **_terms(about.get("trial") or {})}
                sources.append(_Source(_flat(result.get("settings", {})) | whole, _rows(run, result, about)))
                repeats += _repeats_of_run(about)
            except InputError as error:
                if str(error) not in problems:
                    problems.append(str(error))
    told = _told_apart(sources)
    representation = [pair for source in told for pair in source.pairs]
    rows = _sound(_once([row for source in told for row in source.rows], problems), problems)
    if not rows:
        said = f"; {problems[0]}" if problems else ""
        raise InputError(f"{folder}: holds no comparison.json and no finished result.json{said}; give a run's folder")
    return Results(folder.resolve().name, rows, problems=problems, representation=representation, repeats=repeats)


def _terms(content: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the `TERMS` that a file tells; older ones tell less."""
    return {name: content[name] for name in COMPARISON_TERMS if name in content}


def _repeats(content: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What repeats the whole of which a comparison.json or a settings.json tells; nothing where it does not say."""
    study = content.get("study")  # a list where several experiments were trained together, by a comparison
    return [(study, content.get("settings", {}))] if study and isinstance(study, str) else []


def _about(folder: Path) -> dict[str, Any]:
    """What a run's settings.json says, if there is one; raises InputError where a comparison's lacks its trial."""
    path = folder / "settings.json"
    about = read_json(path, settings=dict, seed=int) if path.exists() else {}
    if (name := about.get("comparison")) and not about.get("trial"):
        raise InputError(
            f'{folder.parent}: runs of the comparison "{name}" do not all say how they were trained: '
            f"report {folder.parent.parent / name}"
        )
    return about


def _repeats_of_run(about: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What repeats a run; nothing for one of a comparison, which no command does by itself."""
    if about.get("comparison"):
        return []
    return [(study, {**settings, "seed": about["seed"]}) for study, settings in _repeats(about)]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings in one mapping: what a joint run holds for each of its experiments is put together."""
    found: dict[str, Any] = {}
    for name, own in settings.items():
        found |= own if isinstance(own, Mapping) else {name: own}
    return found


def _pairs(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The pairs of trunks that a comparison.json compares, each trunk told as rows are."""
    return [{**pair, **{one: _of_fold(pair[one]) for one in "ab"}} for pair in content.get("representation", ())]


def _rows(folder: Path, result: Mapping[str, Any], about: Mapping[str, Any]) -> list[ResultRow]:
    mode = "solo" if len(result["tasks"]) == 1 else "joint"
    own = {"experiment": result["name"], "seed": result["seed"], "folder": folder, "result": result}
    trial = about.get("trial") or {}
    return [{**DEFAULT_TERMS, "mode": mode, **own, **trial, "task": task} for task in result["tasks"]]


def _placed(rows: Iterable[ResultRow], base: Path) -> list[ResultRow]:
    rows = list(rows)
    if not all(isinstance(row, Mapping) and {"experiment", "task", "seed"} <= row.keys() for row in rows):
        raise InputError(f"{base / 'comparison.json'}: broken (a row lacks its experiment, task or seed)")
    return [{**DEFAULT_TERMS, **row, "folder": run_folder(row.get("folder") or "", base)} for row in rows]


def run_folder(text: str, base: Path) -> Path | None:
    """A run's folder as a comparison's row has it, or beside the comparison's, `base`, if all were moved together."""
    if not text:
        return None
    tail = Path(*Path(text).parts[-2:])  # <experiment>/<run id>, as `runs` holds them
    candidates = (Path(text), base / text, base.parent.parent / tail, base / tail)
    return next((path for path in candidates if path.is_dir()), None)


class _Source(NamedTuple):
    """A comparison, or a run that was started alone: the settings of the whole, its rows, and its pairs of trunks."""

    settings: Mapping[str, Any]
    rows: list[ResultRow]
    pairs: Sequence[Mapping[str, Any]] = ()


def _told_apart(sources: Sequence[_Source]) -> list[_Source]:
    """The same, with rows and pairs under what tells the whole apart.

    That is in what it differs from others that trained the same task of the same experiment. Whether a run is of a
    comparison counts, since that has a budget which no setting of the run tells.
    """
    sources = [source._replace(settings=_fixed(source.settings, source.rows)) for source in sources]
    values: dict[tuple[str, str], dict[str, set[str]]] = {}
    for settings, rows, _ in sources:
        for row in rows:
            for experiment, (name, value) in itertools.product(_experiments(row), settings.items()):
                values.setdefault((experiment, row["task"]), {}).setdefault(name, set()).add(str(value))
    told: list[_Source] = []
    for settings, rows, pairs in sources:
        own = [values.get((experiment, row["task"]), {}) for row in rows for experiment in _experiments(row)]
        apart = {name: value for name, value in settings.items() if any(len(each.get(name, ())) > 1 for each in own)}
        sides = [{**pair, **{one: _under(apart, pair[one]) for one in "ab"}} for pair in pairs]
        told.append(_Source(settings, [_under(apart, row) for row in rows], sides))
    return told


def _experiments(row: ResultRow) -> list[str]:
    """The experiments that a row's task may be of: its own, and those that a joint run of a comparison holds."""
    settings = (row.get("result") or {}).get("settings", {})
    return [row["experiment"], *(name for name, own in settings.items() if isinstance(own, Mapping))]


def _under(settings: Mapping[str, Any], row: ResultRow) -> ResultRow:
    return {**row, "varied": {**settings, **row["varied"]}}


def _fixed(settings: Mapping[str, Any], rows: Iterable[ResultRow]) -> dict[str, Any]:
    """The settings that are the same in all these rows."""
    varied = {"seeds"}.union(*(row["varied"] for row in rows))
    return {name: value for name, value in settings.items() if name not in varied}


def _once(rows: list[ResultRow], problems: list[str]) -> list[ResultRow]:
    """The rows of runs whose folder's name no run before them has; a copied run would count twice."""
    first: dict[str, Path] = {}
    kept: list[ResultRow] = []
    seen: set[tuple[Path, str]] = set()
    for row in rows:
        folder = row["folder"]
        if folder is None:
            kept.append(row)
            continue
        place = folder.resolve()
        if (place, row["task"]) in seen:
            continue  # two comparisons share this run
        seen.add((place, row["task"]))
        if first.setdefault(folder.name, place) == place:
            kept.append(row)
        elif (said := f"{folder}: the same run id as {first[folder.name]}; left out, or it would count twice") not in (
            problems
        ):
            problems.append(said)
    return kept


def _sound(rows: Iterable[ResultRow], problems: list[str]) -> list[ResultRow]:
    """The rows that have a score; each other run is named, once."""
    kept: list[ResultRow] = []
    told: set[str] = set()
    for row in rows:
        result, task = row.get("result") or {}, row["task"]
        who = f"{row['experiment']}, {task}, seed {row['seed']}"
        place = row["folder"].name if row["folder"] else ""
        if lacking := [name for name, kind in REQUIRED_KEYS.items() if not isinstance(result.get(name), kind)]:
            said = f"{who}: no whole result (it lacks {', '.join(lacking)}); left out"
        elif result["status"] != "finished":
            said = f"{row['experiment']}, seed {row['seed']}: {result.get('error') or result['status']}; left out"
        elif not metrics_of(row):
            said = f"{who}: no score on the test split; left out"
        elif not all(score is not None and math.isfinite(score) for score in _judged_by(row)):
            said = f"{who}: a score is not a number; left out"
        else:
            kept.append(_of_fold(_in_numbers(row)))
            said = "" if row["folder"] else f"{who}: its folder is gone, and with it curves and samples"
        if said and said not in told and not (place and any(place in line for line in problems)):
            told.add(said)
            problems.append(said + (f" ({place})" if place else ""))
    problems += find_changed_data(kept)
    problems += dict.fromkeys(said for row in kept for said in _caveats(row) if said not in problems)
    return kept


def _judged_by(row: ResultRow) -> list[float | None]:
    """The scores that a row's task is judged by, in validation, if it had one, and on the test split."""
    scores, metric = row["result"]["metrics"], metric_of(row)
    names = [f"{split}/{row['task']}/{metric}" for split in ("val", "test")]
    return [scores[name] for name in names if name in scores]


def _in_numbers(row: ResultRow) -> ResultRow:
    """A row whose scores are numbers, NaN where its file has null: of a metric that its task is not judged by."""
    scores = {name: math.nan if score is None else score for name, score in row["result"]["metrics"].items()}
    return {**row, "result": {**row["result"], "metrics": scores}}


def find_changed_data(rows: Iterable[ResultRow]) -> list[str]:
    """A line for each task whose runs under the same settings read data that are not the same."""
    read: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        if "share" not in row["varied"]:  # of which each seed draws its own
            for experiment in _experiments(row):
                alike = experiment, row["task"], str((row.get("fold"), row["varied"]))
                read.setdefault(alike, set()).add(data_of(row).get("sha256", ""))
    changed = dict.fromkeys(
        f"{experiment}, {task}" for (experiment, task, _), hashes in read.items() if len(hashes) > 1
    )
    return [f"{who}: its runs read different data, so they are not comparable" for who in changed]


def _caveats(row: ResultRow) -> Iterator[str]:
    """What to know before trusting a row's score: its data leak, or their scale is of a metric its head lacks."""
    data = data_of(row)
    if copies := data.get("copies"):
        said = f"{copies:,} examples of val and test are also in train, byte for byte"
        yield f"{data['name']}: {said}, and flatter its scores"
    if (scale := task_score_range(row)) and not row_score_range(row):
        scored = ", ".join(metrics_of(row))
        yield (
            f"{row['experiment']}, {row['task']}: its score_range is of {scale['metric']}, and it is scored by {scored}: "
            "no normalized score"
        )


def _of_fold(row: ResultRow) -> ResultRow:
    """A row whose fold stands beside its seed: both are draws that a mean goes over, and no way of training."""
    if not isinstance(fold := row["varied"].get("fold"), int):
        return row
    return {**row, "varied": {name: value for name, value in row["varied"].items() if name != "fold"}, "fold": fold}
