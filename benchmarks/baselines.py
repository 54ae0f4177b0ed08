"""`python -m benchmarks.baselines SET... --data DIR`: what a support vector machine reaches on our sources' splits.

A set is one of those named here, or your own: a folder or a table of one label each, as `pictures` and `genres` take
them. A sound is the mean and the standard deviation over time of 20 mel-frequency cepstral coefficients and of their
deltas, each scaled to unit variance over the training split. A picture is the first 100 principal components of its
pixels, of your own shrunk to 32 on the longer side and black around that, and of more than 10,000 training pictures so
many are drawn, always the same, so that a set takes minutes. An RBF kernel's C and width are chosen on the validation
split; the chosen machine, trained on the training split alone, then looks at the test split once, and so does one of
the same settings that is trained on both (refit).
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

from benchmarks.racing.tables import head, row
from unifier.data.readers import AUDIO_SUFFIXES
from unifier.data.source import SPLITS, Example, LabeledSource, describe_example, use_data_folder
from unifier.datasets.factory import IMAGE_DATASETS, create_audio_dataset, create_image_dataset
from unifier.datasets.image_folder import ImageFolder
from unifier.files import read_json, write_json
from unifier_tokenizers import Audio, InputError

COEFFICIENTS, BANDS = 20, 40
WINDOW, HOP = 0.032, 0.010
"""In seconds."""
COMPONENTS = 100
SIDE = 32
"""Of a picture of your own, in pixels."""
MOST = 10_000
"""Training pictures."""
COSTS = (1.0, 3.0, 10.0, 30.0)
WIDTHS = (0.1, 0.3, 1.0, 3.0)
"""Values of gamma, in units of 1 / (features x their variance)."""


def _folds(data: str, folds: Iterable[int | None], task: Literal["genre", "tags"] = "genre") -> list[LabeledSource]:
    return [create_audio_dataset(data, target=task, fold=fold) for fold in folds]


SETS: dict[str, Callable[[], list[LabeledSource]]] = {
    "emotify": partial(_folds, "emotify", range(5)),
    "emotify_tags": partial(_folds, "emotify", range(5), "tags"),
    "fsdd": partial(_folds, "fsdd", [None]),
    "fsdd_speakers": partial(_folds, "fsdd", range(6)),
    "esc10": partial(_folds, "esc10", range(1, 6)),
    "esc50": partial(_folds, "esc50", range(1, 6)),
    "gtzan": partial(_folds, "gtzan", [None]),
    **{name: lambda name=name: [create_image_dataset(name)] for name in IMAGE_DATASETS if name != "embedded"},
}
"""Of each name the sources that are tested on, one a fold."""


def own(place: str) -> list[LabeledSource]:
    """The same of pictures or sounds of your own, a folder or a table of sounds."""
    if not Path(place).exists():
        raise InputError(f"{place}: neither a place nor one of the sets {', '.join(SETS)}")
    files = (file for _, _, names in os.walk(place, followlinks=True) for file in names)
    heard = Path(place).is_file() or any(Path(file).suffix.lower() in AUDIO_SUFFIXES for file in files)
    source = partial(create_audio_dataset, place) if heard else partial(create_image_dataset, place, size=SIDE)
    return [source(fold=fold) for fold in getattr(source(), "folds", ()) or (None,)]


class Figure(NamedTuple):
    """What one source's machine reached, as a share of 1: accuracy, or of tags the macro ROC-AUC."""

    test: float
    refit: float
    """On the test split too, trained on validation as well."""
    validation: float
    cost: float
    width: float
    trained: int
    """Examples."""


@lru_cache
def _transform(rate: int) -> MFCC:
    sides = {"n_fft": 1 << (int(WINDOW * rate) - 1).bit_length(), "hop_length": round(HOP * rate), "n_mels": BANDS}
    return MFCC(rate, COEFFICIENTS, melkwargs=sides)


def describe(raw: Any, side: int = 0) -> NDArray[np.floating]:
    """A sound's statistics (80,), or a picture's pixels, in 0 to 1, with black around it up to a square of `side`."""
    if not isinstance(raw, Audio):
        lacking = [(0, max(side - length, 0)) for length in raw.shape[:2]]
        return np.pad(raw, [*lacking, (0, 0)][: raw.ndim]).ravel() / np.float32(255)
    waveform, transform = torch.as_tensor(raw.waveform), _transform(raw.sample_rate)
    waveform = waveform.mean(0) if waveform.ndim == 2 else waveform
    waveform = functional.pad(waveform, (0, max(transform.MelSpectrogram.n_fft - len(waveform), 0)))
    coefficients = transform(waveform)
    both = torch.cat([coefficients, compute_deltas(coefficients)])
    return torch.cat([both.mean(1), both.std(1, correction=0)]).numpy()


