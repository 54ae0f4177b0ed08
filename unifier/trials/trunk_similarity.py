"""Similarity of a comparison's trunks on the same examples, for each layer."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unifier.analysis.representation import calibrate, nearest_neighbors, similarity_matrix
from unifier.comparison import TRIAL_KEYS, TrialRow
from unifier.files import read_bytes
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

NUM_NEIGHBORS = 10
"""Number of nearest neighbors, as in Huh et al. 2024."""

MAX_ARRAYS_BYTES = 4_000_000_000
"""Maximum size of a representations.npz in bytes, because the file is read into memory."""

ANALYSES = {"cka": similarity_matrix, "neighbors": partial(nearest_neighbors, k=NUM_NEIGHBORS)}

TrainedTrunk = tuple[dict[str, Any], dict[str, Tensor]]
"""The row entries that describe a trunk's training, and a mapping from layer to representations (E, D)."""


def compare_representations(base: Path, rows: Sequence[TrialRow]) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure the similarity of the trunks in a comparison, for each layer.

    Trunks with the same task, seed and varied settings form a group. In each group, the solo trunk (or else the first
    trunk) is compared with every other trunk at each common layer.

    Args:
        base: The comparison's folder. The paths in the rows are relative to the comparison's folder.
        rows: Rows of comparison.json.

    Returns:
        The entry "representation" of comparison.json, and one line for each unusable row.
    """
    problems: list[str] = []
    groups: dict[str, list[TrainedTrunk]] = defaultdict(list)
    facts: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = repr((row["task"], row["seed"], row.get("varied")))
        try:
            group = groups[key]
            layers = read_layers(base, row, like=group[0][1] if group else None)
            group.append(({name: row[name] for name in TRIAL_KEYS if name != "seed"}, layers))
            facts[key] = {"task": row["task"], "seed": row["seed"]}
        except InputError as error:
            problems.append(str(error))
    return [facts[key] | pair for key, group in groups.items() if group for pair in compare_group(group)], problems


def compare_group(group: Sequence[TrainedTrunk]) -> Iterator[dict[str, Any]]:
    """Yield the similarity of the first trunk to every other trunk, and the chance level, for each common layer."""
    reference, reference_layers = group[0]
    for layer, representation in reference_layers.items():
        others = [(description, layers[layer]) for description, layers in group[1:] if layer in layers]
        if not others:
            continue
        tensors = [tensor for _, tensor in others]
        measured = {name: calibrate(relation, representation, tensors) for name, relation in ANALYSES.items()}
        for k, (description, _) in enumerate(others):
            scores = {
                f"{name}{suffix}": score
                for name, results in measured.items()
                for suffix, score in zip(("", "_chance", "_calibrated", "_p"), results[k], strict=True)
            }
            yield {"layer": layer, "a": reference, "b": description, **scores}


def read_layers(base: Path, row: TrialRow, like: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return a mapping from layer to the representations (E, D) of a row's task.

    Raises:
        InputError: The file is missing or broken, has too few examples, or does not have the number of examples of
            `like`.
    """
    path, prefix = base / row["folder"] / "representations.npz", f"{row['task']}/"
    content = BytesIO(read_bytes(path, MAX_ARRAYS_BYTES))
    try:
        with np.load(content) as arrays:
            layers = {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}
        if fault := next((name for name, layer in layers.items() if not _is_finite_matrix(layer)), None):
            raise ValueError(f"{fault} is not a matrix of finite numbers")
    except Exception as error:  # A damaged archive raises errors of many types.
        raise InputError(f"{path}: broken ({one_line(error)})") from error
    examples = min((len(layer) for layer in layers.values()), default=0)
    if examples <= NUM_NEIGHBORS:
        raise InputError(
            f"{path}: {examples} examples of {row['task']}, but the comparison needs more than {NUM_NEIGHBORS}"
        )
    if like and (expected := len(next(iter(like.values())))) != examples:
        raise InputError(f"{path}: {examples} examples of {row['task']}, but another run has {expected}")
    return {name: torch.from_numpy(layer) for name, layer in layers.items()}


def _is_finite_matrix(layer: Any) -> bool:
    """Return True for a floating-point array (E, D). NumPy returns bytes for a file that is not an array."""
    is_matrix = isinstance(layer, np.ndarray) and layer.ndim == 2 and layer.dtype.kind == "f"
    return is_matrix and bool(np.isfinite(layer).all())
