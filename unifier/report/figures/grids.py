"""Heat maps with their numbers: the transfer matrix, and settings by arms."""

import textwrap
from collections.abc import Sequence

import numpy as np

from unifier.report.figures.drawing import SOFT, Drawn, Sheet, heat_map, panel
from unifier.report.numbers.conditions import Condition
from unifier.report.numbers.transfer import Grid, setting_grid, transfer_grids
from unifier.report.numbers.wording import number


def draw_grids(conditions: Sequence[Condition], sheet: Sheet) -> list[Drawn]:
    """One heat map for each of what was tuned and varied, all in one scale; one of the settings that arms share."""
    moved = transfer_grids(conditions)
    values = [cell for grid in moved for line in grid.cells for cell in line if cell is not None]
    drawn = [_heat(grid, f"transfer-{grid.title}", "transfer", values, sheet) for grid in moved]
    if grid := setting_grid(conditions):
        values = [cell for line in grid.cells for cell in line if cell is not None]
        drawn.append(_heat(grid, "settings-by-arm", "sweeps", values, sheet))
    return drawn


def _heat(grid: Grid, file: str, section: str, values: Sequence[float], sheet: Sheet) -> Drawn:
    wide = max(0.5, 0.085 * max(map(len, grid.columns)))  # so that names stand beside each other
    width = 0.4 + 0.07 * max(map(len, grid.rows)) + wide * len(grid.columns)
    name, _, settings = grid.title.partition(", ")
    heading = [name, *textwrap.wrap(settings, round(13 * width))]
    figure, axes = panel(width, 0.7 + 0.17 * len(heading) + 0.3 * len(grid.rows))
    cells = np.array([[np.nan if cell is None else cell for cell in line] for line in grid.cells])
    said = [["–" if cell is None else number(cell) for cell in line] for line in grid.cells]
    heat_map(axes, cells, (min(values), max(values)), said, grid.rows, grid.columns)
    axes.xaxis.tick_top()
    for text, line in zip(axes.get_yticklabels(), grid.rows, strict=True):
        if line in grid.controls:
            text.set_color(SOFT)
    figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=10, fontweight="bold")
    table = [
        {"": line, **{arm: "" if cell is None else cell for arm, cell in zip(grid.columns, of_line, strict=True)}}
        for line, of_line in zip(grid.rows, grid.cells, strict=True)
    ]
    return sheet.save(figure, file, section, f"{grid.unit}, {grid.title}", table, grid.unit[0].upper() + grid.unit[1:])
