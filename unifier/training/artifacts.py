"""Test examples with their predictions, to be shown and played.

Confusion matrices of a run's test predictions.

Test scores of texts by the length of the input.

A finished run's samples, observations and report; where one fails, the scores are kept."""

import base64
import io
import random
import warnings
from bisect import bisect_right
from collections.abc import Collection, Generator, Mapping, Set
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.data.source import describe_example, target_of
from unifier.experiment import Experiment, Task
from unifier.files import write_json
from unifier.heads.classification import ClassificationHead
from unifier.heads.head import Head
from unifier.heads.text_generation import TextGenerationHead
from unifier.heads.text_metrics import sentence_bleu
from unifier.report.page import write_report
from unifier.training.lightning_module import UnifierModule
from unifier.training.probe import probe
from unifier.training.result import Result
from unifier_tokenizers import InputError, Mixture, PatchTokenizer, Tokenizer
from unifier_tokenizers.audio import Audio, resample
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.image import to_array
from unifier_tokenizers.text import WORD_START

NUM_SAMPLES = 12
"""How many test examples of each task are kept."""


MAX_SIDE = 160
"""The longer side of a kept picture is at most this, in pixels."""


SECONDS, RATE = 5.0, 16_000
"""A kept sound is its beginning, at no higher rate (Hz)."""


MAX_LETTERS = 500
"""A kept text is its beginning, if it is longer."""


def collect_samples(
    tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, Any]]
) -> dict[str, list[dict[str, str]]]:
    """For each task some test examples: input, target, prediction, and a picture or a sound where the input is one.

    An input that is shown neither way nor in words is named by its place.

    `predictions` are by task and by the example's index.
    """
    kept: dict[str, list[dict[str, str]]] = {}
    for task, one in tasks.items():
        examples, found = open_split(one.source, "test"), predictions[task]
        chosen = random.Random(0).sample(sorted(found), min(NUM_SAMPLES, len(found)))
        kept[task] = [
            {
                "input": describe_example(examples, i),
                "target": shorten(_target_in_words(one.head, example.target)),
                "prediction": shorten(one.head.describe(found[i])),
                **render_input(example.input, one.tokenizer),
            }
            for i in chosen
            for example in [examples[i]]
        ]
    return kept


def render_input(raw: Any, tokenizer: Tokenizer) -> dict[str, str]:
    """A picture as "image" and a sound as "audio", each a data URL; texts and numbers as "input".

    Of a mixture, the first picture and sound, and all texts. An array is a picture where the tokenizer reads pictures.
    """
    if isinstance(raw, Mapping):
        members = tokenizer.members if isinstance(tokenizer, Mixture) else dict.fromkeys(raw, tokenizer)
        parts = [render_input(part, members[name]) for name, part in raw.items()]
        said = ", ".join(part["input"] for part in parts if "input" in part)
        first = {kind: found for part in reversed(parts) for kind, found in part.items()}
        return {**first, "input": shorten(said)} if said else first
    if isinstance(raw, Audio | Image.Image) or isinstance(tokenizer, PatchTokenizer):
        with suppress(InputError):  # an array that is no picture, a waveform of whole numbers
            return {"audio": _flac(raw)} if isinstance(raw, Audio) else {"image": _png(raw)}
        return {}
    words = describe_input(raw)
    return {"input": shorten(words)} if words else {}


