"""Classes of pixels: overfitting, padding, metrics against torchmetrics, and masks that change with their pictures."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_jaccard_index
from torchmetrics.functional.segmentation import mean_iou

from unifier.augmentation import FlipWithMask
from unifier.data.dataloader import Batch, collate
from unifier.data.encoding import encode_split
from unifier.data.source import Example
from unifier.heads.segmentation import SegmentationHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer, Tokens

D, PATCH = 12, 2
LABELS = ("background", "cell", "wall")
SIZES = ((6, 6), (5, 8), (2, 3))
GENERATOR = np.random.default_rng(0)


def examples() -> list[Example]:
    """Draw pictures whose brightness shows the class of each pixel."""
    masks = [GENERATOR.integers(0, 3, size) for size in SIZES]
    return [Example((100 * mask[:, :, None]).astype(np.uint8), mask) for mask in masks]


def encoded(pairs: list[Example], head: SegmentationHead, tokenizer: PatchTokenizer) -> Batch:
    split, _ = encode_split(pairs, tokenizer, head)
    return collate(split, range(len(split)))


@pytest.fixture
def tokenizer() -> PatchTokenizer:
    return PatchTokenizer(D, patch=PATCH, channels=1, positions="sinusoid")


@pytest.fixture
def head() -> SegmentationHead:
    return SegmentationHead(LABELS, D, patch=PATCH)


@pytest.mark.slow
def test_head_overfits_a_batch(head: SegmentationHead, tokenizer: PatchTokenizer) -> None:
    pairs, trunk = examples(), Transformer(D, 1, 2, 20)
    batch = encoded(pairs, head, tokenizer)
    parameters = [*head.parameters(), *trunk.parameters(), *tokenizer.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    for _ in range(120):
        optimizer.zero_grad()
        head.loss(trunk(batch.embed(tokenizer)), batch.target).backward()
        optimizer.step()
    predictions = head.predict(trunk(batch.embed(tokenizer)))
    assert [tuple(prediction.shape) for prediction in predictions] == [(6, 6), (6, 8), (2, 4)]
    assert min(head.checked_metrics(predictions, [mask for _, mask in pairs]).values()) > 95


def test_loss_and_predictions_ignore_padding(
    head: SegmentationHead, tokenizer: PatchTokenizer, single: Callable[[Tokens, int], Tokens]
) -> None:
    pairs = examples()
    batch = encoded(pairs, head, tokenizer)
    tokens = batch.embed(tokenizer)
    logits, sizes = head.logits(tokens)
    for b, prediction in enumerate(head.predict(tokens)):
        alone = single(tokens, b)
        height, width = sizes[b].tolist()
        torch.testing.assert_close(head.logits(alone)[0][0], logits[b, :, :height, :width], rtol=1e-4, atol=1e-5)
        assert torch.equal(head.predict(alone)[0], prediction)
    own = encoded(pairs[1:2], head, tokenizer)
    wide = own._replace(target=own.target.clone())
    padded = encoded([pairs[1], Example(np.zeros((8, 10, 1), np.uint8), np.zeros((8, 10), int))], head, tokenizer)
    target = padded.target.clone()
    target[1] = -100
    torch.testing.assert_close(
        head.loss(padded.embed(tokenizer), target), head.loss(wide.embed(tokenizer), wide.target), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_metrics_equal_torchmetrics(classes: int) -> None:
    head = SegmentationHead(LABELS[:classes], D, patch=PATCH)
    targets = [GENERATOR.integers(0, classes, (4, 5)) for _ in range(5)]
    guesses = [torch.from_numpy(GENERATOR.integers(0, classes, (4, 6))) for _ in range(5)]
    metrics, cut = head.checked_metrics(guesses, targets), torch.stack(guesses)[:, :, :5]
    true = torch.from_numpy(np.stack(targets))
    expected = mean_iou(cut, true, classes, include_background=False, input_format="index")
    assert metrics["iou"] == pytest.approx(100 * expected.mean().item())
    pixel = multiclass_jaccard_index(cut, true, classes, average="none")[1:].mean()
    assert metrics["pixel_iou"] == pytest.approx(100 * pixel.item())
    by_class = multiclass_jaccard_index(cut, true, classes, average="none")[1:].tolist()
    found = head.class_scores(guesses, targets)
    assert tuple(found) == LABELS[1:classes]
    assert [iou for iou, _ in found.values()] == pytest.approx([100 * value for value in by_class])
    assert [dice for _, dice in found.values()] == pytest.approx([200 * v / (1 + v) for v in by_class])
    scores = [head.example_score(*pair)[0] for pair in zip(guesses, targets, strict=True)]
    assert metrics["iou"] == pytest.approx(np.mean(scores))


def test_empty_masks_are_right_if_nothing_is_found(head: SegmentationHead) -> None:
    empty = torch.zeros(4, 4, dtype=torch.uint8)
    assert set(head.checked_metrics([empty], [empty.numpy()]).values()) == {100}
    assert head.checked_metrics([empty], [np.eye(4, dtype=int)])["iou"] == 0


def test_pictures_and_masks_are_flipped_alike(head: SegmentationHead, tokenizer: PatchTokenizer) -> None:
    batch, seen = encoded(examples(), head, tokenizer), set[bytes]()
    for seed in range(60):
        changed = FlipWithMask(tokenizer)(batch, torch.Generator().manual_seed(seed))
        brightness = torch.where(changed.target < 0, 0, 100 * changed.target)
        assert torch.equal(
            changed.values[batch.mask[:, None].expand_as(changed.values)].short(),
            brightness[batch.mask[:, None].expand_as(brightness)],
        )
        assert torch.equal(changed.values.flatten(1).sort(1)[0], batch.values.flatten(1).sort(1)[0]), "no pixel is lost"
        seen.add(changed.values[0].numpy().tobytes())
    assert len(seen) == 8, "a square has eight versions"


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros((8, 6), int), r"mask has 12 patches.*3 x 3 patches"),
        (np.full((6, 6), 3), "values from 3 to 3"),
        (np.zeros((6, 6)), "float64"),
        (np.zeros((6, 6, 1), int), r"\(6, 6, 1\)"),
        ("cat", "mask"),
    ],
)
def test_masks_must_fit_their_pictures(
    mask: Any, message: str, head: SegmentationHead, tokenizer: PatchTokenizer
) -> None:
    with pytest.raises(InputError, match=f"example 0.*{message}"):
        encode_split([Example(np.zeros((6, 6, 1), np.uint8), mask)], tokenizer, head)


def test_class_token_is_refused(head: SegmentationHead) -> None:
    tokenizer = PatchTokenizer(D, patch=PATCH, channels=1, class_token=True)
    with pytest.raises(InputError, match="class token"):
        encode_split([Example(np.zeros((6, 6, 1), np.uint8), np.zeros((6, 6), int))], tokenizer, head)


def test_description_names_shares(head: SegmentationHead) -> None:
    mask: Tensor = torch.tensor([[0, 1], [2, 1]])
    assert head.describe(mask) == "cell 50.0%, wall 25.0%"
