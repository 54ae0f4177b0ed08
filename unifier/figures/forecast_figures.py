"""Figures of the forecasts of a trained model, written into the run's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unifier.analysis.activations import spread_indices
from unifier.data.dataset import open_split
from unifier.data.source import describe_example
from unifier.experiment import Task
from unifier.heads.forecasting import ForecastingHead
from unifier.report.plot_series import SeriesPanel, draw_series
from unifier.report.plot_style import figures_folder

NUM_FORECASTS = 6
"""Number of test windows in a figure."""


def draw_forecasts(tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, Any]], folder: Path) -> None:
    """Write the figure forecast-TASK.svg for each task with a `ForecastingHead`.

    Args:
        tasks: A mapping from task name to task.
        predictions: For each task, a mapping from example index to the forecast of a test window.
        folder: The run's folder.
    """
    for name, task in tasks.items():
        if not isinstance(task.head, ForecastingHead):
            continue
        examples, indices = open_split(task.source, "test"), sorted(predictions[name])
        panels: list[SeriesPanel] = []
        for number, row in enumerate(spread_indices(len(indices), NUM_FORECASTS)):
            past, future = examples[indices[row]]
            channel = number % len(past)
            seen, true = np.asarray(past)[channel], np.asarray(future.values)[channel]
            forecast = predictions[name][indices[row]][channel].numpy()
            title = describe_example(examples, indices[row]).rpartition("/")[2]
            panels.append(
                SeriesPanel(
                    f"{title}, channel {channel + 1}" if len(past) > 1 else title,
                    np.concatenate([seen, true]),
                    np.concatenate([seen, np.full_like(true, np.nan)]),
                    np.concatenate([np.full_like(seen, np.nan), forecast]),
                )
            )
        draw_series(figures_folder(folder) / f"forecast-{name}.svg", panels)
