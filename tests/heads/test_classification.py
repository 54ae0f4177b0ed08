"""Classification and tagging: pooling, loss, metrics against scikit-learn, and independence of the batch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from torch import Tensor, nn

from unifier.data.dataloader import collate
from unifier.data.encoding import encode_split
from unifier.data.source import Example
from unifier.datasets.digits import Digits
from unifier.heads.classification import ClassificationHead, Pooling, TaggingHead, TokenPool
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer, Tokens

B, D = 3, 12
LABELS = ("rock", "jazz", "folk")
TARGETS: dict[type[nn.Module], list[Any]] = {
    ClassificationHead: ["jazz", "rock", "folk"],
    TaggingHead: [("jazz",), ("rock", "folk"), ()],
}
BOTH_HEADS = pytest.mark.parametrize("head_class", TARGETS)
EVERY_POOLING = pytest.mark.parametrize("pooling", ["mean", "cls", "attention", "last"])
HeadClass = type[ClassificationHead] | type[TaggingHead]


@pytest.mark.slow
@BOTH_HEADS
@EVERY_POOLING
def test_head_overfits_a_batch(head_class: HeadClass, pooling: Pooling, tokens: Tokens) -> None:
    head, trunk = head_class(LABELS, D, pooling=pooling), Transformer(D, 1, 2, 20)
    targets = TARGETS[head_class]
    target = torch.stack([head.encode(value) for value in targets])
    optimizer = torch.optim.Adam([*head.parameters(), *trunk.parameters()], lr=0.02)
    for _ in range(80):
        optimizer.zero_grad()
        head.loss(trunk(tokens), target).backward()
        optimizer.step()
    assert head.loss(trunk(tokens), target) < 0.05
    predictions = head.predict(trunk(tokens))
    assert set(head.metrics(predictions, targets).values()) == {head.max_score}
    for prediction, value in zip(predictions, targets, strict=True):
        labels = {label for label in LABELS if label in head.describe(prediction)}
        assert labels == ({value} if isinstance(value, str) else set(value))
    if head_class is TaggingHead:
        assert head.describe(predictions[2]) == "none"


@BOTH_HEADS
@EVERY_POOLING
def test_loss_and_predictions_ignore_the_batch(
    head_class: HeadClass, pooling: Pooling, tokens: Tokens, single: Callable[[Tokens, int], Tokens]
) -> None:
    head, trunk = head_class(LABELS, D, pooling=pooling), Transformer(D, 1, 2, 20)
    if isinstance(head, ClassificationHead):
        head.label_smoothing = 0.2
    target, batch = torch.stack([head.encode(value) for value in TARGETS[head_class]]), trunk(tokens)
    losses: list[Tensor] = []
    for b in range(B):
        alone = trunk(single(tokens, b))
        losses.append(head.loss(alone, target[b : b + 1]))
        torch.testing.assert_close(head.predict(alone)[0], head.predict(batch)[b], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(head.loss(batch, target), torch.stack(losses).mean())


def test_classification_loss_is_smoothed(tokens: Tokens) -> None:
    """Compare with Szegedy et al. 2016, section 7: the true label has the share 1 - e, and all labels share e."""
    head, target = ClassificationHead(LABELS, D, label_smoothing=0.3), [0, 2, 1]
    expected = 0.0
    for prediction, label in zip(head.predict(tokens), target, strict=True):
        shares = [0.3 / 3 + (0.7 if c == label else 0) for c in range(3)]
        expected -= sum(share * math.log(p) for share, p in zip(shares, prediction.tolist(), strict=True)) / B
    assert head.loss(tokens, torch.tensor(target)).item() == pytest.approx(expected, rel=1e-5)
    # A mixed target has the mixed loss.
    mixed = head.loss(tokens, torch.tensor([[0.3, 0.7, 0.0]] * B)[..., None])
    first, second = (head.loss(tokens, torch.tensor([label] * B)) for label in (0, 1))
    torch.testing.assert_close(mixed, 0.3 * first + 0.7 * second)


def test_tagging_loss_is_binary_cross_entropy(tokens: Tokens) -> None:
    head = TaggingHead(LABELS, D)
    losses = [
        -math.log(p if tag in tags else 1 - p)
        for prediction, tags in zip(head.predict(tokens), TARGETS[TaggingHead], strict=True)
        for tag, p in zip(LABELS, prediction.tolist(), strict=True)
    ]
    target = torch.stack([head.encode(tags) for tags in TARGETS[TaggingHead]])
    assert head.loss(tokens, target).item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@EVERY_POOLING
def test_pooling_equals_its_formula(pooling: Pooling, random_tokens: Callable[..., Tokens]) -> None:
    tokens, pool = random_tokens(), TokenPool(pooling, D)
    for b, length in enumerate(tokens.mask.sum(1).tolist()):
        x = tokens.matrix[b, :, :length]
        expected = x.mean(1) if pooling == "mean" else x[:, -1 if pooling == "last" else 0]
        if pool.score is not None:
            expected = x @ (pool.score.weight[0] @ x).softmax(0)
        torch.testing.assert_close(pool(tokens)[b], expected)


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_pooling_gradients_are_contiguous(pooling: Pooling, tokens: Tokens) -> None:
    """Gradients in another memory order than the trunk's output would make pooling twice as slow."""
    rows, gradients = tokens.matrix.mT.contiguous().requires_grad_(), list[Tensor]()
    rows.register_hook(gradients.append)
    pool = TokenPool(pooling, D)
    pool(tokens._replace(matrix=rows.mT)).square().sum().backward()
    assert gradients[0].is_contiguous()
    assert torch.equal(gradients[0].any(2), tokens.mask)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in pool.parameters())


