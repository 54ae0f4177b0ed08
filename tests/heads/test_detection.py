"""Boxes of objects: targets, both heads on a batch, padding, assignment and average precision by known cases."""

import math
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unifier.augmentation import FlipWithBoxes
from unifier.data.dataloader import Batch, collate
from unifier.data.encoding import encode_split
from unifier.data.inputs import ImageReader
from unifier.data.source import Example
from unifier.heads.detection import Boxes, DetectionHead, FoundBoxes, true_objects
from unifier.heads.query_detection import QueryDetectionHead, match
from unifier.heads.token_detection import TokenDetectionHead
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier.network import Network
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer, Tokens

D, PATCH = 32, 4
LABELS = ("bright", "dark")
HEADS = (TokenDetectionHead, QueryDetectionHead)


def draw(size: tuple[int, int], *boxes: tuple[int, int, int, int, int]) -> Example:
    """Draw rectangles of the brightness 255 (label 0) or 60 (label 1) at x0, y0, x1, y1."""
    picture = np.zeros((*size, 1), np.uint8)
    for label, x0, y0, x1, y1 in boxes:
        picture[y0:y1, x0:x1] = 60 if label else 255
    corners = np.array([box[1:] for box in boxes], float).reshape(-1, 4)
    return Example(picture, Boxes(corners, np.array([box[0] for box in boxes], int)))


EXAMPLES = [
    draw((16, 20), (0, 2, 3, 9, 8), (1, 11, 6, 18, 15)),
    draw((16, 16), (1, 1, 1, 6, 12)),
    draw((12, 16), (0, 9, 2, 15, 10), (0, 1, 5, 6, 11)),
    draw((16, 16)),
]


def make_head(kind: type[DetectionHead]) -> Any:
    options = {"queries": 6} if kind is QueryDetectionHead else {}
    return kind(LABELS, D, patch=PATCH, **options)


def make_tokenizer() -> PatchTokenizer:
    return PatchTokenizer(D, patch=PATCH, channels=1, positions="sinusoid")


