"""A head that gives a class to every pixel of a picture."""

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import IGNORE_INDEX, check_labels, check_trained_classes, list_labels
from unifier.heads.summed_metrics import SummedHead, percent
from unifier.nn.precision import in_float32
from unifier_tokenizers import InputError, Tokens, Units
from unifier_tokenizers.patches import images_to_patches, patches_to_images
from unifier_tokenizers.shares import mean_over_shares, sum_over_shares


@final
class SegmentationHead(SummedHead):
    """A head that gives a class to every pixel: the first class is the background.

    A linear layer maps each token to features of the pixels of its patch. Two 3 x 3 convolutions over the joined
    picture give the logits, so that the classes change smoothly across the borders of patches. The loss is the sum of
    the cross-entropy and the Dice loss (Milletari et al. 2016, section 3), as in nnU-Net.

    A target is a mask (H, W) of class indices, as large as the picture. A prediction is a mask (H, W) in uint8 that
    covers all patches. At the right and at the bottom, a prediction may exceed the picture by a part of a patch.
    """

    task_tag = "segmentation"

    def __init__(self, labels: Sequence[str], dim: int, *, patch: int, features: int = 8) -> None:
        """Build the head.

        Args:
            labels: The names of the C classes. The first class is the background.
            dim: D, the number of features of a token.
            patch: The side of a patch in pixels, as in the tokenizer. Patches must not overlap.
            features: The number of features of a pixel before the convolutions.
        """
        super().__init__()
        self.labels, self.dim, self.patch = check_labels(labels, minimum=2), dim, patch
        if len(self.labels) > 256:
            raise InputError(f"{len(self.labels)} labels: at most 256 fit into the 8 bits of a pixel")
        if patch < 1 or features < 1:
            raise InputError(f"patch={patch}, features={features}: both must be at least 1")
        self.out = nn.Linear(dim, features * patch * patch)
        self.smooth = nn.Conv2d(features, features, 3, padding=1)
        self.classify = nn.Conv2d(features, len(self.labels), 3, padding=1)

    def encode(self, target: Any) -> Tensor:
        """Cut a mask into patches (patch x patch, N) of class indices. Pixels outside the picture are ignored."""
        mask = np.asarray(target)
        if mask.ndim != 2 or not mask.size or mask.dtype.kind not in "biu":
            raise InputError(
                f"a mask (H, W) of class indices is expected as the target, not {mask.dtype} {mask.shape}: give one "
                "integer per pixel"
            )
        if (largest := int(mask.max())) >= len(self.labels) or mask.min() < 0:
            raise InputError(
                f"the mask has values from {mask.min()} to {largest}, but the {len(self.labels)} classes "
                f"{', '.join(self.labels)} have the indices 0 to {len(self.labels) - 1}: correct the mask"
            )
        height, width = (-(-side // self.patch) for side in mask.shape)
        padded = np.full((height * self.patch, width * self.patch), IGNORE_INDEX, np.int16)
        padded[: mask.shape[0], : mask.shape[1]] = mask
        patches = padded.reshape(height, self.patch, width, self.patch).transpose(1, 3, 0, 2)
        return torch.from_numpy(patches.reshape(self.patch**2, -1))

    def check_target(self, units: Units, target: Tensor) -> None:
        rows, columns = (units.positions.amax(1) + 1).tolist()
        if units.values.shape[-1] != rows * columns:
            raise InputError("a class token has no pixels: build the tokenizer without a class token")
        if target.shape[1] != rows * columns:
            raise InputError(
                f"the mask has {target.shape[1]} patches of {self.patch} x {self.patch} pixels, but the picture has "
                f"{rows} x {columns} patches: give a mask of the size of its picture, and the tokenizer's patch"
            )

    def check_trained(self, targets: Iterable[Tensor]) -> None:
        check_trained_classes(self.labels, targets)

    def logits(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Map Tokens (B, D, N) to logits (B, C, H, W) and the sizes of the pictures (B, 2) in pixels."""
        values = in_float32(self.out, tokens.matrix.mT).mT
        pixels, sizes = patches_to_images(values, tokens.positions, self.patch, self.patch)
        rows, columns = (torch.arange(side, device=pixels.device) for side in pixels.shape[2:])
        inside = (rows < sizes[:, :1])[:, None, :, None] & (columns < sizes[:, 1:])[:, None, None]
        with torch.autocast(pixels.device.type, enabled=False):
            smooth = functional.gelu(self.smooth(pixels)) * inside  # Zeros outside a picture, as at the canvas's edge.
            return self.classify(smooth), sizes

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the cross-entropy plus the Dice loss, with class indices (B, patch x patch, N)."""
        logits = images_to_patches(self.logits(tokens)[0], tokens.positions, self.patch, self.patch)
        logits, target = logits.unflatten(1, (len(self.labels), -1)), target.long()
        labeled = target != IGNORE_INDEX
        losses = functional.cross_entropy(logits, target, ignore_index=IGNORE_INDEX, reduction="none")
        shares = logits.softmax(1)[:, 1:] * labeled[:, None]
        classes = torch.arange(1, len(self.labels), device=target.device)
        expected = (target[:, None] == classes[:, None, None]).to(shares.dtype)
        sums = torch.stack([(shares * expected).sum((0, 2, 3)), (shares + expected).sum((0, 2, 3))])
        overlap, total = sum_over_shares(sums)
        return mean_over_shares(losses[labeled]) + 1 - ((2 * overlap + 1) / (total + 1)).mean()

    def target_counts(self, target: Tensor) -> Tensor:
        """Return 1 for each picture, because `loss` is the loss of the whole batch on every process."""
        return torch.ones(len(target), dtype=torch.int64)

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, C, H, W) of the classes of each pixel."""
        return self.logits(tokens)[0].softmax(1)

    def describe_graph(self) -> list[str]:
        return [
            "Axis 1 of `output` has the probabilities of the labels. The other axes are the example, the row and the "
            "column of a pixel.",
            "The answer of each pixel is the label with the largest probability. Ignore pixels outside the picture.",
        ]

    def predict(self, tokens: Tokens) -> list[Tensor]:
        logits, sizes = self.logits(tokens)
        masks = logits.argmax(1).to(torch.uint8).cpu()
        return [mask[:height, :width] for mask, (height, width) in zip(masks, sizes.tolist(), strict=True)]

    def statistics(self, predictions: Sequence[Tensor], targets: Sequence[Any]) -> NDArray[np.float64]:
        """Return (n, 3 + 2 C - 2): 1, the IoU and the Dice score of each picture, and the areas of each class.

        The IoU of a picture is the mean over the classes that its mask or its prediction contains, without the
        background. The IoU of a picture without such a class is 1. The areas are the intersection and the union of mask
        and prediction in pixels.
        """
        rows: list[NDArray[np.float64]] = []
        for prediction, target in zip(predictions, targets, strict=True):
            true = np.asarray(target)
            if any(size < side for size, side in zip(prediction.shape, true.shape, strict=True)):
                raise InputError(f"the mask {true.shape} is larger than the predicted mask {tuple(prediction.shape)}")
            predicted = prediction.numpy()[: true.shape[0], : true.shape[1]]
            classes = np.arange(1, len(self.labels))[:, None, None]
            both = ((predicted == classes) & (true == classes)).sum((1, 2))
            either = ((predicted == classes) | (true == classes)).sum((1, 2))
            iou = (both[either > 0] / either[either > 0]).mean() if either.any() else 1.0
            dice = (2 * both / np.maximum(both + either, 1))[either > 0].mean() if either.any() else 1.0
            rows.append(np.concatenate([[1.0, iou, dice], both, either]))
        return np.stack(rows)

    def class_scores(self, predictions: Sequence[Tensor], targets: Sequence[Any]) -> dict[str, tuple[float, float]]:
        """Return the IoU and the Dice score over all pixels of each class without the background, in percent."""
        both, either = self.statistics(predictions, targets).sum(0)[3:].reshape(2, -1).tolist()
        return {
            label: (percent(overlap, union), percent(2 * overlap, overlap + union))
            for label, overlap, union in zip(self.labels[1:], both, either, strict=True)
        }

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        """Return the mean IoU and Dice score of the pictures, and the IoU over all pixels, in percent."""
        both, either = np.split(total[3:], 2)
        shares = np.divide(both, either, out=np.full(len(both), np.nan), where=either > 0)
        pixel_iou = float(np.nanmean(shares)) if either.any() else 1.0
        return {name: 100 * x for name, x in zip(("iou", "dice"), total[1:3] / total[0], strict=True)} | {
            "pixel_iou": 100 * pixel_iou
        }

    def example_score(self, prediction: Tensor, target: Any) -> tuple[float, float]:
        return 100 * float(self.statistics([prediction], [target])[0, 1]), 1.0

    def describe_target(self, target: Any) -> str:
        return self.describe(torch.as_tensor(target))

    def describe(self, prediction: Tensor) -> str:
        shares = [f"{label} {(prediction == c).double().mean():.1%}" for c, label in enumerate(self.labels)]
        return ", ".join(shares[1:])

    def describe_task(self, noun: str) -> str:
        return f"gives each pixel of {noun} one of {len(self.labels):,} classes: {list_labels(self.labels)}."

    def describe_answer(self) -> str:
        return (
            f"The model joins the patches of {self.patch} x {self.patch} pixels to a picture of logits. The answer is "
            f"the class with the highest of the {len(self.labels):,} logits of each pixel."
        )
