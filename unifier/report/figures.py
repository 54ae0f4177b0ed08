"""A run's figures, from the files it left, as SVG."""

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "unifier",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def draw_curves(folder: Path) -> None:
    """Draw figures/curves.svg from metrics.csv: each arm's training loss and validation metrics over tokens."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    with (folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, text in row.items():
                part, _, rest = name.partition("/")
                arm, _, metric = rest.partition("/")
                if text and metric and part in ("train", "val"):
                    title = "training loss" if part == "train" else f"validation {metric}"
                    panels[title][arm].append((float(row["budget/tokens"]), float(text)))
    if not panels:
        return
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(panels), 2.8), layout="constrained")
        for axes, (title, curves) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            for arm, points in curves.items():
                axes.plot(*zip(*points, strict=True), label=arm, marker="." if len(points) < 30 else None)
            axes.set(title=title.replace("_", " "), xlabel="tokens read")
            axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 3))
        figure.axes[0].legend()
        (folder / "figures").mkdir(exist_ok=True)
        figure.savefig(folder / "figures" / "curves.svg", metadata={"Date": None})
