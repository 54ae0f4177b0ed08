"""Curves by layer: similarity of two trunks, and cosines between the gradients of two arms."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from matplotlib.ticker import EngFormatter, MaxNLocator

from unifier.files import read_table
from unifier.report.conditions import Row, label, named
from unifier.report.estimates import listed
from unifier.report.plot_style import COLOURS, SOFT, Drawn, End, Sheet, dot, faded, label_ends, panel

MEASURES = {"cka": "linear CKA", "neighbours": "shared neighbours"}


MOST = 4
"""Layers whose gradients are drawn, and pairs of trunks; interference.csv of each run, and the tables, hold all."""


def layer_name(layer: str) -> str:
    """What a person calls it: blocks.0 is block 1, and columns are what goes in."""
    part, _, number = layer.partition(".")
    return f"block {int(number) + 1}" if number.isdigit() else "in" if part == "columns" else layer


def draw_representation(found: Sequence[Mapping[str, Any]], sheet: Sheet) -> list[Drawn]:
    """For each arm and measure: likeness by layer, calibrated so that 0 is chance and 1 the same."""
    drawn: list[Drawn] = []
    for arm in dict.fromkeys(one["arm"] for one in found):
        for measure, said in MEASURES.items():
            told = _likeness([one for one in found if one["arm"] == arm and f"{measure}_calibrated" in one], measure)
            if not told:
                continue
            layers = list(dict.fromkeys(line["layer"] for _, line in told))
            every = sorted(dict.fromkeys(pair for pair, _ in told), key=lambda pair: pair.shuffled)
            pairs = every[:MOST]
            figure, axes = panel()
            ends: list[End] = []
            for k, pair in enumerate(pairs):
                lines = [line for own, line in told if own == pair]
                x, y = [layers.index(line["layer"]) for line in lines], [line["calibrated"] for line in lines]
                own = sheet.colours.get(arm, COLOURS[0])
                colour = faded(own, k / max(len(pairs) - 1, 1))
                axes.plot(x, y, color=colour)
                filled = [colour if line["p"] == "" or line["p"] <= 0.05 else "none" for line in lines]
                axes.scatter(x, y, s=25, facecolors=filled, edgecolors=colour, linewidths=1, zorder=2)
                ends.append(End(y[-1], pair.second if pair.first == "solo" else pair.name, colour))
            axes.axhline(0, color=SOFT, linewidth=1, linestyle=":")
            ends.append(End(0.0, "chance", SOFT))
            axes.set_xticks(range(len(layers)), [layer_name(layer).removeprefix("block ") for layer in layers])
            axes.set(title=f"{arm}: {said}", xlabel="block", ylabel="calibrated")
            axes.set_ylim(min(-0.05, axes.get_ylim()[0]), 1)
            label_ends(axes, ends)
            note = "Hollow: not above chance (permutation test, p > 0.05)"
            if len(every) > MOST:
                note += f". {len(every) - MOST} more pairs of trunks are in the table"
            if all(pair.first == "solo" for pair in pairs):
                note = f"Each against solo. {note}"
            alt = f"{said} by layer, calibrated, {arm}"
            table = [line for _, line in told]
            drawn.append(sheet.save(figure, f"representation-{arm}-{measure}", "representation", alt, table, note))
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
            experiments[label(side)].add(side.get("experiment", ""))
    groups: dict[tuple[_Pair, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        sides = [one["a"], one["b"]]
        said = ((label(side), side.get("experiment", "")) for side in sides)
        first, second = (named(own, which, alone=len(experiments[own]) == 1) for own, which in said)
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


def draw_gradients(rows: Sequence[Row], sheet: Sheet) -> list[Drawn]:
    """For a few layers of each way of training arms together: the cosine between two arms' gradients over tokens.

    Two batches of one arm are the ceiling.
    """
    ways: dict[tuple[str, str], dict[Path, None]] = defaultdict(dict)
    for row in rows:
        if row["mode"] == "joint" and row["folder"]:
            ways[row["experiment"], label(row)][row["folder"]] = None
    found = {way: read for way, folders in ways.items() if (read := _gradients(folders))}
    drawn: list[Drawn] = []
    for (experiment, said), cosines in found.items():
        way = "" if len(found) == 1 else named(said, experiment, alone=len({which for which, _ in found}) == 1)
        layers = list(cosines)
        if len(layers) > MOST:  # evenly spaced, first and last among them
            layers = [layers[round(k * (len(layers) - 1) / (MOST - 1))] for k in range(MOST)]
        drawn += [_gradients_of_layer(layer, cosines[layer], way, sheet) for layer in layers]
    return drawn


_Curves = Mapping[tuple[str, str], Sequence[tuple[float, float]]]
"""Tokens and cosines of each pair of arms."""


def _gradients(folders: Iterable[Path]) -> dict[str, _Curves]:
    """The means over some runs, by layer."""
    runs: dict[str, dict[tuple[str, str], list[list[tuple[float, float]]]]] = defaultdict(lambda: defaultdict(list))
    for path in filter(Path.exists, (folder / "interference.csv" for folder in folders)):
        own: dict[tuple[str, tuple[str, str]], list[tuple[float, float]]] = defaultdict(list)
        for line in read_table(path):
            own[line["layer"], (line["arm_a"], line["arm_b"])].append((float(line["tokens"]), float(line["cosine"])))
        for (layer, pair), found in own.items():
            runs[layer][pair].append(found)
    # Seeds read a few tokens more or less in a window: its place in the run is what they share.
    return {layer: {pair: _means(found) for pair, found in pairs.items()} for layer, pairs in runs.items()}


def _gradients_of_layer(layer: str, curves: _Curves, way: str, sheet: Sheet) -> Drawn:
    figure, axes = panel()
    ends: list[End] = []
    for (a, b), points in curves.items():
        x, y = zip(*points, strict=True)
        if a == b:
            own = sheet.colours.get(a, SOFT)
            axes.plot(x, y, color=own, marker=dot(x), linewidth=1, linestyle=":", alpha=0.8)
            ends.append(End(y[-1], f"{a}, two batches", own))
        else:  # a line of both arms' colours
            first, second = (sheet.colours.get(arm, SOFT) for arm in (a, b))
            axes.plot(x, y, color=first, marker=dot(x), linestyle=(0, (4, 4)), gapcolor=second)
            ends += [End(y[-1], b, second), End(y[-1], f"{a} and", first)]  # one above the other, each in its colour
    axes.axhline(0, color=SOFT, linewidth=1)
    named_layer = listed(layer_name(layer), way)
    axes.set(title=named_layer, xlabel="tokens read", ylabel="cosine of gradients")
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    label_ends(axes, ends)
    table = [
        {"layer": layer, "arm_a": a, "arm_b": b, "tokens": at, "cosine": cosine}
        for (a, b), points in curves.items()
        for at, cosine in points
    ]
    note = "Dotted: two batches of the same arm, as a ceiling for two arms"
    alt = f"cosine between arms' gradients over tokens, {named_layer}"
    name = listed("gradients", layer, way, between="-")
    return sheet.save(figure, name, "interference", alt, table, note)


def _means(runs: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Mean tokens and cosine at each place of several runs."""
    return [(fmean(at for at, _ in place), fmean(cosine for _, cosine in place)) for place in zip(*runs, strict=False)]
