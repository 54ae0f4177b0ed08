"""Result files to one self-contained HTML page.

Every figure that a study's rows allow."""

import base64
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from jinja2 import Environment, PackageLoader, StrictUndefined

from unifier.files import read_json, write_text
from unifier.report.conditions import (
    Condition,
    ResultRow,
    by_priority,
    data_of,
    format_setting,
    group_conditions,
    row_score_range,
)
from unifier.report.estimates import count_noun
from unifier.report.plot_curves import draw_curves
from unifier.report.plot_layers import draw_gradients, draw_representation
from unifier.report.plot_scaling import draw_efficiency, draw_sweeps
from unifier.report.plot_scores import draw_confusions, draw_grids, draw_joint, draw_lengths, draw_scores
from unifier.report.plot_style import FigureWriter, SavedFigure, plot_style, task_colors
from unifier.report.read_results import Results, collect_results, read_results
from unifier.report.summary import summarize
from unifier.report.tables import (
    alignment_table,
    attention_table,
    control_table,
    describe_matching,
    run_table,
    score_tables,
    similarity_table,
)

TEMPLATES = Environment(
    loader=PackageLoader("unifier", "report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


MAX_PAGE_BYTES = 4_600_000
"""Characters of pictures and sounds in a page, so that with its text it stays below 5 MB."""


MAX_SAMPLES = 6
"""Samples of an task."""


def write_report(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write report.html and figures/ beside the result.json or comparison.json whose content is given.

    Returns the page's path.
    """
    return _write(folder, collect_results(folder, content))


def report_on(folder: Path) -> tuple[Path, list[str]]:
    """Write the report of a run's or a comparison's folder anew, or of one that holds several.

    Returns the page's path, and a line for each run that is left out or not whole. Raises InputError where there is
    nothing to report.
    """
    study = read_results(folder)
    return _write(folder, study), study.problems


def _write(folder: Path, study: Results) -> Path:
    found = group_conditions(study.rows)
    labels = {id(row): condition.label for condition in found for row in condition.rows}
    room, drawn = PageBudget(), draw_figures(study, folder)
    figures: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for one in drawn:
        if data := room.svg(one.path):
            figures[one.section].append((one.alt, data))
    shown = _shown(found)
    samples = {task: kept for task, row in shown.items() if (kept := _samples(row, task, room))}
    page = TEMPLATES.get_template("page.html").render(
        numeric=_numeric,
        title=study.name.replace("_", " "),
        status=study.status,
        question=study.question,
        answer=summarize(found),
        extent=_extent(study.rows),
        matching=describe_matching(found),
        scores=score_tables(found),
        legend=_legend(found),
        figures=figures,
        controls=control_table(found),
        likeness={one.alt: similarity_table(one.table) for one in drawn if one.section == "representation"},
        attention=_attention(found, shown, room),
        attention_table=attention_table(found),
        alignment_table=alignment_table(found),
        samples=samples,
        shown={task: f"{labels[id(row)]}, {_draw(row)}" for task, row in shown.items()},
        problems=[*study.problems, *room.left_out()],
        runs=run_table(study.rows, labels),
        data={row["task"]: data_of(row) for row in reversed(study.rows)},
        left_out=_left_out,
        settings=_settings(study.rows),
        origins=_origins(study.rows),
        commands=_commands(study),
    )
    path = folder / "report.html"
    write_text(path, page)
    return path


def _legend(found: Sequence[Condition]) -> str:
    """What the table of scores needs to be read."""
    notes = {
        "Normalized: 0 is chance, 100 the reference named below.": any(one.normalized_score for one in found),
        "± is half the width of a 95 % confidence interval over seeds, or over folds in cross-validation; there is "
        "none where all scores are equal.": any(one.score.half is not None for one in found),
    }
    return " ".join(note for note, holds in notes.items() if holds)


def _left_out(data: Mapping[str, Any]) -> str:
    """How many examples a set was trained and tested without, and why."""
    counts = {"unreadable": sum(data.get("skipped", {}).values()), **data.get("dropped", {})}
    return ", ".join(f"{lost:,} ({reason})" for reason, lost in counts.items() if lost)


def _numeric(lines: Sequence[Mapping[str, str]], name: str) -> bool:
    """Whether a column's figures should stand below one another, flush right."""
    return all(line[name][:1] in "0123456789+−–" for line in lines)


@final
class PageBudget:
    """What a page still has room for; counts what it has not."""

    def __init__(self) -> None:
        self.left, self.refused = MAX_PAGE_BYTES, 0

    def take(self, data: str) -> str:
        """The data, or nothing where the page would grow too large."""
        if len(data) > self.left:
            self.refused += 1
            return ""
        self.left -= len(data)
        return data

    def svg(self, path: Path) -> str:
        """A figure as an image and not as elements of the page: two figures' clip paths may bear the same name."""
        return self.take("data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode())

    def left_out(self) -> list[str]:
        """What to say of it."""
        if not self.refused:
            return []
        return [f"{self.refused} of the pictures and sounds left out to keep this page small; see the runs' folders"]


def _shown(found: Sequence[Condition]) -> dict[str, ResultRow]:
    """For each task the run whose samples and attention are shown: its own trunk's, best on validation, first seed."""
    shown: dict[str, ResultRow] = {}
    for condition in by_priority(found):
        for row in sorted(condition.rows, key=lambda row: row["seed"]):
            if row["folder"]:
                shown.setdefault(condition.task, row)
    return {condition.task: shown[condition.task] for condition in found if condition.task in shown}


def _samples(row: ResultRow, task: str, room: PageBudget) -> list[dict[str, str]]:
    path = row["folder"] / "samples.json"
    rows: Iterable[Mapping[str, str]] = read_json(path).get(task, ())[:MAX_SAMPLES] if path.exists() else ()
    return [
        {**sample, **{kind: room.take(sample[kind]) for kind in ("image", "audio") if kind in sample}}
        for sample in rows
    ]


def _attention(found: Sequence[Condition], shown: Mapping[str, ResultRow], room: PageBudget) -> list[tuple[str, str]]:
    """Pictures of attention, each below what it is of: the shown run's, and one of each condition that aligns words."""
    aligning = {(line["task"], line["trunk"]) for line in alignment_table(found)}
    pictures: list[tuple[str, str]] = []
    for one in found:
        for row in one.rows:
            own = row is shown.get(one.task)
            if own or (row is one.rows[0] and row["folder"] and (one.task, one.label) in aligning):
                paths = sorted((row["folder"] / "figures").glob(f"attention-{one.task}-*.svg"))
                said = f"{one.task}: {one.label}, seed {row['seed']}"
                pictures += [(said, data) for path in (paths if own else paths[:1]) if (data := room.svg(path))]
    return pictures


def _extent(rows: Sequence[ResultRow]) -> str:
    runs = len({str(row["folder"] or id(row)) for row in rows})
    seeds, tasks = len({row["seed"] for row in rows}), len({row["task"] for row in rows})
    folds = {row["fold"] for row in rows if "fold" in row}
    there = {"task": tasks, "run": runs, "seed": seeds} | ({"fold": len(folds)} if folds else {})
    return " · ".join(count_noun(number, noun) for noun, number in there.items())


def _draw(row: ResultRow) -> str:
    seed = f"seed {row['seed']}"
    return f"fold {row['fold']}, {seed}" if "fold" in row else seed


def _settings(rows: Sequence[ResultRow]) -> dict[str, dict[str, str]]:
    """Each experiment's settings, those values that differ between its runs side by side."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        own = found.setdefault(row["experiment"], {})
        for name, value in row["result"].get("settings", {}).items():
            own.setdefault(name, {})[format_setting(value)] = None
    return {name: {key: " | ".join(values) for key, values in own.items()} for name, own in found.items()}


def _origins(rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """What the page says once of all runs, or each way in which they differ in it."""
    results = [row["result"] for row in rows]
    said = {
        "metrics": [f"{name}: {text}" for result in results for name, text in result.get("signatures", {}).items()],
        "scales": [
            f"{row['task']}, {scale['metric']}: chance {scale['chance']:g}, "
            + (
                f"reference {scale['reference']:g} ({scale['origin']})"
                if scale.get("reference") is not None
                else "no reference"
            )
            for row in rows
            if (scale := row_score_range(row))
        ],
        "versions": [
            ", ".join(f"{name} {text}" for name, text in result.get("versions", {}).items()) for result in results
        ],
        "commit": [result.get("commit", "") for result in results],
        "machine": [result.get("machine", "") for result in results],
    }
    return {name: [text for text in dict.fromkeys(texts) if text] for name, texts in said.items()}


def _commands(study: Results) -> list[str]:
    """What repeats it: one command, or one for each run that was started by itself."""
    return list(dict.fromkeys(_command(reference, settings) for reference, settings in study.repeats))


def _command(reference: str, settings: Mapping[str, Any]) -> str:
    """With the file as seen from here, or its name alone: where else it lies is nobody's who reads the page."""
    text, _, name = reference.rpartition(":")
    file, here = Path(text), Path.cwd()
    seen = file.relative_to(here) if file.is_relative_to(here) else Path(file.name)
    given = [f"{seen}" if name == file.stem else f"{seen}:{name}"]
    given += [f"{key}={format_setting(value)}" for key, value in settings.items()]
    return shlex.join(["unifier", "run", *given])


def draw_figures(study: Results, folder: Path) -> list[SavedFigure]:
    """Write all figures, and their numbers, below a folder."""
    found = group_conditions(study.rows)
    if not found:
        return []
    sheet = FigureWriter(folder, task_colors(list(dict.fromkeys(one.task for one in found))))
    with plot_style():
        return [
            *draw_scores(found, sheet),
            *draw_confusions(found, sheet),
            *draw_lengths(found, sheet),
            *draw_curves(found, sheet),
            *draw_grids(found, sheet),
            *draw_joint(found, sheet),
            *draw_gradients(study.rows, sheet),
            *draw_efficiency(found, sheet),
            *draw_sweeps(found, sheet),
            *draw_representation(study.representation, sheet),
        ]
