"""The report: one self-contained HTML page with the results of a run or a comparison."""

import base64
import glob
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined

from unifier.files import printable, write_text
from unifier.report.conditions import (
    Condition,
    ResultRow,
    by_priority,
    data_of,
    format_setting,
    group_conditions,
    metric_title,
    row_score_range,
)
from unifier.report.content_policy import add_policy
from unifier.report.differences import difference_tables
from unifier.report.estimates import count_noun
from unifier.report.head_lines import render_head_lines
from unifier.report.maps import read_maps
from unifier.report.plot_curves import Logs, draw_curves, read_logs
from unifier.report.plot_distances import draw_distances
from unifier.report.plot_experts import draw_experts
from unifier.report.plot_layers import draw_gradients, draw_representation, layer_name
from unifier.report.plot_scaling import draw_efficiency, draw_sweeps
from unifier.report.plot_scores import draw_confusions, draw_grids, draw_joint, draw_lengths, draw_scores
from unifier.report.plot_style import FigureWriter, SavedFigure, plot_style, task_colors
from unifier.report.read_results import Results, collect_results, read_results
from unifier.report.schema import (
    AttentionEntry,
    Sample,
    add_problem,
    collect_problems,
    find_files,
    parse_entry,
    read_entry,
    read_text,
)
from unifier.report.summary import summarize_results
from unifier.report.tables import (
    ReportTable,
    alignment_table,
    attention_table,
    control_table,
    describe_matching,
    describe_starts,
    pretraining_caveat,
    run_table,
    score_tables,
    similarity_table,
)
from unifier.report.time_table import time_tables
from unifier.report.transfer import retained_scores
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

MAX_PAGE_BYTES = 4_600_000
"""Maximum size of the pictures and sounds of a page, in bytes. With its text, the page stays below 5 MB."""

MAX_PROBLEMS = 100
"""Maximum number of problems on a page."""

NUM_FIRST_SAMPLES = 2
"""Number of test examples per task directly below the answer on a page."""

MAX_MAPPED_CONDITIONS = 4
"""Maximum number of conditions of a task of which each has an attention map."""

MAX_SAMPLES = 6
"""Maximum number of test examples per task on a page."""

GLOSSARY = {
    "task": "a data set, the tokenizer of its inputs, and a head that predicts its targets",
    "trunk": "the network between tokenizer and head, which several tasks can share",
    "token": "one vector that a trunk reads, such as a piece of a word, a patch of a picture or a frame of sound",
    "solo": "a task that is trained on a trunk of its own",
    "joint": "several tasks that are trained together on one trunk",
    "transfer": "a trunk that was trained on one task and is used for another task",
    "frozen": "the trunk's weights do not change; only tokenizer and head are trained",
    "norms trained": "only the normalization layers of the trunk are trained",
    "random": "a trunk that starts with random weights, as a control",
    "shuffled": "a trained trunk whose weights were permuted, as a control",
    "normalized": "a score that is rescaled: 0 is chance, and 100 is a reference result",
    "95 % interval": "a range that contains the true mean in 95 of 100 repetitions of the experiment",
    "CKA": "centered kernel alignment, the similarity of two trunks' outputs for the same examples, from 0 to 1",
    "BLEU": "the overlap of a translation with a reference translation, from 0 to 100",
}
"""Explanations of the terms in a report. A page explains only terms that occur in its text."""

