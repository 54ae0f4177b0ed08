"""Figures by layer: similarity of two trunks, and cosines between the gradients of two tasks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.ticker import EngFormatter, MaxNLocator

from unifier.report.conditions import ResultRow, condition_label, label_with_experiment
from unifier.report.estimates import join_nonempty
from unifier.report.plot_style import (
    COLORS,
    MUTED,
    FigureWriter,
    LineEnd,
    SavedFigure,
    create_panel,
    fade,
    label_ends,
    point_marker,
)
from unifier.report.schema import read_rows

SIMILARITY_MEASURES = {"cka": "linear CKA", "neighbors": "shared neighbors"}

MAX_PAIRS = 4
"""Maximum number of trunk pairs in a figure. The table of the figure contains all trunk pairs."""

MAX_GRADIENT_CURVES = 15
"""Maximum number of task pairs in a figure of gradient cosines. The table of the figure contains all task pairs."""

MAX_LAYERS = 4
"""Maximum number of layers in a figure of gradient cosines."""


class TrunkPair(NamedTuple):
    """Names of two compared trunks."""

    first: str
    second: str
    shuffled: bool
    """True if the weights of at least one trunk were shuffled."""

    @property
    def name(self) -> str:
        """The label with the names of both trunks."""
        return f"{self.first} and {self.second}"


class PairLayer(NamedTuple):
    """The similarity of two trunks in one layer, averaged over seeds."""

    pair: TrunkPair
    cells: Mapping[str, Any]
    """The table row with the columns "trunks", "layer", "raw", "chance", "calibrated" and "p"."""


GradientCosines = Mapping[tuple[str, str], Sequence[tuple[float, float]]]
"""A mapping from a pair of tasks to the points (tokens, cosine) of one layer."""


def layer_name(layer: str) -> str:
    """Return a layer's name in the report: "block 1" for "blocks.0", and "in" for "columns", the trunk's input."""
    part, _, number = layer.partition(".")
    return f"block {int(number) + 1}" if number.isdigit() else "in" if part == "columns" else layer


def draw_representation(comparisons: Sequence[Mapping[str, Any]], writer: FigureWriter) -> list[SavedFigure]:
    """Draw the calibrated similarity of trunks in each layer: 0 is chance level, and 1 means identical.

    Args:
        comparisons: Similarities of two trunks "a" and "b", each for one task, seed and layer.
        writer: The writer that saves the figures, one per task and measure.
    """
    figures: list[SavedFigure] = []
    for task in dict.fromkeys(comparison["task"] for comparison in comparisons):
        for measure in SIMILARITY_MEASURES:
            measured = [pair for pair in comparisons if pair["task"] == task and f"{measure}_calibrated" in pair]
            if measured:
                figures.append(_draw_similarity(task, measure, _mean_similarity(measured, measure), writer))
    return figures


def _draw_similarity(task: str, measure: str, lines: Sequence[PairLayer], writer: FigureWriter) -> SavedFigure:
    layers = list(dict.fromkeys(line.cells["layer"] for line in lines))
    # Trunk pairs with shuffled weights are omitted first, because these pairs are controls.
    all_pairs = sorted(dict.fromkeys(line.pair for line in lines), key=lambda pair: pair.shuffled)
    pairs = all_pairs[:MAX_PAIRS]
    figure, axes = create_panel()
    ends: list[LineEnd] = []
    for k, pair in enumerate(pairs):
        cells = [line.cells for line in lines if line.pair == pair]
        x, y = [layers.index(line["layer"]) for line in cells], [line["calibrated"] for line in cells]
        color = fade(writer.colors.get(task, COLORS[0]), k / max(len(pairs) - 1, 1))
        axes.plot(x, y, color=color)
        filled = [color if line["p"] == "" or line["p"] <= 0.05 else "none" for line in cells]
        axes.scatter(x, y, s=25, facecolors=filled, edgecolors=color, linewidths=1, zorder=2)
        ends.append(LineEnd(y[-1], pair.second if pair.first == "solo" else pair.name, color))
    axes.axhline(0, color=MUTED, linewidth=1, linestyle=":")
    ends.append(LineEnd(0.0, "chance", MUTED))
    axes.set_xticks(range(len(layers)), [layer_name(layer).removeprefix("block ") for layer in layers])
    axes.set(title=f"{task}: {SIMILARITY_MEASURES[measure]}", xlabel="block", ylabel="calibrated")
    axes.set_ylim(min(-0.05, axes.get_ylim()[0]), 1)
    label_ends(axes, ends)
    note = "Hollow dots: not above chance (permutation test, p > 0.05)"
    if len(all_pairs) > MAX_PAIRS:
        note += f". {len(all_pairs) - MAX_PAIRS} more pairs of trunks are in the table"
    if all(pair.first == "solo" for pair in pairs):
        note = f"Each trunk is compared with solo. {note}"
    alt = f"{SIMILARITY_MEASURES[measure]} by layer, calibrated, {task}"
    table = [line.cells for line in lines]
    return writer.save(figure, f"representation-{task}-{measure}", "representation", alt, table, note)


def _mean_similarity(comparisons: Sequence[Mapping[str, Any]], measure: str) -> list[PairLayer]:
    """Average a similarity measure over seeds, for each layer of each pair of trunks."""
    experiments: dict[str, set[str]] = defaultdict(set)
    for comparison in comparisons:
        for trunk in (comparison["a"], comparison["b"]):
            experiments[condition_label(trunk)].add(trunk.get("experiment", ""))
    groups: dict[tuple[TrunkPair, str], list[Mapping[str, Any]]] = defaultdict(list)
    for comparison in comparisons:
        trunks = [comparison["a"], comparison["b"]]
        labels = ((condition_label(trunk), trunk.get("experiment", "")) for trunk in trunks)
        first, second = (
            label_with_experiment(label, experiment, alone=len(experiments[label]) == 1) for label, experiment in labels
        )
        pair = TrunkPair(first, second, any(trunk.get("shuffled") for trunk in trunks))
        groups[pair, comparison["layer"]].append(comparison)
    return [
        PairLayer(
            pair,
            {
                "trunks": pair.name,
                "layer": layer,
                "raw": fmean(seed[measure] for seed in group),
                "chance": fmean(seed[f"{measure}_chance"] for seed in group),
                "calibrated": fmean(seed[f"{measure}_calibrated"] for seed in group),
                "p": max((seed[f"{measure}_p"] for seed in group if seed.get(f"{measure}_p") is not None), default=""),
            },
        )
        for (pair, layer), group in groups.items()
    ]


def draw_gradients(rows: Sequence[ResultRow], writer: FigureWriter) -> list[SavedFigure]:
    """Draw the cosines between two tasks' gradients during training, for a few layers of each joint condition.

    The cosine between two batches of one task is drawn as an upper limit.
    """
    folders: dict[tuple[str, str], dict[Path, None]] = defaultdict(dict)
    for row in rows:
        if row["mode"] == "joint" and row["folder"]:
            folders[row["experiment"], condition_label(row)][row["folder"]] = None
    compared = writer.limit(folders.items(), "cosines between gradients")
    measured = {key: cosines for key, paths in compared if (cosines := _read_cosines(paths))}
    num_experiments = len({experiment for experiment, _ in measured})
    figures: list[SavedFigure] = []
    for (experiment, label), cosines in measured.items():
        name = "" if len(measured) == 1 else label_with_experiment(label, experiment, alone=num_experiments == 1)
        layers = list(cosines)
        if len(layers) > MAX_LAYERS:  # Select evenly spaced layers, including the first and the last layer.
            layers = [layers[round(k * (len(layers) - 1) / (MAX_LAYERS - 1))] for k in range(MAX_LAYERS)]
        figures += [_draw_cosines(layer, cosines[layer], name, writer) for layer in layers]
    return figures


def _read_cosines(folders: Iterable[Path]) -> dict[str, GradientCosines]:
    """Return the gradient cosines of each layer from interference.csv, averaged over runs."""
    numbers = ("tokens", "cosine")
    runs: dict[str, dict[tuple[str, str], list[list[tuple[float, float]]]]] = defaultdict(lambda: defaultdict(list))
    for path in (folder / "interference.csv" for folder in folders):
        run: dict[tuple[str, tuple[str, str]], list[tuple[float, float]]] = defaultdict(list)
        for line in read_rows(path, ("layer", "task_a", "task_b", *numbers), numbers):
            run[line["layer"], (line["task_a"], line["task_b"])].append(
                (float(line["tokens"] or "nan"), float(line["cosine"] or "nan"))
            )
        for (layer, pair), points in run.items():
            runs[layer][pair].append(points)
    # Points are matched by index, because the token counts differ slightly between seeds.
    return {layer: {pair: _mean_points(points) for pair, points in pairs.items()} for layer, pairs in runs.items()}


def _mean_points(runs: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Average the k-th points (tokens, cosine) over runs, for each k."""
    return [
        (fmean(tokens for tokens, _ in points), fmean(cosine for _, cosine in points))
        for points in zip(*runs, strict=False)
    ]


