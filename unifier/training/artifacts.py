"""The files that a finished run writes in addition to its scores.

The files contain predictions, samples, confusion matrices, scores by length, representations, attention, the shares of
experts and the report.
"""

import os
import random
import warnings
from bisect import bisect_right
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.data.inputs import reader_of
from unifier.data.source import Example, describe_example, optional_method, target_of
from unifier.experiment import Experiment, Task
from unifier.figures.forecast_figures import draw_forecasts
from unifier.figures.render import (
    describe_answer,
    render_boxes,
    render_input,
    render_masks,
    render_spans,
    render_times,
    shorten,
)
from unifier.figures.speech_figures import render_speech
from unifier.figures.tokenizer_figures import draw_tokenizers
from unifier.files import HASHES_FILE, read_json, to_json, write_csv, write_json
from unifier.heads.classification import ClassificationHead
from unifier.heads.grouped_text import GroupedText
from unifier.heads.question_answering import QuestionAnsweringHead
from unifier.heads.score_intervals import score_intervals
from unifier.heads.sentence_selection import SentenceSelectionHead
from unifier.heads.text_generation import TextGenerationHead
from unifier.heads.text_metrics import sentence_bleu
from unifier.heads.token_classification import TokenClassificationHead
from unifier.models.card import write_card
from unifier.models.folder import MODEL_FOLDER, ModelTask, StoredModel, write_model
from unifier.nn.lora import merge_lora
from unifier.report.page import write_report
from unifier.training.continued_samples import continue_samples
from unifier.training.lightning_module import UnifierModule
from unifier.training.maps import write_maps
from unifier.training.probe import probe
from unifier.training.reconstruction_figures import draw_reconstructions
from unifier.training.result import Result
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.text import WORD_START

NUM_SAMPLES = 12
"""Number of test examples per task in samples.json."""

MAX_DENSE_CLASSES = 100
"""Maximum number of classes with a dense confusion matrix in confusions.json, whose size is quadratic."""

LENGTH_BUCKETS = 8
"""Maximum number of groups of test examples per task in lengths.json."""

PREDICTION_COLUMNS = ("task", "index", "example_id", "target", "prediction", "score", "weight", "groups", "cluster")


def write_artifacts(
    result: Result, experiment: Experiment, model: UnifierModule, val: Mapping[str, EncodedSplit], *, maps: bool
) -> None:
    """Write the files of a finished run. If a file cannot be written, print a warning and continue with the next file.

    Args:
        result: The result of the run.
        experiment: The experiment of the run.
        model: The trained model with its predictions on the test split.
        val: The validation split of each task.
        maps: Write maps.json. The trials of a comparison have no maps, because t-SNE takes a second for each task.
    """
    folder, tasks, predictions = result.folder, experiment.tasks, model.predictions
    with warn_on_error(folder, "predictions.csv"):
        write_csv(folder / "predictions.csv", prediction_rows(tasks, predictions), PREDICTION_COLUMNS)
    with warn_on_error(folder, "samples.json"):
        write_json(folder / "samples.json", collect_samples(tasks, predictions, model))
    with warn_on_error(folder, "confusions.json"):
        if confusions := confusion_counts(tasks, predictions):
            write_json(folder / "confusions.json", confusions)
    with warn_on_error(folder, "lengths.json"):
        if lengths := scores_by_length(tasks, predictions):
            write_json(folder / "lengths.json", lengths)
    with warn_on_error(folder, "distances.json"):
        if distances := scores_by_distance(tasks, predictions):
            write_json(folder / "distances.json", distances)
    with warn_on_error(folder, "its representations, attention and experts"):
        probe(model, val, folder)
    with warn_on_error(folder, "the figures of its tokenizers"):
        draw_tokenizers(tasks, folder)
    with warn_on_error(folder, "maps.json"):
        if maps:
            write_maps(tasks, val, folder)
    with warn_on_error(folder, "its reconstructions"):
        draw_reconstructions(model, val, folder)
    with warn_on_error(folder, "its forecasts"):
        draw_forecasts(tasks, predictions, folder)
    with warn_on_error(folder, "the model"):
        save_model(result, experiment, model)
    with warn_on_error(folder, HASHES_FILE):
        write_json(folder / HASHES_FILE, hash_run_files(folder))
    with warn_on_error(folder, "report.html"):
        write_report(folder, result.content())


