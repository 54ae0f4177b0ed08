"""How alike the trunks of a comparison represent the same examples, pair by pair and layer by layer."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from unifier.study.representation import calibrated, likeness, neighbours
from unifier_tokenizers import InputError

EXAMPLES = 256
"""The most examples compared: a permutation costs their square."""
NEIGHBOURS = 10
"""How many nearest neighbours are looked at, as by Huh et al. 2024."""
MEASURES = {"cka": likeness, "neighbours": partial(neighbours, k=NEIGHBOURS)}

Row = Mapping[str, Any]
"""A row of comparison.json."""


def compare_representations(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """What comparison.json holds under "representation", and a line for each row or pair that is left out.

    Two trunks are compared where they read the same arm from the same seed and nothing else was varied between them,
    at each layer that both have: both measures, each beside its chance.
    """
    problems: list[str] = []
    groups: dict[str, list[tuple[Row, dict[str, Tensor]]]] = defaultdict(list)
    for row in rows:
        try:
            groups[repr((row["arm"], row["seed"], row.get("varied")))].append((row, read_layers(row)))
        except InputError as error:
            problems.append(str(error))
    compared: list[dict[str, Any]] = []
    for (row, one), (other_row, other) in (pair for group in groups.values() for pair in combinations(group, 2)):
        names = {"a": label(row), "b": label(other_row)}
        try:
            compared += [
                {"arm": row["arm"], "seed": row["seed"], "layer": layer, **names, **alike(one[layer], other[layer])}
                for layer in one
                if layer in other
            ]
        except InputError as error:
            problems.append(f"{row['folder']} and {other_row['folder']}, {row['arm']}: {error}")
    return compared, problems


def alike(x: Tensor, y: Tensor) -> dict[str, float]:
    """Both measures of (E, D1) and (E, D2), as comparison.json names them."""
    named: dict[str, float] = {}
    for name, relation in MEASURES.items():
        found = calibrated(relation, x, y)
        keys = (name, f"{name}_chance", f"{name}_calibrated", f"{name}_p")
        named |= dict(zip(keys, found, strict=True))
    return named


def read_layers(row: Row) -> dict[str, Tensor]:
    """The representations (E, D) of a row's arm that its run left, by layer; raises InputError where there are none."""
    path, prefix = Path(row["folder"]) / "representations.npz", f"{row['arm']}/"
    try:
        with np.load(path) as kept:
            layers = {name.removeprefix(prefix): kept[name] for name in kept.files if name.startswith(prefix)}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, BadZipFile) as error:
        raise InputError(f"{path}: broken ({error})") from error
    examples = min((len(layer) for layer in layers.values()), default=0)
    if examples <= NEIGHBOURS:
        raise InputError(f"{path}: {examples} examples of {row['arm']}; more than {NEIGHBOURS} are needed to compare")
    step = -(-examples // EXAMPLES)
    return {name: torch.from_numpy(layer[::step]) for name, layer in layers.items()}


def label(row: Row) -> str:
    """A row's trunk in a few words: "solo", "joint", "translation -> norms", "random, frozen"."""
    if row["mode"] != "transfer":
        name = row["mode"]
    else:
        start = (row["start"] or "random") + (", shuffled" if row["shuffled"] else "")
        tuned = "frozen" if row["tuned"] == "none" else row["tuned"]
        name = f"{start} -> {tuned}" if row["start"] else f"{start}, {tuned}"
    return ", ".join([name, *(f"{setting} {value}" for setting, value in row.get("varied", {}).items())])