TEMPLATES = Environment(
    loader=PackageLoader("unifier", "report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class PageFigure(NamedTuple):
    """A figure on the page."""

    source: str
    """The data URL of the figure."""
    alt: str
    caption: str


@final
class PageBudget:
    """The remaining space for a page's pictures and sounds, and the number of files that did not fit."""

    def __init__(self) -> None:
        self.bytes_left, self.num_refused = MAX_PAGE_BYTES, 0

    def take(self, data: str) -> str:
        """Return the data if there is enough space on the page, else ""."""
        if len(data) > self.bytes_left:
            self.num_refused += 1
            return ""
        self.bytes_left -= len(data)
        return data

    def take_svg(self, svg: str) -> str:
        """Return an SVG as a data URL, or "" if there is not enough space on the page.

        Figures are embedded as images, because inlined SVG elements would have clip paths with equal ids.
        """
        return self.take("data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode())

    def problems(self) -> list[str]:
        """Return a line about the pictures and sounds that did not fit on the page, if there are any."""
        if not self.num_refused:
            return []
        return [f"{self.num_refused} of the pictures and sounds did not fit on this page; see the folders of the runs"]


def write_report(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write report.html and figures/ for a result.json or comparison.json, and return the page's path.

    Args:
        folder: The folder of the run or the comparison.
        content: The content of the JSON file. The file may not exist yet.
    """
    return _write_page(folder, collect_results(folder, content))


def report_on(folder: Path) -> tuple[Path, list[str]]:
    """Write the report of a folder that contains runs or comparisons.

    Returns:
        The page's path, and a line for each excluded or incomplete run.

    Raises:
        InputError: The folder contains no finished run.
    """
    results = read_results(folder)
    return _write_page(folder, results), results.problems


def draw_figures(results: Results, folder: Path, logs: Logs) -> list[SavedFigure]:
    """Draw all figures for which the results have data, and write each figure and its numbers into the folder.

    Args:
        results: The results.
        folder: The folder of a run or a comparison.
        logs: The result of `read_logs`.
    """
    conditions = group_conditions(results.rows)
    if not conditions:
        return []
    colors = task_colors(list(dict.fromkeys(condition.task for condition in conditions)))
    writer = FigureWriter(folder, colors, pretraining_caveat(results.rows))
    with plot_style():
        return [
            *draw_scores(conditions, writer),
            *draw_confusions(conditions, writer),
            *draw_lengths(conditions, writer),
            *draw_distances(conditions, writer),
            *draw_curves(conditions, writer, logs),
            *draw_grids(conditions, writer),
            *draw_joint(conditions, writer),
            *draw_experts(conditions, writer),
            *draw_gradients(results.rows, writer),
            *draw_efficiency(conditions, writer),
            *draw_sweeps(conditions, writer),
            *draw_representation(results.representation, writer),
        ]


def _write_page(folder: Path, results: Results) -> Path:
    with collect_problems() as describe_problems:
        page = _render_page(folder, results, describe_problems)
    results.problems.extend(describe_problems())
    path = folder / "report.html"
    write_text(path, add_policy(printable(page, keep="\n\t")))
    return path


def _render_page(folder: Path, results: Results, describe_problems: Callable[[], list[str]]) -> str:
    conditions = group_conditions(results.rows)
    labels = {id(row): condition.label for condition in conditions for row in condition.rows}
    showcase = group_conditions(results.showcase)
    sample_rows = _sample_rows(showcase) | {
        task: row for task, row in _sample_rows(conditions).items() if task not in {each.task for each in showcase}
    }
    labels |= {id(row): row["experiment"].replace("_", " ") for row in results.showcase}
    budget = PageBudget()
    # The space goes first to the samples below the answer, then to the figures, the remaining samples, and the maps.
    first = slice(NUM_FIRST_SAMPLES)
    samples = {task: rows for task, row in sample_rows.items() if (rows := _read_samples(row, task, first, budget))}
    figures: dict[str, list[PageFigure]] = defaultdict(list)
    logs = read_logs(conditions)
    saved = draw_figures(results, folder, logs)
    for figure in saved:
        if source := budget.take_svg(figure.svg):
            figures[figure.section].append(PageFigure(source, figure.alt, figure.note))
    figures["reconstruction"] = _task_figures("reconstruction", sample_rows, budget)
    figures["forecast"] = _task_figures("forecast", sample_rows, budget)
    caveat, head_rows = pretraining_caveat(results.rows), _head_rows(conditions, sample_rows)
    figures["attention"] = [
        figure._replace(caption=". ".join(filter(None, (figure.caption, caveat))))
        for figure in _attention_figures(conditions, sample_rows, head_rows, budget)
    ]
    figures["tokenizers"] = _tokenizer_figures(sample_rows, budget)
    rest = slice(NUM_FIRST_SAMPLES, MAX_SAMPLES)
    answer = summarize_results(results)
    controls, strongest = control_table(conditions), _strongest_transfer(conditions)
    more_samples = {task: _read_samples(sample_rows[task], task, rest, budget) for task in samples}
    heads = {
        f"{task}: {_draw_name(row)}": element
        for task, row in head_rows.items()
        if (element := budget.take(_read_heads(row, task)))
    }
    maps = [one for task, row in sample_rows.items() for one in read_maps(row["folder"], task, budget.take)]
    attention = {"attention_table": attention_table(conditions), "alignment_table": alignment_table(conditions)}
    problems = [*results.problems, *describe_problems(), *answer.problems, *budget.problems()]
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"{len(problems) - MAX_PROBLEMS:,} more problems; the terminal names all of them"]
    return TEMPLATES.get_template("page.html").render(
        numeric_columns=_numeric_columns,
        is_correct=_is_correct,
        marked_parts=_marked_parts,
        glossary=_glossary,
        title=results.name.replace("_", " "),
        status=results.status,
        question=results.question,
        answer=[_bind_numbers(sentence) for sentence in answer.sentences],
        is_demo=bool(results.showcase),
        size=_size(results.rows),
        is_comparison=len(conditions) > len({condition.task for condition in conditions}),
        matching=describe_matching(conditions),
        starts=describe_starts(results.rows),
        caveat=caveat,
        scores=score_tables(conditions),
        differences=difference_tables(conditions),
        times=time_tables(conditions, logs),
        legend=_legend(conditions),
        figures=figures,
        strongest=[line for line in controls if (line["task"], line["condition"]) == strongest],
        controls=controls,
        similarity={figure.alt: _similarity_table(figure) for figure in saved if figure.section == "representation"},
        **attention,
        heads=heads,
        maps=maps,
        samples=samples,
        more_samples=more_samples,
        predicted_by={task: f"{labels[id(row)]}, {_draw_name(row)}" for task, row in sample_rows.items()},
        problems=problems,
        runs=run_table(results.rows, labels),
        data={row["task"]: data_of(row) for row in reversed(results.rows)},
        left_out=_left_out,
        settings=_settings(results.rows),
        origins=_origins(results.rows),
        commands=list(dict.fromkeys(_command(recipe, settings) for recipe, settings in results.recipes)),
    )


def _bind_numbers(text: str) -> str:
    """Replace the spaces in "0.5 ± 0.1" and "95 %" by non-breaking spaces."""
    return re.sub(r" ± | (?=%)", lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def _glossary(page: str) -> dict[str, str]:
    """Return the terms in the text of a page, with their explanations."""
    text = re.sub(r"<[^>]*>", " ", page).replace("\N{NO-BREAK SPACE}", " ")
    return {term: meaning for term, meaning in GLOSSARY.items() if re.search(rf"\b{term}s?\b", text, re.IGNORECASE)}


def _legend(conditions: Sequence[Condition]) -> str:
    """Return the legend of the score tables, with notes only on existing columns."""
    notes = {
        "Normalized: 0 is chance, and 100 is the reference named below.": any(
            condition.normalized_score for condition in conditions
        ),
        "± is half the width of a 95 % confidence interval over seeds, or over folds in cross-validation. Equal scores "
        "have no interval.": any(condition.score.half_width is not None for condition in conditions),
    }
    return " ".join(note for note, applies in notes.items() if applies)


def _left_out(data: Mapping[str, Any]) -> str:
    """Return the number of excluded examples of a data set for each reason, as text."""
    counts = {"unreadable": sum(data.get("skipped", {}).values()), **data.get("dropped", {})}
    return ", ".join(f"{count:,} ({reason})" for reason, count in counts.items() if count)


def _numeric_columns(table: ReportTable) -> set[str]:
    """Return the columns whose cells are all numbers, with or without an interval and a unit."""
    number = re.compile(r"[+−]?[\d.,]*(–[\d.,]*)?( ± [\d.,]+)?( [\w%]+)?")
    return {name for name in table[0] if all(number.fullmatch(line[name]) for line in table)}


def _marked_parts(sample: Mapping[str, str], text: str) -> list[tuple[str, str]]:
    """Return the parts of a target or prediction, each with the type of its entity, or with "" outside entities."""
    if sample.get("marks") != "entities":
        return [(text, "")]
    parts = re.split(r"\[([^\[\]]+): ([^\[\]: ]+)\]", text)
    marked = [(parts[0], "")]
    for words, kind, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        marked += [(words, kind), (after, "")]
    return marked


def _is_correct(sample: Mapping[str, str]) -> bool:
    """Return True if a prediction, after removing its probability, equals the target."""
    return re.sub(r" \(\d+%\)$", "", sample["prediction"]) == sample["target"]


def _strongest_transfer(conditions: Sequence[Condition]) -> tuple[str, str] | None:
    """Return the task and the label of the frozen trunk with the highest retained score."""
    retained = [score for score in retained_scores(conditions) if score.share]
    return (retained[0].task, retained[0].frozen.label) if retained else None


def _similarity_table(figure: SavedFigure) -> ReportTable:
    """Format the numbers of a similarity figure as a table with readable layer names."""
    return similarity_table([{**line, "layer": layer_name(line["layer"])} for line in figure.table])


def _sample_rows(conditions: Sequence[Condition]) -> dict[str, ResultRow]:
    """Select a run of each task for samples and attention maps.

    Select the first seed of the solo condition, or else of the condition with the best validation score.
    """
    rows: dict[str, ResultRow] = {}
    for condition in by_priority(conditions):
        for row in sorted(condition.rows, key=lambda row: row["seed"]):
            if row["folder"]:
                rows.setdefault(condition.task, row)
    return {condition.task: rows[condition.task] for condition in conditions if condition.task in rows}


MEDIA = ("image", "target_image", "prediction_image", "audio", "target_audio", "prediction_audio")
"""The keys of a sample with a picture or a sound."""


def _read_samples(row: ResultRow, task: str, part: slice, budget: PageBudget) -> list[dict[str, str]]:
    """Read test examples of a run with their predictions.

    Args:
        row: The run.
        task: The task of the examples.
        part: The slice of the examples in the run's samples.json.
        budget: The remaining space for pictures and sounds.
    """
    samples = (read_entry(row["folder"] / "samples.json", task, list[Any]) or [])[part]
    samples = [sample for each in samples if (sample := _fit_sample(row["folder"] / "samples.json", each))]
    return [{**sample, **{kind: budget.take(sample[kind]) for kind in MEDIA if sample.get(kind)}} for sample in samples]


def _fit_sample(path: Path, content: Any) -> Mapping[str, str] | None:
    try:
        sample, problems = parse_entry(Sample, content, "a sample", ("input", "target", "prediction"))
    except InputError as error:
        sample, problems = None, [str(error).removesuffix("; left out")]
    for problem in problems:
        add_problem(path, problem)
    return sample


def _read_svg(path: Path) -> str:
    """Return the text of an SVG file, or "" for a file that no browser draws."""
    try:
        svg = read_text(path)
        ElementTree.fromstring(svg)
    except (InputError, ElementTree.ParseError) as error:
        add_problem(path, one_line(error).removeprefix(f"{path}: "))
        return ""
    return svg


def _task_figures(kind: str, sample_rows: Mapping[str, ResultRow], budget: PageBudget) -> list[PageFigure]:
    """Return the figure of a kind from each task's selected run: reconstructions or forecasts."""
    return [
        PageFigure(source, f"{kind}s, {task}", f"{task}, {_draw_name(row)}")
        for task, row in sample_rows.items()
        for path in find_files(row["folder"] / "figures", f"{kind}-{glob.escape(task)}.svg")
        if (svg := _read_svg(path)) and (source := budget.take_svg(svg))
    ]


def _attention_figures(
    conditions: Sequence[Condition],
    sample_rows: Mapping[str, ResultRow],
    head_rows: Mapping[str, ResultRow],
    budget: PageBudget,
) -> list[PageFigure]:
    """Return the attention maps of each task's selected run, and maps of the first run of some other conditions.

    A condition with an alignment error rate has one map. Without these rates, each condition has one map if the task
    has at most `MAX_MAPPED_CONDITIONS` conditions. A condition with the attention to a referent has two maps.
    """
    mapped = {(line["task"], line["trunk"]) for line in alignment_table(conditions)}
    few = Counter(condition.task for condition in conditions if condition.task not in dict(mapped))
    mapped |= {(each.task, each.label) for each in conditions if 0 < few[each.task] <= MAX_MAPPED_CONDITIONS}
    figures: list[PageFigure] = []
    for condition in conditions:
        for row in condition.rows:
            is_sample = row is sample_rows.get(condition.task)
            is_first = row is condition.rows[0] and row["folder"] and (condition.task, condition.label) in mapped
            if is_sample or is_first:
                paths = find_files(row["folder"] / "figures", f"attention-{glob.escape(condition.task)}-*.svg")
                paths = paths if is_sample else paths[:1]
            else:
                paths = list[Path]()
            if row is head_rows.get(condition.task) and not is_sample:
                paths += _head_figure(row, condition.task)
            if row is condition.rows[0] and row["folder"]:
                paths += find_files(row["folder"] / "figures", f"reference-{glob.escape(condition.task)}-*.svg")
            if paths:
                caption = f"{condition.task}: {condition.label}, {_draw_name(row)}"
                figures += [
                    PageFigure(source, f"attention, {caption}", caption)
                    for path in paths
                    if (svg := _read_svg(path)) and (source := budget.take_svg(svg))
                ]
    return figures


def _head_rows(conditions: Sequence[Condition], sample_rows: Mapping[str, ResultRow]) -> dict[str, ResultRow]:
    """Select a run of each task for the figures of attention heads.

    This is the selected run, or else the first run of the best condition whose model has attention heads.
    """
    rows: dict[str, ResultRow] = {}
    for task, row in sample_rows.items():
        others = (condition.rows[0] for condition in by_priority(conditions) if condition.task == task)
        candidates = (each for each in (row, *others) if _head_figure(each, task) or _read_heads(each, task))
        if found := next(candidates, None):
            rows[task] = found
    return rows


def _head_figure(row: ResultRow, task: str) -> list[Path]:
    """Return the path of a run's figure with all attention heads, or no path."""
    return find_files(row["folder"] / "figures", f"attention-{glob.escape(task)}-heads.svg") if row["folder"] else []


def _read_heads(row: ResultRow, task: str) -> str:
    """Return the lines between words for each attention head of a run, or "" if they were not written."""
    entry: dict[str, Any] = (
        read_entry(row["folder"] / "attention.json", task, AttentionEntry) if row["folder"] else None
    ) or {}
    return render_head_lines(entry.get("heads", []))


def _tokenizer_figures(sample_rows: Mapping[str, ResultRow], budget: PageBudget) -> list[PageFigure]:
    """Return the figures of each task's tokenizer, from the selected run of the task."""
    return [
        PageFigure(source, f"tokenizer of {task}, {_draw_name(row)}", f"{task}: {_draw_name(row)}")
        for task, row in sample_rows.items()
        for path in find_files(row["folder"] / "figures", f"tokenizer-{glob.escape(task)}-*.svg")
        if (svg := _read_svg(path)) and (source := budget.take_svg(svg))
    ]


def _size(rows: Sequence[ResultRow]) -> str:
    """Return the number of tasks, runs, seeds and folds as text."""
    counts = {
        "task": len({row["task"] for row in rows}),
        "run": len({str(row["folder"] or id(row)) for row in rows}),
        "seed": len({row["seed"] for row in rows}),
    }
    if folds := {row["fold"] for row in rows if "fold" in row}:
        counts["fold"] = len(folds)
    return " · ".join(count_noun(number, noun) for noun, number in counts.items())


def _draw_name(row: ResultRow) -> str:
    """Return the fold, if any, and the seed of a row as text."""
    seed = f"seed {row['seed']}"
    return f"fold {row['fold']}, {seed}" if "fold" in row else seed


def _settings(rows: Sequence[ResultRow]) -> dict[str, dict[str, str]]:
    """Return the settings of each experiment as text, with all values of a setting that differs between runs."""
    values: dict[str, dict[str, dict[str, None]]] = {}
    for row in rows:
        of_experiment = values.setdefault(row["experiment"], {})
        for name, value in row["result"].get("settings", {}).items():
            of_experiment.setdefault(name, {})[format_setting(value)] = None
    return {name: {key: " | ".join(texts) for key, texts in settings.items()} for name, settings in values.items()}


def _origins(rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """Return the distinct metric signatures, score ranges, versions, commits and machines of all runs."""
    results = [row["result"] for row in rows]
    texts = {
        "metrics": [f"{name}: {text}" for result in results for name, text in result.get("signatures", {}).items()],
        "scales": [_describe_range(row, limits) for row in rows if (limits := row_score_range(row))],
        "versions": [
            ", ".join(f"{name} {text}" for name, text in result.get("versions", {}).items()) for result in results
        ],
        "commit": [result.get("commit", "") for result in results],
        "machine": [result.get("machine", "") for result in results],
    }
    return {name: [line for line in dict.fromkeys(lines) if line] for name, lines in texts.items()}


def _describe_range(row: ResultRow, limits: Mapping[str, Any]) -> str:
    reference = "no reference"
    if limits.get("reference") is not None:
        reference = f"reference {limits['reference']:g} ({limits['origin']})"
    return f"{row['task']}, {metric_title(row, limits['metric'])}: chance {limits['chance']:g}, {reference}"


def _command(recipe: str, settings: Mapping[str, Any]) -> str:
    """Return the shell command that repeats a recipe FILE:name from any folder.

    The command contains the name of an installed recipe, or the absolute path of any other recipe.
    """
    text, _, name = recipe.rpartition(":")
    file, package = Path(text), Path(__file__).resolve().parents[1]
    # The recipes are in the parent folder of the package in a checkout, and in the package in an installation.
    installed = file.parent in (package / "experiments", package.parent / "experiments")
    target = file.stem if installed else str(file.absolute())
    arguments = [target if name == file.stem else f"{target}:{name}"]
    arguments += [f"{key}={format_setting(value)}" for key, value in settings.items()]
    return shlex.join(["unifier", "run", *arguments])