def save_model(result: Result, experiment: Experiment, model: UnifierModule) -> None:
    """Write the folder of the trained model into the folder of the run.

    Args:
        result: The result of the run.
        experiment: The experiment of the run.
        model: The trained model.
    """
    merge_lora(model.trunk)
    longest = read_json(result.folder / "settings.json", longest=dict)["longest"]
    tasks = {
        name: ModelTask(
            task.tokenizer,
            task.head,
            reader_of(
                task.source,
                task.tokenizer,
                marked=task.head.marked_text or (task.objective is not None and task.objective.marked_text),
            ),
            longest[name],
            task.tta,
            task.objective,
        )
        for name, task in experiment.tasks.items()
    }
    intervals: dict[str, dict[str, float | str]] = {}
    with warn_on_error(result.folder, "the intervals of the scores"):
        intervals = intervals_of_scores(experiment.tasks, model.predictions)
    facts = {
        "scores": {name: score for name, score in result.metrics.items() if name.startswith("test/")},
        "intervals": intervals,
        "data": result.data,
        "seed": result.seed,
        "parameters": result.parameters,
        "budget": result.budget,
        "settings": {name: _without_folder(value) for name, value in result.settings.items()},
        "versions": result.versions,
        "lineage": result.lineage,
    }
    stored = StoredModel(result.name, model.trunk, tasks, experiment.training.batch_tokens, to_json(facts))
    write_model(result.folder / MODEL_FOLDER, stored, write_card(stored))


def intervals_of_scores(
    tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, Any]]
) -> dict[str, dict[str, float | str]]:
    """Return the ends and the method of the interval of each test score (see `score_intervals`).

    Args:
        tasks: A mapping from task name to task.
        predictions: For each task, a mapping from example index to prediction.
    """
    intervals: dict[str, dict[str, float | str]] = {}
    for name, task in tasks.items():
        examples, answers = open_split(task.source, "test"), predictions[name]
        targets = [target_of(examples, index) for index in answers]
        found = score_intervals(task.head, list(answers.values()), targets)
        intervals |= {f"test/{name}/{metric}": interval._asdict() for metric, interval in found.items()}
    return intervals


