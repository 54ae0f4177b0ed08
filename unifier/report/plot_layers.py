"""Curves by layer: similarity of two trunks, and cosines between the gradients of two tasks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.ticker import EngFormatter, MaxNLocator

from unifier.files import read_csv
from unifier.report.conditions import ResultRow, condition_label, with_settings
from unifier.report.estimates import list_names
from unifier.report.plot_style import COLORS, SOFT, FigureWriter, LineEnd, SavedFigure, dot, faded, label_ends, panel

SIMILARITY_MEASURES = {"cka": "linear CKA", "neighbors": "shared neighbors"}


MAX_LAYERS = 4
"""Layers whose gradients are drawn, and pairs of trunks; interference.csv of each run, and the tables, hold all."""


def layer_name(layer: str) -> str:
    """What a person calls it: blocks.0 is block 1, and columns are what goes in."""
    part, _, number = layer.partition(".")
    return f"block {int(number) + 1}" if number.isdigit() else "in" if part == "columns" else layer


def draw_representation(found: Sequence[Mapping[str, Any]], sheet: FigureWriter) -> list[SavedFigure]:
    """For each task and measure: likeness by layer, calibrated so that 0 is chance and 1 the same."""
    drawn: list[SavedFigure] = []
    for task in dict.fromkeys(one["task"] for one in found):
        for measure, said in SIMILARITY_MEASURES.items():
            told = _likeness([one for one in found if one["task"] == task and f"{measure}_calibrated" in one], measure)
            if not told:
                continue
            layers = list(dict.fromkeys(line["layer"] for _, line in told))
            every = sorted(dict.fromkeys(pair for pair, _ in told), key=lambda pair: pair.shuffled)
            pairs = every[:MAX_LAYERS]
            figure, axes = panel()
            ends: list[LineEnd] = []
            for k, pair in enumerate(pairs):
                lines = [line for own, line in told if own == pair]
                x, y = [layers.index(line["layer"]) for line in lines], [line["calibrated"] for line in lines]
                own = sheet.colors.get(task, COLORS[0])
                color = faded(own, k / max(len(pairs) - 1, 1))
                axes.plot(x, y, color=color)
                filled = [color if line["p"] == "" or line["p"] <= 0.05 else "none" for line in lines]
                axes.scatter(x, y, s=25, facecolors=filled, edgecolors=color, linewidths=1, zorder=2)
                ends.append(LineEnd(y[-1], pair.second if pair.first == "solo" else pair.name, color))
            axes.axhline(0, color=SOFT, linewidth=1, linestyle=":")
            ends.append(LineEnd(0.0, "chance", SOFT))
            axes.set_xticks(range(len(layers)), [layer_name(layer).removeprefix("block ") for layer in layers])
            axes.set(title=f"{task}: {said}", xlabel="block", ylabel="calibrated")
            axes.set_ylim(min(-0.05, axes.get_ylim()[0]), 1)
            label_ends(axes, ends)
            note = "Hollow: not above chance (permutation test, p > 0.05)"
            if len(every) > MAX_LAYERS:
                note += f". {len(every) - MAX_LAYERS} more pairs of trunks are in the table"
            if all(pair.first == "solo" for pair in pairs):
                note = f"Each against solo. {note}"
            alt = f"{said} by layer, calibrated, {task}"
            table = [line for _, line in told]
            drawn.append(sheet.save(figure, f"representation-{task}-{measure}", "representation", alt, table, note))
    return drawn


class _Pair(NamedTuple):
    """Two trunks as a person calls them, and whether the weights of one were shuffled."""

    first: str
    second: str
    shuffled: bool

    @property
    def name(self) -> str:
        """Both of them."""
        return f"{self.first} and {self.second}"


def _likeness(found: Sequence[Mapping[str, Any]], measure: str) -> list[tuple[_Pair, dict[str, Any]]]:
    """A line for each pair of trunks and layer, means over seeds, the raw figure with its chance and calibrated."""
    experiments: dict[str, set[str]] = defaultdict(set)
    for one in found:
        for side in (one["a"], one["b"]):
            experiments[condition_label(side)].add(side.get("experiment", ""))
    groups: dict[tuple[_Pair, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        sides = [one["a"], one["b"]]
        said = ((condition_label(side), side.get("experiment", "")) for side in sides)
        first, second = (with_settings(own, which, alone=len(experiments[own]) == 1) for own, which in said)
        groups[_Pair(first, second, any(side.get("shuffled") for side in sides)), one["layer"]].append(one)
    return [
        (
            pair,
            {
                "trunks": pair.name,
                "layer": layer,
                "raw": fmean(one[measure] for one in group),
                "chance": fmean(one[f"{measure}_chance"] for one in group),
                "calibrated": fmean(one[f"{measure}_calibrated"] for one in group),
                "p": max((one[f"{measure}_p"] for one in group if one.get(f"{measure}_p") is not None), default=""),
            },
        )
        for (pair, layer), group in groups.items()
    ]


def draw_gradients(rows: Sequence[ResultRow], sheet: FigureWriter) -> list[SavedFigure]:
    """For a few layers of each way of training tasks together: the cosine between two tasks' gradients over tokens.

    Two batches of one task are the ceiling.
    """
    ways: dict[tuple[str, str], dict[Path, None]] = defaultdict(dict)
    for row in rows:
        if row["mode"] == "joint" and row["folder"]:
            ways[row["experiment"], condition_label(row)][row["folder"]] = None
    found = {way: read for way, folders in ways.items() if (read := _gradients(folders))}
    drawn: list[SavedFigure] = []
    for (experiment, said), cosines in found.items():
        way = "" if len(found) == 1 else with_settings(said, experiment, alone=len({which for which, _ in found}) == 1)
        layers = list(cosines)
        if len(layers) > MAX_LAYERS:  # evenly spaced, first and last among them
            layers = [layers[round(k * (len(layers) - 1) / (MAX_LAYERS - 1))] for k in range(MAX_LAYERS)]
        drawn += [_gradients_of_layer(layer, cosines[layer], way, sheet) for layer in layers]
    return drawn


_Curves = Mapping[tuple[str, str], Sequence[tuple[float, float]]]
"""Tokens and cosines of each pair of tasks."""


def _gradients(folders: Iterable[Path]) -> dict[str, _Curves]:
    """The means over some runs, by layer."""
    runs: dict[str, dict[tuple[str, str], list[list[tuple[float, float]]]]] = defaultdict(lambda: defaultdict(list))
    for path in filter(Path.exists, (folder / "interference.csv" for folder in folders)):
        own: dict[tuple[str, tuple[str, str]], list[tuple[float, float]]] = defaultdict(list)
        for line in read_csv(path):
            own[line["layer"], (line["task_a"], line["task_b"])].append((float(line["tokens"]), float(line["cosine"])))
        for (layer, pair), found in own.items():
            runs[layer][pair].append(found)
    # Seeds read a few tokens more or less in a window: its place in the run is what they share.
    return {layer: {pair: _means(found) for pair, found in pairs.items()} for layer, pairs in runs.items()}


def _gradients_of_layer(layer: str, curves: _Curves, way: str, sheet: FigureWriter) -> SavedFigure:
    figure, axes = panel()
    ends: list[LineEnd] = []
    for (a, b), points in curves.items():
        x, y = zip(*points, strict=True)
        if a == b:
            own = sheet.colors.get(a, SOFT)
            axes.plot(x, y, color=own, marker=dot(x), linewidth=1, linestyle=":", alpha=0.8)
            ends.append(LineEnd(y[-1], f"{a}, two batches", own))
        else:  # a line of both tasks' colors
            first, second = (sheet.colors.get(task, SOFT) for task in (a, b))
            axes.plot(x, y, color=first, marker=dot(x), linestyle=(0, (4, 4)), gapcolor=second)
            ends += [
                LineEnd(y[-1], b, second),
                LineEnd(y[-1], f"{a} and", first),
            ]  # one above the other, each in its color
    axes.axhline(0, color=SOFT, linewidth=1)
    named_layer = list_names(layer_name(layer), way)
    axes.set(title=named_layer, xlabel="tokens read", ylabel="cosine of gradients")
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    label_ends(axes, ends)
    table = [
        {"layer": layer, "task_a": a, "task_b": b, "tokens": at, "cosine": cosine}
        for (a, b), points in curves.items()
        for at, cosine in points
    ]
    note = "Dotted: two batches of the same task, as a ceiling for two tasks"
    alt = f"cosine between tasks' gradients over tokens, {named_layer}"
    name = list_names("gradients", layer, way, between="-")
    return sheet.save(figure, name, "interference", alt, table, note)


def _means(runs: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Mean tokens and cosine at each place of several runs."""
    return [(fmean(at for at, _ in place), fmean(cosine for _, cosine in place)) for place in zip(*runs, strict=False)]