def _draw_cosines(layer: str, cosines: GradientCosines, condition: str, writer: FigureWriter) -> SavedFigure:
    figure, axes = create_panel()
    ends: list[LineEnd] = []
    for (a, b), points in [*cosines.items()][:MAX_GRADIENT_CURVES]:
        x, y = zip(*points, strict=True)
        first, second = (writer.colors.get(task, MUTED) for task in (a, b))
        if a == b:
            axes.plot(x, y, color=first, marker=point_marker(x), linewidth=1, linestyle=":", alpha=0.8)
            ends.append(LineEnd(y[-1], f"{a}, two batches", first))
        else:
            # The curve and its label use the colors of both tasks.
            axes.plot(x, y, color=first, marker=point_marker(x), linestyle=(0, (4, 4)), gapcolor=second)
            ends += [LineEnd(y[-1], b, second), LineEnd(y[-1], f"{a} and", first)]
    axes.axhline(0, color=MUTED, linewidth=1)
    title = join_nonempty(layer_name(layer), condition)
    axes.set(title=title, xlabel="tokens read", ylabel="cosine of gradients")
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    label_ends(axes, ends)
    table = [
        {"layer": layer, "task_a": a, "task_b": b, "tokens": tokens, "cosine": cosine}
        for (a, b), points in cosines.items()
        for tokens, cosine in points
    ]
    note = "Dotted: two batches of the same task, an upper limit for two tasks"
    if len(cosines) > MAX_GRADIENT_CURVES:
        note += f". {len(cosines) - MAX_GRADIENT_CURVES} more pairs of tasks are in the table"
    alt = f"cosine between tasks' gradients over tokens, {title}"
    name = join_nonempty("gradients", layer, condition, between="-")
    return writer.save(figure, name, "interference", alt, table, note)
