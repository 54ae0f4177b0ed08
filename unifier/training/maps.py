"""Maps in two dimensions of validation examples and of learned subwords, written into the run's folder."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unifier.analysis.activations import spread_indices
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Task
from unifier.figures.render import THUMBNAIL, describe_target, render_input, shorten
from unifier.files import write_json
from unifier.training.probe import MAX_EXAMPLES, REPRESENTATIONS_FILE
from unifier_tokenizers import SubwordTokenizer
from unifier_tokenizers.subwords import EOS

MAX_TOKENS = 250
"""Maximum number of subwords on a map: the most frequent subwords of the validation examples."""

MIN_NEIGHBOR_POINTS = 20
"""Number of points from which on t-SNE replaces PCA. t-SNE needs more points than neighbors."""

PERPLEXITY = 30

ITERATIONS = 500
"""Number of iterations of t-SNE. On 256 handwritten digits, 500 and 1,000 iterations separate the classes equally."""


def write_maps(tasks: Mapping[str, Task], splits: Mapping[str, EncodedSplit], folder: Path) -> None:
    """Write maps.json: the points of validation examples of each task, and of the subwords of each text tokenizer.

    Args:
        tasks: A mapping from task name to task.
        splits: The validation split of each task.
        folder: The run's folder with the vectors of the examples, which `probe` has written.
    """
    if not (folder / REPRESENTATIONS_FILE).exists():  # A warning has named the missing file.
        return
    maps: dict[str, dict[str, Any]] = {}
    with np.load(folder / REPRESENTATIONS_FILE) as layers:
        for name, task in tasks.items():
            split = splits[name]
            layer = [key for key in layers.files if key.startswith(f"{name}/")][-1]
            maps[name] = {"examples": _map_examples(task, split, layers[layer])}
            if isinstance(task.tokenizer, SubwordTokenizer):
                maps[name]["tokens"] = _map_tokens(task.tokenizer, split)
    write_json(folder / "maps.json", maps)


def _map_examples(task: Task, split: EncodedSplit, vectors: NDArray[np.floating]) -> dict[str, Any]:
    examples = open_split(task.source, "val")
    method, places = project_to_plane(vectors)
    points = list[dict[str, Any]]()
    for row, place in zip(spread_indices(len(split), MAX_EXAMPLES), places, strict=True):
        raw, target = examples[int(split.indices[row])]
        label = shorten(describe_target(task.head, target), THUMBNAIL.letters)
        points.append({**place, "label": label, **render_input(raw, task.tokenizer, THUMBNAIL)})
    return {"method": method, "points": points}


@torch.no_grad()
def _map_tokens(tokenizer: SubwordTokenizer, split: EncodedSplit) -> dict[str, Any]:
    counts = Counter[int]()
    for row in range(len(split)):
        counts.update(split.values[row].tolist())
    names = {i: tokenizer.vocabulary.tokens([i])[0] for i, _ in counts.most_common(4 * MAX_TOKENS) if i > EOS}
    # A byte of a longer character has no text of its own.
    ids = [i for i, name in names.items() if name and "\ufffd" not in name][:MAX_TOKENS]
    embedding = tokenizer.embedding.weight[torch.tensor(ids, dtype=torch.long)]
    vectors = tokenizer.project(embedding).float().numpy(force=True)
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    method, places = project_to_plane(vectors / lengths)
    points = [{**place, "input": names[i], "count": counts[i]} for i, place in zip(ids, places, strict=True)]
    return {"method": method, "points": points}


def project_to_plane(vectors: NDArray[np.floating]) -> tuple[str, Sequence[Mapping[str, float]]]:
    """Return the name of the method, and the coordinates "x" and "y" of each vector.

    The map is at least as wide as high. Its left edge is 0, its right edge is 1, and its top edge is 0. The method is
    t-SNE (van der Maaten and Hinton 2008), or PCA for few vectors.

    Args:
        vectors: The vectors (E, D).
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if len(vectors) < MIN_NEIGHBOR_POINTS or not np.ptp(vectors, 0).any():
        method, plane = "PCA", np.zeros((len(vectors), 2))
        if min(vectors.shape) >= 2 and np.ptp(vectors, 0).any():
            plane = PCA(2, svd_solver="full").fit_transform(vectors)
    else:
        perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
        method = "t-SNE"
        plane = TSNE(perplexity=perplexity, init="pca", max_iter=ITERATIONS, random_state=0, n_jobs=1).fit_transform(
            vectors
        )
    plane = plane - plane.min(0)
    plane = plane[:, np.argsort(-np.ptp(plane, 0), kind="stable")]
    plane = plane / (plane.max() or 1.0)
    return method, [{"x": round(float(x), 4), "y": round(float(y), 4)} for x, y in plane]