def describe_input(raw: Any) -> str:
    """A text, numbers, or a collection of them as a person would read it; empty for what is neither."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, np.ndarray | np.generic | torch.Tensor):
        return describe_input(raw.reshape(-1)[:MAX_LETTERS].tolist())
    if isinstance(raw, int | float):
        return f"{raw:.4g}" if isinstance(raw, float) else str(raw)
    if not isinstance(raw, Collection):
        return ""
    each = islice(sorted(raw, key=str) if isinstance(raw, Set) else raw, MAX_LETTERS)
    return ", ".join(filter(None, map(describe_input, each))) if raw else "none"


def _target_in_words(head: Head, target: Any) -> str:
    if isinstance(head, ClassificationHead) and not isinstance(target, str):  # a label's number
        return head.labels[int(head.encode(target))]
    return describe_input(target) or str(target)


def shorten(text: str) -> str:
    """The text, or where it is longer than `LETTERS` its beginning."""
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS - 1]}…"


def _png(raw: Image.Image | np.ndarray | torch.Tensor) -> str:
    gray = raw.mode in ("1", "L") if isinstance(raw, Image.Image) else raw.ndim == 2 or raw.shape[-1:] == (1,)
    array = to_array(raw, 1 if gray else 3)
    picture = Image.fromarray(array[:, :, 0] if gray else array)
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    data = io.BytesIO()
    picture.save(data, "PNG", optimize=True)
    return _url("image/png", data)


def _flac(sound: Audio) -> str:
    rate = min(int(sound.sample_rate), RATE)
    beginning = sound._replace(waveform=sound.waveform[..., : round(SECONDS * sound.sample_rate)])
    waveform = resample(beginning, rate, 1)
    data = io.BytesIO()
    soundfile.write(data, waveform.clamp(-1, 1).numpy(), rate, format="FLAC", subtype="PCM_16")
    return _url("audio/flac", data)


def _url(kind: str, data: io.BytesIO) -> str:
    return f"data:{kind};base64,{base64.b64encode(data.getvalue()).decode()}"


def confusion_counts(
    tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, Tensor]]
) -> dict[str, dict[str, list[Any]]]:
    """For each task of one label an example its "labels", and the "counts" of its test examples.

    These have a row for each class that is true and a column for each that was said, in the order of the labels.
    `predictions` are by task and by the example's index.
    """
    found: dict[str, dict[str, list[Any]]] = {}
    for name, task in tasks.items():
        if isinstance(task.head, ClassificationHead):
            examples, own = open_split(task.source, "test"), predictions[name]
            said = torch.stack([probabilities.argmax() for probabilities in own.values()])
            true = torch.stack([task.head.encode(target_of(examples, index)) for index in own])
            counts = multiclass_confusion_matrix(said, true, num_classes=len(task.head.labels))
            found[name] = {"labels": list(task.head.labels), "counts": counts.tolist()}
    return found


LENGTH_BUCKETS = 8
"""The most groups of test examples, as equal in number as whole lengths allow."""


def scores_by_length(
    tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, str]]
) -> dict[str, list[dict[str, float]]]:
    """For each task from text to text, groups of test examples with inputs of like length, and the BLEU of each.

    A group has the "words" of its inputs on average, the fewest ("from") and the most ("to"), and the number of its
    "examples"; the groups are the test split's alone, so that any two runs on it have the same ones.
    `predictions` are by task and by the example's index.
    """
    found: dict[str, list[dict[str, float]]] = {}
    for name, task in tasks.items():
        examples = open_split(task.source, "test")
        if not isinstance(task.head, TextGenerationHead):
            continue
        if not isinstance(examples[next(iter(predictions[name]))].input, str):  # of those that could be read
            continue
        texts = [(examples[index], said) for index, said in predictions[name].items()]
        lengths = [len(WORD_START.findall(pair.input)) for pair, _ in texts]
        starts = np.unique(np.quantile(lengths, np.arange(LENGTH_BUCKETS) / LENGTH_BUCKETS, method="lower")).tolist()
        groups: list[list[int]] = [[] for _ in starts]
        for k, length in enumerate(lengths):
            groups[bisect_right(starts, length) - 1].append(k)
        found[name] = [
            {
                "words": fmean(lengths[k] for k in group),
                "from": min(lengths[k] for k in group),
                "to": max(lengths[k] for k in group),
                "examples": len(group),
                "bleu": sentence_bleu(
                    [texts[k][1] for k in group], [texts[k][0].target for k in group], task.head.language
                ),
            }
            for group in groups
        ]
    return found


@contextmanager
def warn_on_error(folder: Path, what: str) -> Generator[None]:
    """Within it, an error is a warning of one line: what is told of a run's or a comparison's scores is not worth them.

    Ctrl-C passes.
    """
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        warnings.warn(f"{folder} has its scores, but writing {what} failed ({reason})", stacklevel=3)


def write_artifacts(
    result: Result, experiment: Experiment, model: UnifierModule, val: Mapping[str, EncodedSplit]
) -> None:
    """Write what tells of a finished run's scores; each part that fails is a warning, and the others are written."""
    with warn_on_error(result.folder, "samples.json"):
        write_json(result.folder / "samples.json", collect_samples(experiment.tasks, model.predictions))
    with warn_on_error(result.folder, "confusions.json"):
        if confused := confusion_counts(experiment.tasks, model.predictions):
            write_json(result.folder / "confusions.json", confused)
    with warn_on_error(result.folder, "lengths.json"):
        if lengths := scores_by_length(experiment.tasks, model.predictions):
            write_json(result.folder / "lengths.json", lengths)
    with warn_on_error(result.folder, "its representations and attention"):
        probe(model, val, result.folder)
    with warn_on_error(result.folder, "report.html"):
        write_report(result.folder, result.content())
