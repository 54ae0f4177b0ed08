"""A head that finds objects with one box per token of a picture, as in one-stage detectors."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from unifier.heads.detection import MAX_OBJECTS, DetectionHead, FoundBoxes
from unifier.nn.precision import in_float32
from unifier_tokenizers import Tokens

CENTER_RADIUS = 1.0
"""A token learns a box whose center is at most this number of patches away, in rows and in columns (see FCOS)."""

OBJECT_PRIOR = 0.01
"""The first probability of each class of a token (Lin et al. 2017, section 4.1)."""

IOU_WEIGHT = 2.0
"""The weight of the boxes in the loss, relative to the classes."""

MAX_OVERLAP = 0.5
"""The largest IoU of two boxes of a class in a prediction. Of two such boxes, the better one remains."""

CANDIDATE_SCORE, MAX_CANDIDATES = 0.02, 400
"""The smallest score, and the largest number of the boxes of a picture before duplicates are removed."""


@final
class TokenDetectionHead(DetectionHead):
    """One box and C scores per token (a simple form of FCOS, Tian et al. 2019).

    A small network maps each token to the scores of the classes, and to the center and the size of a box relative to
    its patch. The tokens around the center of an object learn the object. All other tokens learn the score 0. The
    loss is the focal loss of the scores plus the generalized IoU loss of the boxes.
    """

    def __init__(self, labels: Sequence[str], dim: int, *, patch: int) -> None:
        """Build the head.

        Args:
            labels: The names of the C classes.
            dim: D, the number of features of a token.
            patch: The side of a patch in pixels, as in the tokenizer. Patches must not overlap.
        """
        super().__init__(labels, dim, patch=patch)
        self.hidden = nn.Sequential(nn.Linear(dim, dim), nn.GELU())
        self.score, self.box = nn.Linear(dim, len(self.labels)), nn.Linear(dim, 4)
        nn.init.constant_(self.score.bias, -torch.logit(torch.tensor(1 - OBJECT_PRIOR)).item())

    def boxes(self, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (B, N, C), corners (B, N, 4) and centers of patches (B, N, 2) as x and y, in pixels."""
        hidden = in_float32(self.hidden, tokens.matrix.mT)
        centers = (tokens.positions.flip(1).mT.float() + 0.5) * self.patch
        with torch.autocast(hidden.device.type, enabled=False):
            shift, size = self.box(hidden).split(2, dim=2)
            middle, half = centers + self.patch * shift, self.patch * size.clamp(max=6).exp()
            return self.score(hidden), torch.cat([middle - half, middle + half], 2), centers

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the loss, divided by the number of tokens that learn an object.

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: The encoded boxes (B, 5, M).
        """
        from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss

        logits, boxes, centers = self.boxes(tokens)
        corners, labels, is_object = self.true_boxes(target)
        middles = corners.unflatten(2, (2, 2)).mean(2)
        distance = (centers[:, :, None] - middles[:, None]).abs().amax(3) / self.patch
        nearest, index = distance.masked_fill(~is_object[:, None], torch.inf).min(2)
        is_positive = (nearest <= CENTER_RADIUS) & tokens.mask
        chosen = corners.gather(1, index[:, :, None].expand(-1, -1, 4))[is_positive]
        wanted = torch.zeros_like(logits)
        wanted[is_positive, labels.gather(1, index)[is_positive]] = 1
        focal = sigmoid_focal_loss(logits, wanted, reduction="none")[tokens.mask].sum()
        iou = generalized_box_iou_loss(boxes[is_positive], chosen, reduction="sum")
        return (focal + IOU_WEIGHT * iou) / is_positive.sum().clamp(min=1)

    def predict(self, tokens: Tokens) -> list[FoundBoxes]:
        from torchvision.ops import batched_nms

        logits, boxes, _ = self.boxes(tokens)
        scores, boxes = logits.sigmoid().masked_fill(~tokens.mask[:, :, None], 0).cpu(), boxes.cpu()
        limits = self.canvas_sizes(tokens).cpu()
        found: list[FoundBoxes] = []
        for own, corners, limit in zip(scores, boxes, limits, strict=True):
            best, order = own.flatten().sort(descending=True, stable=True)
            order = order[:MAX_CANDIDATES][best[:MAX_CANDIDATES] >= CANDIDATE_SCORE]
            token, label = order // own.shape[1], order % own.shape[1]
            inside = corners[token].clamp(min=0).minimum(limit)
            kept = batched_nms(inside, own[token, label], label, MAX_OVERLAP)[:MAX_OBJECTS]
            found.append(FoundBoxes(inside[kept], label[kept], own[token, label][kept]))
        return found