def encoded(pairs: list[Example], head: DetectionHead, tokenizer: PatchTokenizer) -> Batch:
    split, _ = encode_split(pairs, tokenizer, head)
    return collate(split, range(len(split)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADS)
def test_head_overfits_a_batch(kind: type[DetectionHead], tmp_path: Path) -> None:
    head, tokenizer, trunk = make_head(kind), make_tokenizer(), Transformer(D, 1, 2, 64)
    batch = encoded(EXAMPLES, head, tokenizer)
    parameters = [*head.parameters(), *trunk.parameters(), *tokenizer.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(120 if kind is QueryDetectionHead else 60):
        optimizer.zero_grad()
        head.loss(trunk(batch.embed(tokenizer)), batch.target).backward()
        optimizer.step()
    task = ModelTask(tokenizer, head, ImageReader(channels=1), 9)
    network = Network(trunk, {"boxes": task}).eval()
    raw = [example.input for example in EXAMPLES]
    found = network.predict("boxes", raw)
    scores = head.checked_metrics(found, [example.target for example in EXAMPLES])
    assert min(scores["ap50"], scores["ap50_bright"], scores["ap50_dark"]) > 80
    assert "dark" in head.list_objects(found[1])
    write_model(tmp_path, StoredModel("m", trunk, {"boxes": task}, 64, {}), "")  # pyright: ignore[reportArgumentType]
    stored = read_model(tmp_path)
    again = Network(stored.trunk, stored.tasks).eval().predict("boxes", raw)
    for own, other in zip(found, again, strict=True):
        assert all(map(torch.equal, own, other))


@pytest.mark.parametrize("kind", HEADS)
def test_padding_changes_neither_loss_nor_boxes(
    kind: type[DetectionHead], single: Callable[[Tokens, int], Tokens]
) -> None:
    head, tokenizer = make_head(kind), make_tokenizer()
    batch = encoded(EXAMPLES, head, tokenizer)
    tokens = batch.embed(tokenizer)
    for b, together in enumerate(head.predict(tokens)):
        (alone,) = head.predict(single(tokens, b))
        assert torch.equal(alone.labels[:3], together.labels[:3])
        torch.testing.assert_close(alone.corners[:3], together.corners[:3], rtol=1e-4, atol=1e-3)
    own = encoded(EXAMPLES[1:2], head, tokenizer)
    padded = encoded([EXAMPLES[1], EXAMPLES[3]], head, tokenizer)
    wide = encoded([EXAMPLES[1], EXAMPLES[0]], head, tokenizer)
    first = Tokens(*(part[:1] for part in (wide.embed(tokenizer).matrix, wide.mask, wide.positions)))
    torch.testing.assert_close(head.loss(first, wide.target[:1]), head.loss(own.embed(tokenizer), own.target))
    assert head.loss(padded.embed(tokenizer), padded.target).isfinite()


def test_matching_is_the_cheapest_assignment() -> None:
    torch.manual_seed(0)
    boxes, true = (torch.rand(n, 2, 2).sort(1)[0].flatten(1) + torch.tensor([0, 0, 0.1, 0.1]) for n in (4, 3))
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 0])

    def cost(query: int, k: int) -> float:
        (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = boxes[query].tolist(), true[k].tolist()
        inter = max(min(ax1, bx1) - max(ax0, bx0), 0) * max(min(ay1, by1) - max(ay0, by0), 0)
        union = (ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - inter
        hull = (max(ax1, bx1) - min(ax0, bx0)) * (max(ay1, by1) - min(ay0, by0))
        giou = inter / union - (hull - union) / hull
        own, other = ((x0 + x1, y0 + y1, 2 * (x1 - x0), 2 * (y1 - y0)) for x0, y0, x1, y1 in (boxes[query], true[k]))
        distance = sum(abs(float(a - b)) for a, b in zip(own, other, strict=True)) / 2
        return 5 * distance - 2 * giou - float(logits[query].softmax(0)[labels[k]])

    best = min(permutations(range(4), 3), key=lambda chosen: sum(cost(q, k) for k, q in enumerate(chosen)))
    queries, objects = match(logits, boxes, true, labels)
    assert dict(zip(objects.tolist(), queries.tolist(), strict=True)) == dict(enumerate(best))


def test_average_precision_of_known_boxes() -> None:
    head = make_head(TokenDetectionHead)
    targets = [example.target for example in EXAMPLES]
    perfect = [true_objects(target) for target in targets]
    assert head.checked_metrics(perfect, targets) == pytest.approx(
        {"ap50": 100, "ap": 100, "ap50_bright": 100, "ap50_dark": 100}
    )
    moved = [found._replace(corners=found.corners + torch.tensor([0, 0, 0, 1.0])) for found in perfect]
    shifted = head.checked_metrics(moved, targets)
    assert shifted["ap50"] == pytest.approx(100)
    assert shifted["ap"] < 95
    assert head.describe(perfect[0]) == head.describe_target(targets[0]) == "1 bright, 1 dark"
    assert head.list_objects(perfect[1]) == "dark 1.00 (1, 1, 6, 12)"
    swapped = [found._replace(labels=1 - found.labels) for found in perfect]
    assert head.checked_metrics(swapped, targets)["ap50"] == 0
    nothing = [FoundBoxes(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), torch.zeros(0)) for _ in targets]
    assert head.checked_metrics(nothing, targets)["ap50"] == 0


def test_class_without_true_objects_has_no_score() -> None:
    head = make_head(TokenDetectionHead)
    bright, none = (EXAMPLES[k].target for k in (2, 3))
    found = [FoundBoxes(torch.tensor([[1.0, 1, 6, 12]]), torch.tensor([label]), torch.ones(1)) for label in (0, 1)]
    scores = head.checked_metrics(found, [none, none])
    assert (scores["ap50"], scores["ap"]) == (0, 0)
    assert math.isnan(scores["ap50_bright"] + scores["ap50_dark"])
    scores = head.checked_metrics(found, [bright, none])
    assert math.isnan(scores["ap50_dark"])
    assert 0 <= scores["ap50"] == scores["ap50_bright"]


def test_assignment_of_a_diverged_model_is_no_error() -> None:
    diverged, boxes = torch.full((6, 3), torch.nan), torch.full((6, 4), torch.nan)
    queries, objects = match(diverged, boxes, torch.tensor([[0.1, 0.1, 0.5, 0.5]]), torch.tensor([0]))
    assert (len(queries), objects.tolist()) == (1, [0])


def test_flips_move_boxes_with_their_pictures() -> None:
    head, tokenizer = make_head(TokenDetectionHead), make_tokenizer()
    batch = encoded(EXAMPLES, head, tokenizer)
    for seed in range(8):
        flipped = FlipWithBoxes(tokenizer)(batch, torch.Generator().manual_seed(seed))
        corners, labels, is_object = head.true_boxes(flipped.target)
        tokens = flipped.embed(tokenizer)
        for b, sizes in enumerate(head.canvas_sizes(tokens).tolist()):
            pixels = np.zeros((int(sizes[1]), int(sizes[0])))
            for patch, (row, column) in zip(flipped.values[b].T, flipped.positions[b].T.tolist(), strict=True):
                if row >= 0:
                    area = pixels[row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]
                    area[:] = patch.reshape(PATCH, PATCH)
            expected = np.zeros_like(pixels)
            for (x0, y0, x1, y1), label in zip(
                corners[b, is_object[b]].int().tolist(), labels[b, is_object[b]].tolist(), strict=True
            ):
                expected[y0:y1, x0:x1] = 60 if label else 255
            assert np.array_equal(pixels, expected)


@pytest.mark.parametrize(
    ("box", "label", "message"),
    [
        ((1, 1, 1, 5), 0, "no area"),
        ((-1, 0, 3, 3), 0, "not inside"),
        ((0, 0, 3, 3), 2, "class 2"),
        ((0, 0, float("nan"), 3), 0, "not inside"),
    ],
)
def test_bad_boxes_are_refused(box: tuple[float, ...], label: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_head(TokenDetectionHead).encode(Boxes(np.array([box], float), np.array([label])))


def test_box_outside_the_picture_too_many_objects_and_missing_classes_are_refused() -> None:
    head, tokenizer = make_head(TokenDetectionHead), make_tokenizer()
    outside = EXAMPLES[0]._replace(target=Boxes(np.array([[0.0, 0, 30, 5]]), np.array([0])))
    with pytest.raises(InputError, match="reaches to"):
        encode_split([outside], tokenizer, head)
    with pytest.raises(InputError, match="no training picture has a box of dark"):
        head.check_trained([head.encode(EXAMPLES[2].target)])
    small = QueryDetectionHead(LABELS, D, patch=PATCH, queries=1)
    batch = encoded(EXAMPLES[:1], small, tokenizer)
    with pytest.raises(InputError, match="more queries"):
        small.loss(batch.embed(tokenizer), batch.target)
