"""The table of objectives and modalities: its cells, its empty cells and its budget."""

from pathlib import Path

import pytest

from unifier.config import list_experiments
from unifier_tokenizers import InputError

FILE = Path(__file__).parents[2] / "experiments" / "objectives.py"


def test_chosen_cells_are_trained_with_the_budget_in_seconds() -> None:
    comparison = list_experiments(FILE)["objectives"](cells=("hide-text", "next-items"))
    assert [make.__name__ for make in comparison.experiments] == ["hide_text", "next_items"]  # pyright: ignore[reportAttributeAccessIssue]
    assert (comparison.budget_unit, len(comparison.seeds)) == ("seconds", 3)  # pyright: ignore[reportAttributeAccessIssue]


def test_all_cells_are_trained_by_default() -> None:
    comparison = list_experiments(FILE)["objectives"]()
    assert len(comparison.experiments) == 17  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("cell", ["point-items", "hide-smell"])
def test_cell_without_experiment_is_refused_by_name(cell: str) -> None:
    with pytest.raises(InputError, match=cell):
        list_experiments(FILE)["objectives"](cells=("hide-text", cell))