def test_predictions_are_probabilities(tokens: Tokens) -> None:
    head = ClassificationHead(LABELS, D, dropout=0.5).eval()
    predictions = torch.stack(head.predict(tokens))
    torch.testing.assert_close(predictions.sum(1), torch.ones(B))
    assert torch.equal(predictions, torch.stack(head.predict(tokens)))
    assert not torch.equal(predictions, torch.stack(head.train().predict(tokens)))


@pytest.mark.parametrize("num_examples", [5, 200])
@pytest.mark.parametrize("num_classes", [2, 12])
def test_classification_metrics_equal_sklearn(num_examples: int, num_classes: int) -> None:
    labels = [f"class {c}" for c in range(num_classes)]
    predictions, targets = torch.rand(num_examples, num_classes), torch.randint(num_classes, (num_examples,)).tolist()
    metrics = ClassificationHead(labels, D).metrics(list(predictions), [labels[c] for c in targets])
    predicted = predictions.argmax(1).tolist()
    assert list(metrics) == ["accuracy", "macro_f1"]
    assert metrics["accuracy"] == pytest.approx(100 * accuracy_score(targets, predicted))
    assert metrics["macro_f1"] == pytest.approx(100 * f1_score(targets, predicted, average="macro"), rel=1e-5)


@pytest.mark.parametrize("levels", [None, 5], ids=["smooth", "ties"])
def test_tagging_metrics_equal_sklearn(levels: int | None) -> None:
    tags = [f"tag {c}" for c in range(6)]
    scores, expected = torch.rand(90, 6), torch.rand(90, 6) < torch.tensor([0.5, 0.1, 0.9, 0.3, 0.0, 1.0])
    scores = scores if levels is None else (scores * levels).round() / levels
    targets = [[tag for tag, holds in zip(tags, row, strict=True) if holds] for row in expected.tolist()]
    metrics = TaggingHead(tags, D).metrics(list(scores), targets)
    # scikit-learn defines no score for the last two tags, which none or all of the examples have.
    reference = expected[:, :4].numpy(), scores[:, :4].numpy()
    assert metrics["macro_auc"] == pytest.approx(roc_auc_score(*reference, average="macro"), rel=1e-5)
    assert metrics["map"] == pytest.approx(average_precision_score(*reference, average="macro"), rel=1e-5)
    assert metrics["weighted_map"] == pytest.approx(average_precision_score(*reference, average="weighted"), rel=1e-5)


def test_constant_tags_have_no_metric() -> None:
    head = TaggingHead(LABELS, D)
    metrics = head.metrics([torch.rand(3), torch.rand(3)], [("jazz",), ("jazz",)])
    assert all(map(math.isnan, metrics.values()))
    head.check_targets([("jazz",), ()])
    with pytest.raises(InputError, match="2 examples"):
        head.check_targets([("jazz",), ("jazz",)])


def test_tagging_probabilities_near_1_differ(tokens: Tokens) -> None:
    head = TaggingHead(LABELS, D)
    expected = torch.stack(head.predict(tokens))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(torch.stack(head.predict(tokens)), expected, rtol=1e-6, atol=1e-6)
    nn.init.zeros_(head.out.weight)
    head.out.bias.data = torch.tensor([18.0, 20.0, 30.0])
    first, second, third = head.predict(tokens)[0].tolist()
    assert first < second < third < 1


def test_targets_are_encoded() -> None:
    classes, tags = ClassificationHead(LABELS, D), TaggingHead(LABELS, D)
    assert [int(classes.encode(target)) for target in LABELS] == [0, 1, 2]
    indices: list[Any] = [0, np.int64(1), torch.tensor(2)]
    assert [int(classes.encode(target)) for target in indices] == [0, 1, 2]
    assert tags.encode(["folk", "rock", "folk"]).tolist() == [1, 0, 1]
    assert tags.encode({"jazz"}).tolist() == [0, 1, 0]
    assert tags.encode(()).tolist() == [0, 0, 0]


def test_tags_count_as_one_target_token() -> None:
    head, examples = TaggingHead([f"tag {c}" for c in range(100)], D), Digits().split("train")[:3]
    tokenizer = PatchTokenizer(D, channels=1)
    split, _ = encode_split([Example(example.input, ["tag 3"]) for example in examples], tokenizer, head)
    assert split.lengths()[:, 1].tolist() == [1, 1, 1]
    assert collate(split, range(3)).lengths()[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("head_class", "target"),
    [
        *((ClassificationHead, target) for target in ("polka", "", 3, -1, 1.0, None)),
        *((TaggingHead, target) for target in (["jazz", "polka"], "jazz", None, 3, [["jazz"]], [1])),
    ],
)
def test_wrong_target_is_refused(head_class: HeadClass, target: Any) -> None:
    value = target[-1] if isinstance(target, list) else target
    with pytest.raises(InputError, match=repr(value).replace("[", r"\[")):
        head_class(LABELS, D).encode(target)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        *((lambda labels=labels: ClassificationHead(labels, D), "labels=") for labels in ([], ["a"], ["a", "b", "a"])),
        *((lambda labels=labels: TaggingHead(labels, D), "labels=") for labels in ([], ["a", "b", "a"])),
        (lambda: ClassificationHead([1, 2], D), "label 1 "),  # pyright: ignore[reportArgumentType]
        (lambda: ClassificationHead(LABELS, D, pooling="max"), "pooling 'max'"),  # pyright: ignore[reportArgumentType]
        (lambda: ClassificationHead(LABELS, D, label_smoothing=-0.1), r"label_smoothing=-0\.1"),
        (lambda: ClassificationHead(LABELS, D, label_smoothing=1.0), r"label_smoothing=1\.0"),
    ],
)
def test_wrong_options_are_refused(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