def _read(
    examples: Sequence[Example], known: dict[str, Example] | None, side: int
) -> tuple[NDArray[np.floating], list[Any]]:
    """Features (examples, features) and targets; what is in `known` by its place is not read again."""
    known = {} if known is None else known
    places = [describe_example(examples, index) for index in range(len(examples))]
    for index, place in enumerate(places):
        if place not in known:
            raw, target = examples[index]
            known[place] = Example(describe(raw, side), target)
    return np.stack([known[place].input for place in places]), [known[place].target for place in places]


def _quality(machine: Any, features: NDArray[np.floating], targets: Any) -> float:
    if targets.ndim == 1:
        return float(machine.score(features, targets))
    both = (targets.min(0) == 0) & (targets.max(0) == 1)  # of one class alone there is no ROC
    return float(roc_auc_score(targets[:, both], machine.decision_function(features)[:, both], average="macro"))


def baseline(source: LabeledSource, known: dict[str, Example] | None = None) -> Figure:
    """Choose on validation, then test once; `known` keeps the features of files, by their places, for other folds."""
    side = SIDE if isinstance(source, ImageFolder) else 0
    features, targets = zip(*(_read(source.split(name), known, side) for name in SPLITS), strict=True)
    tags, pictures = isinstance(targets[0][0], tuple), not isinstance(source.split("train")[0].input, Audio)
    wanted: list[Any] = [
        MultiLabelBinarizer(classes=source.labels).fit_transform(own) if tags else np.array(own) for own in targets
    ]

    @lru_cache
    def scaled(splits: int) -> tuple[Any, NDArray[np.floating], Any]:
        """The scale that fits so many splits, their features by it, and their targets."""
        inputs, outputs = np.concatenate(features[:splits]), np.concatenate(wanted[:splits])
        drawn = np.arange(len(inputs))
        scale: Any = StandardScaler()
        if pictures:
            drawn = np.sort(np.random.RandomState(0).permutation(drawn)[:MOST])
            scale = PCA(min(COMPONENTS, len(drawn), inputs.shape[1]), random_state=0)
        return scale, scale.fit_transform(inputs[drawn]), outputs[drawn]

    def fit(cost: float, width: float, splits: int = 1) -> Any:
        """A machine for the features of so many splits."""
        scale, inputs, outputs = scaled(splits)
        machine = SVC(C=cost, gamma=width / (inputs.shape[1] * inputs.var()))
        return make_pipeline(scale, (OneVsRestClassifier(machine) if tags else machine).fit(inputs, outputs))

    tried = [(_quality(fit(*pair), features[1], wanted[1]), pair) for pair in ((c, w) for c in COSTS for w in WIDTHS)]
    validation, chosen = max(tried, key=lambda one: one[0])  # the first of equals
    test, refit = (_quality(fit(*chosen, splits=splits), features[2], wanted[2]) for splits in (1, 2))
    return Figure(test, refit, validation, *chosen, len(scaled(1)[1]))


def table(found: dict[str, Any]) -> str:
    """Means over folds, and each fold."""
    lines = [head(["set", "metric", "test", "folds", "refit", "validation"], (0, 1, 3))]
    for name, figures in found.items():
        test, refit, validation = ([100 * one[key] for one in figures] for key in ("test", "refit", "validation"))
        metric = "macro ROC-AUC" if name == "emotify_tags" else "accuracy"
        folds = ", ".join(f"{one:.1f}" for one in test) if len(test) > 1 else ""
        means = [f"{np.mean(one):.1f}" for one in (test, refit, validation)]
        lines.append(row([name, metric, means[0], folds, *means[1:]]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baselines", description="Score simple baselines.")
    parser.add_argument("set", nargs="+", help=f"of {', '.join(SETS)}, or a place of your own", metavar="SET")
    parser.add_argument("--data", type=Path, help="the folder of data sets (default: $UNIFIER_DATA)", metavar="DIR")
    parser.add_argument("--out", type=Path, help="(default: baselines.json here, of named sets alone)", metavar="FILE")
    asked = parser.parse_args(arguments)
    out = asked.out or Path(__file__).with_suffix(".json")
    found: dict[str, Any] = read_json(out) if out.exists() else {}
    try:
        with use_data_folder(asked.data):
            of = {name: SETS.get(name, partial(own, name))() for name in asked.set}
            for name, sources in of.items():
                known = dict[str, Example]()
                found[name] = [baseline(one, known if len(sources) > 1 else None)._asdict() for one in sources]
                write_json(out, {each: figures for each, figures in found.items() if asked.out or each in SETS})
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(table({name: found[name] for name in asked.set}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
