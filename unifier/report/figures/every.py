"""Every figure that a study's rows allow."""

from pathlib import Path

from unifier.report.figures.confusions import draw_confusions
from unifier.report.figures.curves import draw_curves
from unifier.report.figures.drawing import Drawn, Sheet, colours_of, styled
from unifier.report.figures.grids import draw_grids
from unifier.report.figures.layers import draw_gradients, draw_representation
from unifier.report.figures.lengths import draw_lengths
from unifier.report.figures.scaling import draw_efficiency, draw_sweeps
from unifier.report.figures.scores import draw_joint, draw_scores
from unifier.report.numbers.conditions import conditions
from unifier.report.numbers.gather import Study


def draw_all(study: Study, folder: Path) -> list[Drawn]:
    """Write all figures, and their numbers, below a folder."""
    found = conditions(study.rows)
    if not found:
        return []
    sheet = Sheet(folder, colours_of(list(dict.fromkeys(one.arm for one in found))))
    with styled():
        return [
            *draw_scores(found, sheet),
            *draw_confusions(found, sheet),
            *draw_lengths(found, sheet),
            *draw_curves(found, sheet),
            *draw_grids(found, sheet),
            *draw_joint(found, sheet),
            *draw_gradients(study.rows, sheet),
            *draw_efficiency(found, sheet),
            *draw_sweeps(found, sheet),
            *draw_representation(study.representation, sheet),
        ]