def _without_folder(value: Any) -> Any:
    """Return a setting. A path becomes its last part, because a model's folder contains no path of the machine."""
    if isinstance(value, dict):
        return {name: _without_folder(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folder(item) for item in value]
    return Path(value).name if isinstance(value, str) and os.sep in value else value


def hash_run_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 hash of each result file in a run's folder that has no hash itself.

    A later command refuses a file with another hash.
    """
    names = [*(f"{name}.csv" for name in ("metrics", "predictions", "interference")), "representations.npz"]
    names += [
        f"{name}.json" for name in ("samples", "confusions", "lengths", "distances", "attention", "experts", "maps")
    ]
    for kind in ("attention", "forecast", "reconstruction", "reference", "tokenizer"):
        names += [path.relative_to(folder).as_posix() for path in sorted(folder.glob(f"figures/{kind}-*.svg"))]
    return {name: sha256((folder / name).read_bytes()).hexdigest() for name in names if (folder / name).exists()}


@contextmanager
def warn_on_error(folder: Path, description: str) -> Generator[None]:
    """Convert an exception in the `with` block into a one-line warning.

    An error in a plot must not destroy finished scores. KeyboardInterrupt is not caught.
    """
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        warnings.warn(f"{folder}: the scores are safe, but writing {description} failed ({reason})", stacklevel=3)


def prediction_rows(tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, Any]]) -> list[dict[str, Any]]:
    """Return a row of predictions.csv for each test example, with the target and the prediction as text.

    The columns `score` and `weight` contain the head's `example_score`, and are empty if the head has none. The column
    `groups` contains the names of a target's groups, separated by spaces, and `cluster` the name of its cluster.

    Args:
        tasks: A mapping from task name to task.
        predictions: For each task, a mapping from example index to prediction.
    """
    rows: list[dict[str, Any]] = []
    for name, task in tasks.items():
        examples = open_split(task.source, "test")
        for index, prediction in sorted(predictions[name].items()):
            target = target_of(examples, index)
            needs_input = isinstance(task.head, TokenClassificationHead | SentenceSelectionHead | QuestionAnsweringHead)
            values = (
                describe_example(examples, index),
                *describe_answer(task, examples[index].input if needs_input else None, target, prediction),
                *(task.head.example_score(prediction, target) or ("", "")),
                *((" ".join(target.groups), target.cluster) if isinstance(target, GroupedText) else ("", "")),
            )
            rows.append(dict(zip(PREDICTION_COLUMNS, (name, index, *values), strict=True)))
    return rows


def collect_samples(
    tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, Any]], model: UnifierModule | None = None
) -> dict[str, list[dict[str, str]]]:
    """Return the inputs, targets and predictions of random test examples of each task.

    Pictures and sounds are added as data URLs.

    Args:
        tasks: A mapping from task name to task.
        predictions: For each task, a mapping from example index to prediction.
        model: The trained model, which continues pictures and tunes. None means no continuations.
    """
    samples: dict[str, list[dict[str, str]]] = {}
    for name, task in tasks.items():
        examples = open_split(task.source, "test")
        chosen = random.Random(0).sample(sorted(predictions[name]), min(NUM_SAMPLES, len(predictions[name])))
        continued = [dict[str, str]() for _ in chosen]
        if model is not None:
            continued = continue_samples(model, task, [examples[index].input for index in chosen])
        samples[name] = [
            {
                "input": describe_example(examples, index),
                # With an objective, the head predicts parts of the input, and not the target of the data set.
                "target": "" if task.objective else shorten(target),
                "prediction": shorten(prediction),
                **render_input(example.input, task.tokenizer),
                **render_masks(task.head, *example, predictions[name][index]),
                **render_boxes(task.head, *example, predictions[name][index]),
                **render_spans(task.head, *example, predictions[name][index]),
                **render_times(task, *example, predictions[name][index]),
                **render_speech(task, *example, predictions[name][index]),
                **({"marks": "entities"} if getattr(task.head, "marks_entities", False) else {}),
                **continuation,
            }
            for index, continuation in zip(chosen, continued, strict=True)
            for example in [examples[index]]
            for target, prediction in [describe_answer(task, *example, predictions[name][index])]
        ]
    return samples


def confusion_counts(
    tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, Tensor]]
) -> dict[str, dict[str, list[Any]]]:
    """Return the confusion matrix of each classification task.

    Args:
        tasks: A mapping from task name to task.
        predictions: For each task, a mapping from example index to prediction.

    Returns:
        For each task, the "labels" of the C classes and the matrix "counts" (C, C). The matrix rows are true classes,
        and the matrix columns are predicted classes. With more than `MAX_DENSE_CLASSES` classes, there are "cells"
        instead: the true class, the predicted class and the count of each nonzero entry of the matrix.
    """
    confusions: dict[str, dict[str, list[Any]]] = {}
    for name, task in tasks.items():
        if isinstance(task.head, ClassificationHead):
            examples = open_split(task.source, "test")
            predicted = torch.stack([probabilities.argmax() for probabilities in predictions[name].values()])
            true = torch.stack([task.head.encode(target_of(examples, index)) for index in predictions[name]])
            labels = list(task.head.labels)
            if len(labels) > MAX_DENSE_CLASSES:
                cells, counts = torch.stack([true, predicted], 1).unique(dim=0, return_counts=True)
                confusions[name] = {"labels": labels, "cells": torch.cat([cells, counts[:, None]], 1).tolist()}
            else:
                matrix = multiclass_confusion_matrix(predicted, true, num_classes=len(labels))
                confusions[name] = {"labels": labels, "counts": matrix.tolist()}
    return confusions


def scores_by_length(
    tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, str]]
) -> dict[str, list[dict[str, float]]]:
    """Return BLEU by input length for each text-to-text task.

    Runs with the same test split have equal groups of test examples.

    Args:
        tasks: A mapping from task name to task.
        predictions: For each task, a mapping from example index to prediction.

    Returns:
        For each task, a list of groups. The keys of a group are "examples" (number of examples), "bleu", "words" (mean
        number of words in an input), "from" (minimum number of words) and "to" (maximum number of words).
    """
    scores: dict[str, list[dict[str, float]]] = {}
    for name, task in tasks.items():
        examples = open_split(task.source, "test")
        if not isinstance(task.head, TextGenerationHead) or task.head.scores != "bleu":
            continue
        if not isinstance(examples[next(iter(predictions[name]))].input, str):
            continue
        pairs = [(examples[index], prediction) for index, prediction in predictions[name].items()]
        scores[name] = _bleu_by_length(pairs, task.head.language)
    return scores


def scores_by_distance(
    tasks: Mapping[str, Task], predictions: Mapping[str, Mapping[int, Any]]
) -> dict[str, list[dict[str, float]]]:
    """Return the score by distance for each task whose test split has a method `distance`, which returns a number.

    Args:
        tasks: A mapping from task name to task.
        predictions: For each task, a mapping from example index to prediction.

    Returns:
        For each task, a list of groups in the order of the distances. The keys of a group are "distance", "examples"
        (number of examples) and "score" (the weighted mean of the head's example scores).
    """
    scores: dict[str, list[dict[str, float]]] = {}
    for name, task in tasks.items():
        examples = open_split(task.source, "test")
        if (distance := optional_method(examples, "distance")) is None:
            continue
        groups: dict[int, list[tuple[float, float]]] = {}
        for index, prediction in predictions[name].items():
            if (scored := task.head.example_score(prediction, target_of(examples, index))) is not None:
                groups.setdefault(distance(index), []).append(scored)
        if groups:
            scores[name] = [
                {"distance": n, "examples": len(group), "score": fmean(*zip(*group, strict=True))}
                for n, group in sorted(groups.items())
            ]
    return scores


def _bleu_by_length(pairs: Sequence[tuple[Example, str]], language: str) -> list[dict[str, float]]:
    lengths = [len(WORD_START.findall(example.input)) for example, _ in pairs]
    starts = np.unique(np.quantile(lengths, np.arange(LENGTH_BUCKETS) / LENGTH_BUCKETS, method="lower")).tolist()
    groups: list[list[int]] = [[] for _ in starts]
    for k, length in enumerate(lengths):
        groups[bisect_right(starts, length) - 1].append(k)
    return [
        {
            "words": fmean(lengths[k] for k in group),
            "from": min(lengths[k] for k in group),
            "to": max(lengths[k] for k in group),
            "examples": len(group),
            "bleu": sentence_bleu([pairs[k][1] for k in group], [pairs[k][0].target for k in group], language),
        }
        for group in groups
    ]
