"""Confusion matrices of a run's test predictions."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from unifier.data.examples import split_of
from unifier.data.source import target_of
from unifier.heads.classification import ClassificationHead
from unifier.study.experiment import Arm


def confusions(
    arms: Mapping[str, Arm], predictions: Mapping[str, Mapping[int, Tensor]]
) -> dict[str, dict[str, list[Any]]]:
    """For each arm of one label an example its "labels", and the "counts" of its test examples.

    These have a row for each class that is true and a column for each that was said, in the order of the labels.
    `predictions` are by arm and by the example's index.
    """
    found: dict[str, dict[str, list[Any]]] = {}
    for name, arm in arms.items():
        if isinstance(arm.head, ClassificationHead):
            examples, own = split_of(arm.source, "test"), predictions[name]
            said = torch.stack([probabilities.argmax() for probabilities in own.values()])
            true = torch.stack([arm.head.encode(target_of(examples, index)) for index in own])
            counts = multiclass_confusion_matrix(said, true, num_classes=len(arm.head.labels))
            found[name] = {"labels": list(arm.head.labels), "counts": counts.tolist()}
    return found
