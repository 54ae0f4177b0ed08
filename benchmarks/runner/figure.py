"""Draw a bar chart of the speed of each variant."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.runner.case import OURS
from benchmarks.runner.report import Results

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # Store text as text, not as outlines.
    "svg.hashsalt": "unifier",  # A fixed salt makes the file reproducible.
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
OUR_COLORS = {"bf16": "#c8553d", "float32": "#e8a598"}
PEER_COLORS = {"bf16": "#7d8ca3", "float32": "#c5cddb"}


def draw_figure(results: Results, path: Path) -> None:
    """Write an SVG file with one panel per case. The height of a panel depends on the number of variants."""
    cases = list(results["cases"].values())
    heights = [len(_drawn_variants(case)) + 2 for case in cases]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 0.21 * sum(heights)), layout="constrained", facecolor="white")
        panels = figure.subplots(len(cases), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axes, case in zip(panels, cases, strict=True):
            _draw_bars(axes, case)
        figure.savefig(path, metadata={"Date": None})


def _drawn_variants(case: Results) -> list[dict[str, Any]]:
    """Return all variants except the peak, sorted from slow to fast."""
    variants = [variant for variant in case["variants"] if variant["role"] != "peak"]
    return sorted(variants, key=lambda variant: variant["per_second"])


def _draw_bars(axes: Axes, case: Results) -> None:
    variants = _drawn_variants(case)
    speeds = [variant["per_second"] for variant in variants]
    colors = [(OUR_COLORS if variant["role"] in OURS else PEER_COLORS)[variant["precision"]] for variant in variants]
    bars = axes.barh(range(len(variants)), speeds, color=colors, height=0.75)
    axes.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], padding=3)
    axes.set_yticks(range(len(variants)), [f"{variant['name']}, {variant['precision']}" for variant in variants])
    for label, variant in zip(axes.get_yticklabels(), variants, strict=True):
        label.set_fontweight("bold" if variant["role"] in OURS else "normal")
    # A negative x moves the title to the left, above the names of the variants.
    axes.set_title(f"{case['title']}: {case['unit']} a second", loc="left", x=-0.85)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.set_xlim(0, 1.12 * max(speeds))
    axes.margins(y=0.01)
