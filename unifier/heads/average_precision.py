"""Average precision of resampled pictures, from one evaluation by pycocotools."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

MAX_DETECTIONS = 100
"""The largest number of objects of a picture that are compared, as in COCO."""


@final
class BoxEvaluation:
    """Evaluation of found objects by COCO's rules. The pictures are compared once, and any of them can be scored."""

    def __init__(
        self, found: Sequence[tuple[Any, Any, Any]], true: Sequence[tuple[Any, Any]], num_classes: int
    ) -> None:
        """Compare the found objects of each picture with its true objects.

        Args:
            found: The corners (M, 4), the classes (M,) and the scores (M,) of the objects of each picture.
            true: The corners (M, 4) and the classes (M,) of the objects of each picture.
            num_classes: C, the number of classes.
        """
        # The import is here, so only scored models load pycocotools.
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        self._num_pictures = len(true)
        with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress.
            truth: Any = COCO()
            answers: Any = COCO()
            for coco, objects in ((truth, true), (answers, found)):
                coco.dataset = {
                    "images": [{"id": i} for i in range(len(objects))],
                    "categories": [{"id": c} for c in range(num_classes)],
                    "annotations": _annotations(objects),
                }
                coco.createIndex()
            self._evaluator: Any = COCOeval(truth, answers, "bbox")
            parameters = self._evaluator.params
            parameters.areaRng, parameters.areaRngLbl = parameters.areaRng[:1], ["all"]
            parameters.maxDets = [MAX_DETECTIONS]
            # torchmetrics, which computes the scores, has thresholds that are rounded to float32.
            parameters.iouThrs, parameters.recThrs = (
                torch.linspace(low, high, count).double().numpy() for low, high, count in ((0.5, 0.95, 10), (0, 1, 101))
            )
            self._evaluator.evaluate()
        self._compared = np.array([*self._evaluator.evalImgs, None], object)[:-1].reshape(num_classes, -1)

    def precisions(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the average precision (10, C) for the IoUs 0.5, 0.55, ... 0.95 and each class.

        A class without true objects has NaN.

        Args:
            rows: The indices of the pictures. A picture may occur several times.
        """
        # `accumulate` reads the number of pictures from `params`, and from the copy of `params` that `evaluate` made.
        evaluator = self._evaluator
        evaluator.params.imgIds = evaluator._paramsEval.imgIds = [*range(len(rows))]
        evaluator.evalImgs = self._compared[:, rows].ravel().tolist()
        with contextlib.redirect_stdout(io.StringIO()):
            evaluator.accumulate()
        precision = evaluator.eval["precision"][..., 0, 0].mean(1)
        return np.where(precision < 0, np.nan, precision)


def _annotations(pictures: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return the objects of all pictures in COCO's format: a box has its left and upper border, and its size."""
    annotations: list[dict[str, Any]] = []
    for i, (corners, labels, *scores) in enumerate(pictures):
        boxes = np.asarray(corners, float).reshape(-1, 4)
        for k, ((x0, y0, x1, y1), label) in enumerate(zip(boxes.tolist(), np.asarray(labels).tolist(), strict=True)):
            box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0), "iscrowd": 0}
            entry = {"id": len(annotations) + 1, "image_id": i, "category_id": int(label), **box}
            annotations.append(entry | ({"score": float(scores[0][k])} if scores else {}))
    return annotations
