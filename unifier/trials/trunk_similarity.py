"""Similarity of a comparison's trunks on the same examples, pair by pair and layer by layer."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from unifier.analysis.representation import calibrate, nearest_neighbors, similarity_matrix
from unifier.comparison import TRIAL_KEYS, TrialRow
from unifier_tokenizers import InputError

NUM_NEIGHBORS = 10
"""How many nearest neighbors are looked at, as by Huh et al. 2024."""


ANALYSES = {"cka": similarity_matrix, "neighbors": partial(nearest_neighbors, k=NUM_NEIGHBORS)}


TrainedTrunk = tuple[dict[str, Any], dict[str, Tensor]]
"""How one was trained, and its representations (E, D) by layer."""


def compare_representations(rows: Sequence[TrialRow]) -> tuple[list[dict[str, Any]], list[str]]:
    """What comparison.json holds under "representation", and a line for each row that is left out.

    Two trunks are compared where they read the same task from the same seed and nothing else was varied between them,
    at each layer that both have: the first of the rows, which is the task's own trunk where there is one, with each of
    the others, each named by what tells its row apart. Both measures stand beside their chance.
    """
    problems: list[str] = []
    groups: dict[str, list[TrainedTrunk]] = defaultdict(list)
    about: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = repr((row["task"], row["seed"], row.get("varied")))
        try:
            group = groups[key]
            layers = read_layers(row, like=group[0][1] if group else None)
            group.append(({name: row[name] for name in TRIAL_KEYS if name != "seed"}, layers))
            about[key] = {"task": row["task"], "seed": row["seed"]}
        except InputError as error:
            problems.append(str(error))
    found = [about[key] | pair for key, group in groups.items() if group for pair in compare_group(group)]
    return found, problems


def compare_group(group: Sequence[TrainedTrunk]) -> Iterator[dict[str, Any]]:
    """The first of some trunks with each of the others, at each layer that both have."""
    own, layers = group[0]
    for layer, one in layers.items():
        others = [(about, theirs[layer]) for about, theirs in group[1:] if layer in theirs]
        if not others:
            continue
        held = [theirs for _, theirs in others]
        measured = {name: calibrate(relation, one, held) for name, relation in ANALYSES.items()}
        for k, (other, _) in enumerate(others):
            figures = {
                f"{measure}{what}": figure
                for measure, found in measured.items()
                for what, figure in zip(("", "_chance", "_calibrated", "_p"), found[k], strict=True)
            }
            yield {"layer": layer, "a": own, "b": other, **figures}


def read_layers(row: TrialRow, like: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """The representations (E, D) of a row's task that its run left, by layer.

    Raises InputError where there are none, or not of as many examples as those they are to be compared with.
    """
    path, prefix = Path(row["folder"]) / "representations.npz", f"{row['task']}/"
    try:
        with np.load(path) as kept:
            layers = {name.removeprefix(prefix): kept[name] for name in kept.files if name.startswith(prefix)}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, BadZipFile) as error:
        raise InputError(f"{path}: broken ({error})") from error
    examples = min((len(layer) for layer in layers.values()), default=0)
    if examples <= NUM_NEIGHBORS:
        raise InputError(
            f"{path}: {examples} examples of {row['task']}; more than {NUM_NEIGHBORS} are needed to compare"
        )
    if like and (others := len(next(iter(like.values())))) != examples:
        raise InputError(f"{path}: {examples} examples of {row['task']} beside {others} of another run")
    return {name: torch.from_numpy(layer) for name, layer in layers.items()}
