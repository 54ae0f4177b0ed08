"""Train and score support vector machines on our data sets: `python -m benchmarks.baselines SET... --data DIR`.

SET is a name in `SETS`, or the path of your own data. Your own data can be a folder, or a table with one label per
file.

- For a sound, 20 mel-frequency cepstral coefficients and their deltas are computed per frame. The features are the mean
  and the standard deviation of each value over time. Each feature has unit variance over the training split.
- For a picture, the features are the first 100 principal components of the pixels. Your own pictures are first resized
  to a longer side of 32 pixels and padded with black. At most 10,000 randomly selected training pictures are used.

The cost C and the width of the RBF kernel are chosen on the validation split. An SVM that is trained on the training
split is scored once on the test split. An SVM that is trained on the training and validation splits ("refit") is also
scored once.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer, StandardScaler
from sklearn.svm import SVC
from torch.nn import functional
from torchaudio.functional import compute_deltas
from torchaudio.transforms import MFCC

from benchmarks.runner.tables import table_header, table_row
from unifier.data.audio_files import AUDIO_SUFFIXES
from unifier.data.source import SPLITS, Example, LabeledSource, describe_example, use_data_folder
from unifier.datasets.factory import IMAGE_DATASETS, create_audio_dataset, create_image_dataset
from unifier.datasets.image_folder import ImageFolder
from unifier.files import read_json, write_json
from unifier_tokenizers import Audio, InputError

N_MFCC, N_MELS = 20, 40
WIN_LENGTH, HOP_LENGTH = 0.032, 0.010
"""The length of a window and the distance between windows, in seconds."""
COMPONENTS = 100
SIDE = 32
"""The longer side of your own pictures after resizing, in pixels."""
MAX_PICTURES = 10_000
"""The maximum number of training pictures."""
COSTS = (1.0, 3.0, 10.0, 30.0)
WIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Values of gamma in the RBF kernel, as multiples of 1 / (number of features x variance of the features)."""


def _audio_folds(
    data: str, folds: Iterable[int | None], target: Literal["genre", "tags"] = "genre"
) -> list[LabeledSource]:
    return [create_audio_dataset(data, target=target, fold=fold) for fold in folds]


SETS: dict[str, Callable[[], list[LabeledSource]]] = {
    "emotify": partial(_audio_folds, "emotify", range(5)),
    "emotify_tags": partial(_audio_folds, "emotify", range(5), "tags"),
    "fsdd": partial(_audio_folds, "fsdd", [None]),
    "fsdd_speakers": partial(_audio_folds, "fsdd", range(6)),
    "esc10": partial(_audio_folds, "esc10", range(1, 6)),
    "esc50": partial(_audio_folds, "esc50", range(1, 6)),
    "gtzan": partial(_audio_folds, "gtzan", [None]),
    **{name: lambda name=name: [create_image_dataset(name)] for name in IMAGE_DATASETS if name != "embedded"},
}
"""Mapping from the name of a data set to a function that creates one source per fold."""


@final
class Scores(NamedTuple):
    """Scores of one source, between 0 and 1. The metric is accuracy, or macro ROC-AUC for tags."""

    test: float
    """Test score after training on the training split."""
    refit: float
    """Test score after training on the training and validation splits."""
    validation: float
    cost: float
    width: float
    trained: int
    """Number of training examples."""


def own_sources(path: str) -> list[LabeledSource]:
    """Create one source per fold from your own pictures or sounds.

    Args:
        path: Path of a folder of pictures or sounds, or of a table of sounds.

    Raises:
        InputError: If the path does not exist.
    """
    if not Path(path).exists():
        raise InputError(f"{path}: the path does not exist; give an existing path or one of the sets {', '.join(SETS)}")
    files = (file for _, _, names in os.walk(path, followlinks=True) for file in names)
    is_audio = Path(path).is_file() or any(Path(file).suffix.lower() in AUDIO_SUFFIXES for file in files)
    create = partial(create_audio_dataset, path) if is_audio else partial(create_image_dataset, path, size=SIDE)
    return [create(fold=fold) for fold in getattr(create(), "folds", ()) or (None,)]


def score_baseline(source: LabeledSource, cache: dict[str, Example] | None = None) -> Scores:
    """Choose the settings of an SVM on the validation split and compute its test scores.

    Args:
        source: The data set.
        cache: Mapping from example id to the features and the target, shared by all folds of a data set.
    """
    side = SIDE if isinstance(source, ImageFolder) else 0
    features, targets = zip(*(_read_features(source.split(name), cache, side) for name in SPLITS), strict=True)
    is_tags = isinstance(targets[0][0], tuple)
    is_image = not isinstance(source.split("train")[0].input, Audio)
    labels: list[Any] = [
        MultiLabelBinarizer(classes=source.labels).fit_transform(split) if is_tags else np.array(split)
        for split in targets
    ]

    @lru_cache
    def scale(splits: int) -> tuple[Any, NDArray[np.floating], Any]:
        """Fit the scaler to the first `splits` splits. Return the scaler, the scaled features and the labels."""
        inputs, outputs = np.concatenate(features[:splits]), np.concatenate(labels[:splits])
        indices = np.arange(len(inputs))
        scaler: Any = StandardScaler()
        if is_image:
            indices = np.sort(np.random.RandomState(0).permutation(indices)[:MAX_PICTURES])
            scaler = PCA(min(COMPONENTS, len(indices), inputs.shape[1]), random_state=0)
        return scaler, scaler.fit_transform(inputs[indices]), outputs[indices]

    def fit(cost: float, width: float, splits: int = 1) -> Any:
        """Train an SVM on the first `splits` splits."""
        scaler, inputs, outputs = scale(splits)
        machine = SVC(C=cost, gamma=width / (inputs.shape[1] * inputs.var()))
        return make_pipeline(scaler, (OneVsRestClassifier(machine) if is_tags else machine).fit(inputs, outputs))

    grid = [(cost, width) for cost in COSTS for width in WIDTHS]
    results = [(_score(fit(*settings), features[1], labels[1]), settings) for settings in grid]
    validation, best = max(results, key=lambda result: result[0])  # `max` returns the first of equal scores.
    test, refit = (_score(fit(*best, splits=splits), features[2], labels[2]) for splits in (1, 2))
    return Scores(test, refit, validation, *best, len(scale(1)[1]))


