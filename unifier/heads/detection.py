"""The base class of heads that find the objects of a picture: boxes with classes, and their average precision."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.heads.head import IGNORE_INDEX, Head, check_labels, list_labels
from unifier_tokenizers import InputError, Tokens, Units

STEPS_PER_PIXEL = 16
"""Encoded corners are multiples of this part of a pixel."""

MIN_SCORE = 0.5
"""The smallest score of an object that is described in a text or drawn."""

MAX_OBJECTS = 100
"""The largest number of objects that a prediction contains, as in COCO."""


@final
class Boxes(NamedTuple):
    """The true objects of a picture."""

    corners: NDArray[np.float64]
    """The left, upper, right and lower border (M, 4) of each object, in pixels of the picture."""
    labels: NDArray[np.int64]
    """The index of the class (M,) of each object."""


@final
class FoundBoxes(NamedTuple):
    """The objects that a model finds in a picture, with the highest score first."""

    corners: Tensor
    """The left, upper, right and lower border (M, 4) of each object, in pixels of the picture that the model reads."""
    labels: Tensor
    """The index of the class (M,) of each object."""
    scores: Tensor
    """The score (M,) of each object, from 0 to 1."""


class DetectionHead(Head):
    """Base class of heads that find objects. A target is a `Boxes`, and a prediction is a `FoundBoxes`."""

    task_tag = "object-detection"
    labels: tuple[str, ...]
    patch: int

    def __init__(self, labels: Sequence[str], dim: int, *, patch: int) -> None:
        """Build the head.

        Args:
            labels: The names of the C classes.
            dim: D, the number of features of a token.
            patch: The side of a patch in pixels, as in the tokenizer. Patches must not overlap.
        """
        super().__init__()
        if patch < 1:
            raise InputError(f"patch={patch}: at least 1 pixel is needed")
        self.labels, self.dim, self.patch = check_labels(labels), dim, patch

    @abstractmethod
    def predict(self, tokens: Tokens) -> list[FoundBoxes]: ...

    @final
    def encode(self, target: Any) -> Tensor:
        """Return the class and the corners of each object (5, M), and `IGNORE_INDEX` for a picture without objects."""
        corners, labels = (np.asarray(part) for part in self._checked(target))
        if not len(labels):
            return torch.full((5, 1), IGNORE_INDEX, dtype=torch.int32)
        rows = np.vstack([labels[None], np.rint(corners.T * STEPS_PER_PIXEL)])
        return torch.from_numpy(rows.astype(np.int32))

    def _checked(self, target: Any) -> Boxes:
        if not isinstance(target, Boxes):
            raise InputError(f"boxes are expected as the target, not a {type(target).__name__}: give uf.Boxes")
        corners, labels = np.asarray(target.corners, float).reshape(-1, 4), np.asarray(target.labels, int).reshape(-1)
        if len(corners) != len(labels):
            raise InputError(f"{len(corners)} boxes and {len(labels)} labels: give one label per box")
        for (x0, y0, x1, y1), label in zip(corners.tolist(), labels.tolist(), strict=True):
            box = f"the box ({x0:g}, {y0:g}, {x1:g}, {y1:g})"
            if not 0 <= label < len(self.labels):
                raise InputError(f"{box} has the class {label}, but the indices are 0 to {len(self.labels) - 1}")
            if not (np.isfinite([x0, y0, x1, y1]).all() and min(x0, y0) >= 0):
                raise InputError(f"{box} is not inside its picture: correct the box")
            if min(x1 - x0, y1 - y0) <= 1 / STEPS_PER_PIXEL:
                raise InputError(f"{box} has no area: its right and lower borders must exceed the others")
        return Boxes(corners, labels)

    @final
    def check_target(self, units: Units, target: Tensor) -> None:
        rows, columns = (units.positions.amax(1) + 1).tolist()
        if units.values.shape[-1] != rows * columns:
            raise InputError("a class token has no place in the picture: build the tokenizer without a class token")
        limits = torch.tensor([columns, rows])[:, None] * self.patch * STEPS_PER_PIXEL
        if (target[3:] > limits).any():
            width, height = target[3:].amax(1).tolist()
            raise InputError(
                f"a box reaches to ({width / STEPS_PER_PIXEL:g}, {height / STEPS_PER_PIXEL:g}), but the picture has "
                f"{columns} x {rows} patches of {self.patch} pixels: give boxes inside their picture"
            )

    @final
    def check_trained(self, targets: Iterable[Tensor]) -> None:
        found = {int(label) for target in targets for label in target[0].tolist()}
        if missing := [name for c, name in enumerate(self.labels) if c not in found]:
            raise InputError(f"no training picture has a box of {', '.join(missing)}: leave out these labels")

    @final
    def true_boxes(self, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the corners (B, M, 4) in pixels, the classes (B, M), and True for objects (B, M)."""
        labels = target[:, 0].long()
        return target[:, 1:].mT.float() / STEPS_PER_PIXEL, labels.clamp(min=0), labels != IGNORE_INDEX

    @final
    def canvas_sizes(self, tokens: Tokens) -> Tensor:
        """Return the width, height, width and height (B, 4) of the patches of each picture, in pixels."""
        height, width = ((tokens.positions.amax(2) + 1) * self.patch).float().T
        return torch.stack([width, height, width, height], 1)

    @final
    def metrics(self, predictions: Sequence[FoundBoxes], targets: Sequence[Boxes]) -> dict[str, float]:
        """Return COCO's average precision in percent: at an IoU of 0.5, over ten IoUs, and by class at 0.5.

        Without any true object, the first two are 0. The precision of a class without true objects is NaN.
        """
        # The import is here, so only scored models load torchmetrics.
        from torchmetrics.detection import MeanAveragePrecision

        found = [{"boxes": corners, "labels": labels, "scores": scores} for corners, labels, scores in predictions]
        true = [
            {"boxes": each.corners, "labels": each.labels} for each in map(true_objects, map(self._checked, targets))
        ]
        results = dict[str, dict[str, Tensor]]()
        for name, thresholds in (("ap50", [0.5]), ("ap", None)):
            metric = MeanAveragePrecision(iou_thresholds=thresholds, class_metrics=name == "ap50")
            metric.update(found, true)
            results[name] = metric.compute()
        scores = {name: max(float(result["map"]), 0.0) for name, result in results.items()}
        classes, values = (results["ap50"][key].reshape(-1).tolist() for key in ("classes", "map_per_class"))
        scores |= {f"ap50_{self.labels[c]}": value for c, value in zip(classes, values, strict=True)}
        # -1 means that no object is true.
        return {name: 100 * score if score >= 0 else math.nan for name, score in scores.items()}

    def describe(self, prediction: FoundBoxes) -> str:
        """Return the numbers of objects with a score of at least `MIN_SCORE`, such as "12 RBC, 1 WBC"."""
        counts = torch.bincount(prediction.labels[prediction.scores >= MIN_SCORE], minlength=len(self.labels)).tolist()
        named = zip(counts, self.labels, strict=True)
        return ", ".join(f"{count} {label}" for count, label in named if count) or "no objects"

    def list_objects(self, prediction: FoundBoxes) -> str:
        """Return the objects with a score of at least `MIN_SCORE`, such as "RBC 0.93 (12, 40, 55, 83)"."""
        rows = zip(*(part.tolist() for part in prediction), strict=True)
        return "; ".join(
            f"{self.labels[label]} {score:.2f} ({', '.join(f'{x:.0f}' for x in corners)})"
            for corners, label, score in rows
            if score >= MIN_SCORE
        )

    def describe_target(self, target: Any) -> str:
        return self.describe(true_objects(self._checked(target)))

    def describe_task(self, noun: str) -> str:
        return f"finds the objects of {noun}, with boxes of {len(self.labels):,} classes: {list_labels(self.labels)}."

    def describe_answer(self) -> str:
        return "The answer is a list of boxes in pixels, each with the index of its label and a score from 0 to 1."


def true_objects(target: Boxes) -> FoundBoxes:
    """Return the true objects of a picture as objects with the score 1."""
    corners, labels = np.asarray(target.corners, np.float32).reshape(-1, 4), np.asarray(target.labels, np.int64)
    return FoundBoxes(torch.from_numpy(corners), torch.from_numpy(labels), torch.ones(len(labels)))


def center_boxes(corners: Tensor) -> Tensor:
    """Convert corners (..., 4) to the centers, the width and the height (..., 4)."""
    from torchvision.ops import box_convert

    return box_convert(corners, "xyxy", "cxcywh")
