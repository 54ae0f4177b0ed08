"""results.json as bars: how much each contestant does in a second."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.racing.contest import OURS
from benchmarks.racing.report import Results

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "unifier",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.bottom": False,
    "text.color": "#333333",
    "axes.edgecolor": "#999999",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
}
OUR_COLOURS = {"bf16": "#c8553d", "float32": "#e8a598"}
PEER_COLOURS = {"bf16": "#7d8ca3", "float32": "#c5cddb"}


def draw(results: Results, file: Path) -> None:
    """A panel a contest, as high as it has contestants."""
    contests = list(results["contests"].values())
    heights = [len(racers(contest)) + 2 for contest in contests]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 0.21 * sum(heights)), layout="constrained", facecolor="white")
        panels = figure.subplots(len(contests), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axes, contest in zip(panels, contests, strict=True):
            bars(axes, contest)
        figure.savefig(file, metadata={"Date": None})


def racers(contest: Results) -> list[dict[str, Any]]:
    """The contestants that are drawn, the slowest first."""
    return sorted(
        (line for line in contest["contestants"] if line["role"] != "peak"), key=lambda line: line["per_second"]
    )


def bars(axes: Axes, contest: Results) -> None:
    """One contest."""
    lines = racers(contest)
    speeds = [line["per_second"] for line in lines]
    colors = [(OUR_COLOURS if line["role"] in OURS else PEER_COLOURS)[line["precision"]] for line in lines]
    drawn = axes.barh(range(len(lines)), speeds, color=colors, height=0.75)
    axes.bar_label(drawn, [f"{speed:,.0f}" for speed in speeds], padding=3)
    axes.set_yticks(range(len(lines)), [f"{line['name']}, {line['precision']}" for line in lines])
    for label, line in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if line["role"] in OURS else "normal")
    axes.set_title(f"{contest['title']}: {contest['unit']} a second", loc="left", x=-0.85)  # over the names
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.set_xlim(0, 1.12 * max(speeds))
    axes.margins(y=0.01)