def compute_features(raw: Any, side: int = 0) -> NDArray[np.floating]:
    """Compute the features of a sound or a picture.

    Args:
        raw: A sound, or a picture (height, width) or (height, width, channels).
        side: Height and width of a padded picture; 0 means no padding.

    Returns:
        A vector with the 80 statistics of a sound, or with all pixels of a picture, between 0 and 1.
    """
    if not isinstance(raw, Audio):
        padding = [(0, max(side - length, 0)) for length in raw.shape[:2]]
        return np.pad(raw, [*padding, (0, 0)][: raw.ndim]).ravel() / np.float32(255)
    waveform, transform = torch.as_tensor(raw.waveform), _mfcc(raw.sample_rate)
    waveform = waveform.mean(0) if waveform.ndim == 2 else waveform
    waveform = functional.pad(waveform, (0, max(transform.MelSpectrogram.n_fft - len(waveform), 0)))
    coefficients = transform(waveform)
    features = torch.cat([coefficients, compute_deltas(coefficients)])
    return torch.cat([features.mean(1), features.std(1, correction=0)]).numpy()


@lru_cache
def _mfcc(sample_rate: int) -> MFCC:
    n_fft = 1 << (int(WIN_LENGTH * sample_rate) - 1).bit_length()
    settings = {"n_fft": n_fft, "hop_length": round(HOP_LENGTH * sample_rate), "n_mels": N_MELS}
    return MFCC(sample_rate, N_MFCC, melkwargs=settings)


def _read_features(
    examples: Sequence[Example], cache: dict[str, Example] | None, side: int
) -> tuple[NDArray[np.floating], list[Any]]:
    """Return the features (examples, features) and the targets. Cached examples are not read again."""
    cache = {} if cache is None else cache
    ids = [describe_example(examples, index) for index in range(len(examples))]
    for index, example_id in enumerate(ids):
        if example_id not in cache:
            raw, target = examples[index]
            cache[example_id] = Example(compute_features(raw, side), target)
    return np.stack([cache[example_id].input for example_id in ids]), [cache[example_id].target for example_id in ids]


def _score(machine: Any, features: NDArray[np.floating], labels: Any) -> float:
    if labels.ndim == 1:
        return float(machine.score(features, labels))
    # The ROC curve of a tag is undefined if all examples, or no examples, have the tag.
    varies = (labels.min(0) == 0) & (labels.max(0) == 1)
    return float(roc_auc_score(labels[:, varies], machine.decision_function(features)[:, varies], average="macro"))


def score_table(scores: dict[str, Any]) -> str:
    """Return a table of scores in percent: the means over all folds, and the test score of each fold."""
    lines = [table_header(["set", "metric", "test", "folds", "refit", "validation"], (0, 1, 3))]
    for name, folds in scores.items():
        test, refit, validation = ([100 * fold[key] for fold in folds] for key in ("test", "refit", "validation"))
        metric = "macro ROC-AUC" if name == "emotify_tags" else "accuracy"
        fold_cell = ", ".join(f"{score:.1f}" for score in test) if len(test) > 1 else ""
        means = [f"{np.mean(column):.1f}" for column in (test, refit, validation)]
        lines.append(table_row([name, metric, means[0], fold_cell, *means[1:]]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Score each data set, write the scores and print the table. Return 2 if the input is invalid, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.baselines", description="Train and score support vector machines."
    )
    parser.add_argument("set", nargs="+", help=f"one of {', '.join(SETS)}, or the path of your own data", metavar="SET")
    parser.add_argument("--data", type=Path, help="folder of the data sets (default: $UNIFIER_DATA)", metavar="DIR")
    parser.add_argument(
        "--out",
        type=Path,
        help="file for the scores (default: benchmarks/baselines.json, which never contains your own data)",
        metavar="FILE",
    )
    options = parser.parse_args(arguments)
    out = options.out or Path(__file__).with_suffix(".json")
    scores: dict[str, Any] = read_json(out) if out.exists() else {}
    try:
        with use_data_folder(options.data):
            sources = {name: SETS.get(name, partial(own_sources, name))() for name in options.set}
            for name, folds in sources.items():
                cache = dict[str, Example]() if len(folds) > 1 else None
                scores[name] = [score_baseline(fold, cache)._asdict() for fold in folds]
                write_json(out, {key: value for key, value in scores.items() if options.out or key in SETS})
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(score_table({name: scores[name] for name in options.set}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
