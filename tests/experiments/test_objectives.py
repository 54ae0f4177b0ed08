"""The tables of objectives and modalities: cells, empty cells, budgets, and short runs on small files."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import unifier as uf
from unifier.config import list_experiments
from unifier.datasets.protein_ss import PARTS
from unifier.trials.plan import count_trials
from unifier_tokenizers import InputError

FILE = Path(__file__).parents[2] / "experiments" / "objectives.py"


def comparison(name: str = "objectives", **settings: Any) -> uf.Comparison:
    built = list_experiments(FILE)[name](**settings)
    assert isinstance(built, uf.Comparison)
    return built


def test_chosen_cells_are_trained_with_the_budget_in_flops() -> None:
    chosen = comparison(cells=("hide-text", "next-items"))
    assert [make.__name__ for make in chosen.experiments] == ["hide_text", "next_items"]
    assert (chosen.budget_unit, len(chosen.seeds)) == ("flops", 3)


def test_all_cells_are_trained_by_default() -> None:
    assert len(comparison().experiments) == 19


def test_rates_are_tried_for_each_cell() -> None:
    assert count_trials(comparison(cells=("hide-text", "next-text"), rates=(1e-3, 2e-3), seeds=(10,))) == 4


@pytest.mark.parametrize("cell", ["point-items", "hide-smell"])
def test_cell_without_experiment_is_refused_by_name(cell: str) -> None:
    for name, settings in (("objectives", {"cells": ("hide-text", cell)}), ("objectives_joint", {"cells": (cell,)})):
        with pytest.raises(InputError, match=cell):
            comparison(name, **settings)


def test_other_budgets_and_a_common_rate_are_refused() -> None:
    training: uf.Training = comparison().settings["training"]
    for changed, named in (({"flops": None, "seconds": 9}, "flops"), ({"learning_rate": 1.0}, "rates")):
        with pytest.raises(InputError, match=named):
            comparison(training=replace(training, **changed))


def test_trunk_of_a_row_is_trained_on_its_cells() -> None:
    joint = comparison("objectives_joint", row="label")
    assert [make.__name__.split("_")[0] for make in joint.experiments] == ["label"] * 4
    assert count_trials(joint) == 3


def test_tokenizers_are_handed_over_within_a_modality_only() -> None:
    def pairs(**settings: Any) -> list[tuple[str, str]]:
        transfers = comparison("objectives_transfer", **settings).transfers or ()
        return [(start.__name__, make.__name__) for start, make in transfers]

    assert len(pairs()) == 6 * 4
    assert all(start.split("_")[1] == name.split("_")[1] for start, name in pairs(tokenizers=True))
    with pytest.raises(InputError, match="hide-items"):
        pairs(tokenizers=True, starts=("hide-items",))


@pytest.fixture
def small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a few proteins and a few customers."""
    files = {"sequences": "", "sampled": "", "mask": ""}
    for k, part in enumerate([*PARTS] * 3):
        residues = "ACDEFGHIKL"[k % 3 :] * 3
        files["sequences"] += f">{k}\n{residues}\n"
        files["sampled"] += f">{k} {part}\n{('CEH' * 10)[: len(residues)]}\n"
        files["mask"] += f">{k}\n{'1' * len(residues)}\n"
    for name in ("protein_ss", "amazon_beauty"):
        (tmp_path / name).mkdir()
    with ZipFile(tmp_path / "protein_ss" / "splits.zip", "w") as archive:
        for name, text in files.items():
            archive.writestr(f"splits/{name}.fasta", text)
    lines = [f"{user} {' '.join(str(1 + (5 * user + k) % 60) for k in range(5))}" for user in range(1, 13)]
    (tmp_path / "amazon_beauty" / "Beauty.txt").write_text("\n".join(lines))
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "small_files")
def test_each_table_is_trained_on_small_files(tmp_path: Path) -> None:
    tables = list_experiments(FILE)
    small: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16, "flops": 1e6, "num_validations": 1}
    options: dict[str, Any] = {"seeds": (0,), "out": tmp_path / "runs", "track": "off"}

    (alone,) = uf.run(tables["objectives"], cells=("next-protein",), **small, **options)
    score_range = alone.data["next_protein"]["score_range"]
    assert (score_range["metric"], score_range["reference"]) == ("nats_per_residue", 0)

    cells = ("hide-protein", "hide-items")
    (together,) = uf.run(tables["objectives_joint"], row="hide", cells=cells, **small, **options)
    assert (together.status, together.tasks) == ("finished", ["hide_protein", "hide_items"])

    chosen: dict[str, Any] = {"starts": ("hide-protein",), "cells": ("label-protein",), "tokenizers": True}
    results = uf.run(tables["objectives_transfer"], **chosen, **small, **options)
    assert [result.status for result in results] == ["finished"] * 3
    assert [result.lineage["tokenizers"] for result in results if result.lineage] == [["label_protein"]]
    # Both metrics are an accuracy, but of hidden residues and of labels.
    (hidden, labels) = (result.data[result.tasks[0]]["score_range"]["chance"] for result in results[:2])
    assert hidden != labels
