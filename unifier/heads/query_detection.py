"""A head that finds objects with learned queries, which are matched to the true objects (DETR)."""

from collections.abc import Sequence
from typing import final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.detection import MAX_OBJECTS, DetectionHead, FoundBoxes, center_boxes
from unifier.nn.block import Block
from unifier.nn.precision import LayerNorm, in_float32
from unifier.trunks.transformer import default_heads
from unifier_tokenizers import InputError, PositionalEncoding, Tokens
from unifier_tokenizers.tokens import has_no_padding

NO_OBJECT_WEIGHT = 0.1
"""The weight of the class "no object" in the cross-entropy (Carion et al. 2020, section 3.1)."""

DISTANCE_WEIGHT, IOU_WEIGHT = 5.0, 2.0
"""The weights of the distance and of the generalized IoU of two boxes, in the loss and in the matching."""


@final
class QueryDetectionHead(DetectionHead):
    """Learned queries that read the trunk's tokens, and become one object or none (Carion et al. 2020).

    Each query has a learned reference point in the picture. Each block of the decoder lets the queries attend to each
    other and to the tokens, and gives a class and a box per query. The best one-to-one assignment of queries to true
    objects decides which query learns which object. Nothing has to be removed from a prediction.
    """

    def __init__(
        self,
        labels: Sequence[str],
        dim: int,
        *,
        patch: int,
        queries: int = 50,
        depth: int = 2,
        heads: int | None = None,
    ) -> None:
        """Build the head.

        Args:
            labels: The names of the C classes.
            dim: D, the number of features of a token.
            patch: The side of a patch in pixels, as in the tokenizer. Patches must not overlap.
            queries: Q, the number of queries, and the largest number of objects of a picture.
            depth: The number of blocks of the decoder.
            heads: The number of attention heads of each block. The default is `default_heads(dim)`.
        """
        super().__init__(labels, dim, patch=patch)
        if min(queries, depth) < 1:
            raise InputError(f"queries={queries}, depth={depth}: both must be at least 1")
        self.queries = nn.Embedding(queries, dim)
        self.references = nn.Parameter(torch.rand(queries, 2) * 2 - 1)
        """The reference points (Q, 2) as logits of the shares of width and height."""
        self.places = PositionalEncoding("sinusoid", dim, ())
        self.blocks = nn.ModuleList(
            Block(dim, heads or default_heads(dim), 4 * dim, norm="pre", activation="gelu", dropout=0.0, cross=True)
            for _ in range(depth)
        )
        self.norm = LayerNorm(dim)
        self.score = nn.Linear(dim, len(self.labels) + 1)
        self.box = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 4))

    def layers(self, tokens: Tokens) -> list[tuple[Tensor, Tensor]]:
        """Return logits (B, Q, C + 1) and corners in pixels (B, Q, 4) after each block.

        The last class means that the query found no object.
        """
        sizes = self.canvas_sizes(tokens)
        shares = self.references.sigmoid()
        places = (shares.flip(1) * sizes[:, None, [1, 0]] / self.patch).mT  # Rows and columns, in patches.
        x = self.places(self.queries.weight.T.expand(len(sizes), -1, -1), places).mT
        memory = self.places(tokens.matrix, tokens.positions).mT
        mask = None if has_no_padding(tokens.mask) else tokens.mask[:, None, None]
        found: list[tuple[Tensor, Tensor]] = []
        for block in self.blocks:
            x = block(x, None, memory=memory, memory_mask=mask)
            hidden = self.norm(x)
            offsets = in_float32(self.box, hidden)
            with torch.autocast(hidden.device.type, enabled=False):
                middle = (self.references + offsets[..., :2]).sigmoid()
                half = offsets[..., 2:].sigmoid() / 2
                corners = torch.cat([middle - half, middle + half], 2) * sizes[:, None]
            found.append((in_float32(self.score, hidden), corners))
        return found

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean loss of the blocks.

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: The encoded boxes (B, 5, M).

        Raises:
            InputError: A picture has more objects than the head has queries.
        """
        corners, labels, is_object = self.true_boxes(target)
        if int(is_object.sum(1).max()) > self.queries.num_embeddings:
            raise InputError(
                f"a picture has {int(is_object.sum(1).max())} objects, but the head has {self.queries.num_embeddings} "
                "queries: give more queries"
            )
        sizes = self.canvas_sizes(tokens)
        true = [
            (boxes[own] / size, classes[own])
            for boxes, classes, own, size in zip(corners, labels, is_object, sizes, strict=True)
        ]
        layers = self.layers(tokens)
        losses = [self._layer_loss(logits, boxes / sizes[:, None], true) for logits, boxes in layers]
        return torch.stack(losses).mean()

    def _layer_loss(self, logits: Tensor, boxes: Tensor, true: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the loss of one block, given boxes as shares (B, Q, 4), and the true boxes and classes."""
        from torchvision.ops import generalized_box_iou_loss

        classes = torch.full(logits.shape[:2], len(self.labels), device=logits.device)
        with torch.no_grad():
            pairs = [match(*each[:2], *each[2]) for each in zip(logits, boxes, true, strict=True)]
        chosen = [own[queries] for own, (queries, _) in zip(boxes, pairs, strict=True)]
        wanted = [own[objects] for (own, _), (_, objects) in zip(true, pairs, strict=True)]
        for row, ((queries, objects), (_, labels)) in enumerate(zip(pairs, true, strict=True)):
            classes[row, queries] = labels[objects]
        predicted, expected = torch.cat(chosen), torch.cat(wanted)
        weight = logits.new_ones(len(self.labels) + 1)
        weight[-1] = NO_OBJECT_WEIGHT
        distance = (center_boxes(predicted) - center_boxes(expected)).abs().sum()
        iou = generalized_box_iou_loss(predicted, expected, reduction="sum")
        per_object = (DISTANCE_WEIGHT * distance + IOU_WEIGHT * iou) / max(len(expected), 1)
        return functional.cross_entropy(logits.mT, classes, weight) + per_object

    def predict(self, tokens: Tokens) -> list[FoundBoxes]:
        logits, corners = self.layers(tokens)[-1]
        scores = logits.softmax(2)[..., :-1].cpu()
        limits = self.canvas_sizes(tokens).cpu()
        found: list[FoundBoxes] = []
        for own, boxes, limit in zip(scores, corners.cpu(), limits, strict=True):
            best, order = own.flatten().sort(descending=True, stable=True)
            order = order[:MAX_OBJECTS]
            inside = boxes[order // own.shape[1]].clamp(min=0).minimum(limit)
            found.append(FoundBoxes(inside, order % own.shape[1], best[:MAX_OBJECTS]))
        return found


def match(logits: Tensor, boxes: Tensor, true: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the queries and the objects of the best one-to-one assignment, both (M,).

    Args:
        logits: The logits of the queries (Q, C + 1).
        boxes: The corners of the queries as shares of the picture (Q, 4).
        true: The corners of the objects as shares of the picture (M, 4).
        labels: The classes of the objects (M,).
    """
    from torchvision.ops import generalized_box_iou

    distance = torch.cdist(center_boxes(boxes), center_boxes(true), p=1)
    cost = DISTANCE_WEIGHT * distance - IOU_WEIGHT * generalized_box_iou(boxes, true) - logits.softmax(1)[:, labels]
    # SciPy refuses the NaNs of a diverged model. The loss is NaN for any assignment, which ends the run.
    queries, objects = linear_sum_assignment(cost.nan_to_num().cpu().numpy())
    return torch.from_numpy(queries).to(boxes.device), torch.from_numpy(objects).to(boxes.device)
