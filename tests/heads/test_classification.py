"""One label for an example: learned, scored as scikit-learn scores it, and the same whoever is in the batch."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch import nn

from unifier.heads.classification import ClassificationHead, Pooling
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Tokens

D, LENGTHS = 10, [7, 3, 5, 4]
LABELS = ("rock", "jazz", "folk")
POOLINGS: list[Pooling] = ["mean", "first", "attention"]


def batch() -> Tokens:
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return Tokens(torch.randn(len(LENGTHS), D, max(LENGTHS)), mask, torch.zeros(len(LENGTHS), 1, max(LENGTHS)).long())


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_head_overfits_a_batch(pooling: Pooling) -> None:
    head, trunk, tokens = ClassificationHead(LABELS, D, pooling=pooling), Transformer(D, 1, 2, 20), batch()
    wanted = ["jazz", "rock", "folk", "jazz"]
    target = torch.stack([head.encode(label) for label in wanted])
    optimizer = torch.optim.Adam([*head.parameters(), *trunk.parameters()], lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        head.loss(trunk(tokens), target).backward()
        optimizer.step()
    assert head.loss(trunk(tokens), target) < 0.05
    predictions = head.predict(trunk(tokens))
    assert head.metrics(predictions, wanted) == {"accuracy": 100, "macro_f1": 100}
    assert [head.describe(prediction).split()[0] for prediction in predictions] == wanted


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_prediction_are_the_same_alone_and_in_a_batch(pooling: Pooling, smoothing: float) -> None:
    head, trunk = ClassificationHead(LABELS, D, pooling=pooling, label_smoothing=smoothing), Transformer(D, 1, 2, 20)
    tokens, target = batch(), torch.tensor([0, 2, 1, 1])
    together = trunk(tokens)
    losses: list[torch.Tensor] = []
    for b, length in enumerate(LENGTHS):
        alone = trunk(Tokens(*(part[b : b + 1, ..., :length] for part in tokens)))
        losses.append(head.loss(alone, target[b : b + 1]))
        torch.testing.assert_close(head.predict(alone)[0], head.predict(together)[b])
    torch.testing.assert_close(head.loss(together, target), torch.stack(losses).mean())


def test_the_loss_is_the_smoothed_cross_entropy() -> None:
    """Szegedy et al. 2016, section 7: the true label has 1 - e of the target, and all labels share e."""
    head, tokens, target = ClassificationHead(LABELS, D, label_smoothing=0.3), batch(), [0, 2, 1, 1]
    expected = 0.0
    for prediction, label in zip(head.predict(tokens), target, strict=True):
        shares = [0.3 / 3 + (0.7 if c == label else 0) for c in range(3)]
        expected -= sum(share * math.log(p) for share, p in zip(shares, prediction.tolist(), strict=True)) / 4
    assert head.loss(tokens, torch.tensor(target)).item() == pytest.approx(expected, rel=1e-5)


def test_pooling_is_the_mean_of_real_columns_or_the_first_or_one_weighted_by_a_softmax() -> None:
    tokens = batch()
    for pooling in POOLINGS:
        head = ClassificationHead(LABELS, D, pooling=pooling)
        for b, length in enumerate(LENGTHS):
            columns = tokens.matrix[b, :, :length]
            pooled = columns.mean(1) if pooling == "mean" else columns[:, 0]
            if head.pool.weigh is not None:
                pooled = columns @ (head.pool.weigh.weight[0] @ columns).softmax(0)
            torch.testing.assert_close(head.logits(tokens)[b], head.out(pooled))


def test_pooling_by_attention_begins_to_choose() -> None:
    head, tokens = ClassificationHead(LABELS, D, pooling="attention"), batch()
    assert head.pool.weigh is not None
    head.loss(tokens, torch.tensor([0, 1, 2, 0])).backward()
    assert head.pool.weigh.weight.grad is not None
    assert head.pool.weigh.weight.grad.abs().sum() > 0
    with pytest.raises(InputError, match="no pooling 'max': choose one of mean, first, attention"):
        ClassificationHead(LABELS, D, pooling="max")  # pyright: ignore[reportArgumentType]


def test_predictions_are_probabilities_and_dropout_rests_in_evaluation() -> None:
    head, tokens = ClassificationHead(LABELS, D, dropout=0.5).eval(), batch()
    predictions = torch.stack(head.predict(tokens))
    torch.testing.assert_close(predictions.sum(1), torch.ones(len(LENGTHS)))
    assert torch.equal(predictions, torch.stack(head.predict(tokens)))
    assert not torch.equal(predictions, torch.stack(head.train().predict(tokens)))


@pytest.mark.parametrize("examples", [5, 200])
@pytest.mark.parametrize("classes", [2, 12])
def test_metrics_are_scikit_learns(examples: int, classes: int) -> None:
    labels = [f"class {c}" for c in range(classes)]
    head = ClassificationHead(labels, D)
    found, wanted = torch.rand(examples, classes), torch.randint(classes, (examples,)).tolist()
    scores = head.metrics(list(found), [labels[c] for c in wanted])
    best = found.argmax(1).tolist()
    assert scores["accuracy"] == pytest.approx(100 * accuracy_score(wanted, best))
    assert scores["macro_f1"] == pytest.approx(100 * f1_score(wanted, best, average="macro"), rel=1e-5)
    assert next(iter(scores)) == "accuracy"


def test_labels_outside_the_set_and_sets_that_are_none() -> None:
    head = ClassificationHead(LABELS, D)
    assert [int(head.encode(label)) for label in LABELS] == [0, 1, 2]
    assert [int(head.encode(number)) for number in (0, np.int64(1), torch.tensor(2))] == [0, 1, 2]
    for label in ("polka", "", 3, -1, 1.0, None):
        with pytest.raises(InputError, match=f"the label {label!r} is outside the set: rock, jazz, folk"):
            head.encode(label)  # pyright: ignore[reportArgumentType]
    for labels in ([], ["one"], ["one", "two", "one"]):
        with pytest.raises(InputError, match="two or more different labels are needed"):
            ClassificationHead(labels, D)


def test_gradients_reach_the_columns_that_are_real_and_no_others() -> None:
    head, tokens = ClassificationHead(LABELS, D), batch()
    matrix = nn.Parameter(tokens.matrix)
    head.loss(tokens._replace(matrix=matrix), torch.tensor([0, 1, 2, 0])).backward()
    assert matrix.grad is not None
    assert torch.equal(matrix.grad.any(1), tokens.mask)


def test_the_loss_of_a_mixed_target_is_the_mean_of_its_labels_losses() -> None:
    head, tokens = ClassificationHead(LABELS, D, label_smoothing=0.1), batch()
    mixed = head.loss(tokens, torch.tensor([[0.3, 0.7, 0.0]] * len(LENGTHS))[..., None])
    first, second = (head.loss(tokens, torch.tensor([label] * len(LENGTHS))) for label in (0, 1))
    torch.testing.assert_close(mixed, 0.3 * first + 0.7 * second)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_a_smoothing_that_is_none(share: float) -> None:
    with pytest.raises(InputError, match=f"label_smoothing={share}: a number from 0"):
        ClassificationHead(["a", "b"], D, label_smoothing=share)
