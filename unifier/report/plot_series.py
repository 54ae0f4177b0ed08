"""Figures of time series: forecasts with their past, and the reconstruction of hidden patches."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from unifier.files import printable, write_text
from unifier.report.plot_style import COLORS, INK, LABEL_SIZE, MUTED, plot_style

NUM_COLUMNS = 2


@final
class SeriesPanel(NamedTuple):
    """One channel with the part that a model sees, and the values that the model predicts.

    The arrays have the shape (T,). The values of `seen` are NaN at the time steps that the model does not see, and the
    values of `predicted` are NaN at the other time steps.
    """

    title: str
    true: NDArray[np.floating]
    seen: NDArray[np.floating]
    predicted: NDArray[np.floating]


def draw_series(path: Path, panels: Sequence[SeriesPanel]) -> None:
    """Draw one panel per channel, with the seen, the true and the predicted values.

    Args:
        path: The SVG file to write.
        panels: The channels.
    """
    rows = -(-len(panels) // NUM_COLUMNS)
    with plot_style():
        figure = Figure(figsize=(9, 2.2 * rows + 0.4), layout="constrained")
        for number, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(rows, NUM_COLUMNS, number)
            unseen = np.where(np.isnan(panel.predicted), np.nan, panel.true)
            axes.plot(unseen, color=MUTED, label="true")
            axes.plot(panel.seen, color=INK, linewidth=1, label="seen by the model")
            axes.plot(panel.predicted, color=COLORS[1], label="predicted")
            axes.set_title(panel.title, fontsize=LABEL_SIZE, fontweight="normal")
            if number > len(panels) - NUM_COLUMNS:
                axes.set_xlabel("time steps", fontsize=LABEL_SIZE)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=LABEL_SIZE)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    write_text(path, printable(buffer.getvalue(), keep="\n\t"))
