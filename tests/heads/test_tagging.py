"""Any number of tags for an example: learned, scored as scikit-learn scores them, whoever is in the batch."""

import math
from typing import Any

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from unifier.data.dataloader import collate
from unifier.data.encoding import encode_split
from unifier.data.source import Example
from unifier.datasets.digits import Digits
from unifier.heads.classification import Pooling, TaggingHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer, Tokens

D, LENGTHS = 10, [7, 3, 5, 4]
TAGS = ("calm", "joy", "power")
WANTED = [("joy",), (), ("calm", "power"), ("power", "joy", "calm")]
POOLINGS: list[Pooling] = ["mean", "first", "attention"]


def batch() -> Tokens:
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return Tokens(torch.randn(len(LENGTHS), D, max(LENGTHS)), mask, torch.zeros(len(LENGTHS), 1, max(LENGTHS)).long())


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_head_overfits_a_batch(pooling: Pooling) -> None:
    head, trunk, tokens = TaggingHead(TAGS, D, pooling=pooling), Transformer(D, 1, 2, 20), batch()
    target = torch.stack([head.encode(tags) for tags in WANTED])
    optimizer = torch.optim.Adam([*head.parameters(), *trunk.parameters()], lr=0.02)
    for _ in range(80):
        optimizer.zero_grad()
        head.loss(trunk(tokens), target).backward()
        optimizer.step()
    assert head.loss(trunk(tokens), target) < 0.05
    predictions = head.predict(trunk(tokens))
    assert head.metrics(predictions, WANTED) == {"macro_auc": 1, "map": 1}
    for prediction, tags in zip(predictions, WANTED, strict=True):
        assert {tag for tag in TAGS if tag in head.describe(prediction)} == set(tags)
    assert head.describe(predictions[1]) == "none"


@pytest.mark.parametrize("pooling", POOLINGS)
def test_loss_and_prediction_are_the_same_alone_and_in_a_batch(pooling: Pooling) -> None:
    head, trunk, tokens = TaggingHead(TAGS, D, pooling=pooling), Transformer(D, 1, 2, 20), batch()
    target = torch.stack([head.encode(tags) for tags in WANTED])
    together = trunk(tokens)
    losses: list[torch.Tensor] = []
    for b, length in enumerate(LENGTHS):
        alone = trunk(Tokens(*(part[b : b + 1, ..., :length] for part in tokens)))
        losses.append(head.loss(alone, target[b : b + 1]))
        torch.testing.assert_close(head.predict(alone)[0], head.predict(together)[b], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(head.loss(together, target), torch.stack(losses).mean())


def test_tags_that_are_all_but_sure_do_not_tie() -> None:
    head = TaggingHead(TAGS, D)
    torch.nn.init.zeros_(head.out.weight)
    head.out.bias.data = torch.tensor([18.0, 20.0, 30.0])
    calm, joy, power = head.predict(batch())[0].tolist()
    assert calm < joy < power < 1


def test_the_loss_is_the_mean_of_each_tags_surprise() -> None:
    head, tokens = TaggingHead(TAGS, D), batch()
    surprise = [
        -math.log(p if tag in tags else 1 - p)
        for prediction, tags in zip(head.predict(tokens), WANTED, strict=True)
        for tag, p in zip(TAGS, prediction.tolist(), strict=True)
    ]
    target = torch.stack([head.encode(tags) for tags in WANTED])
    assert head.loss(tokens, target).item() == pytest.approx(sum(surprise) / len(surprise), rel=1e-5)


@pytest.mark.parametrize("steps", [None, 5], ids=["smooth", "ties"])
def test_metrics_are_scikit_learns(steps: int | None) -> None:
    tags = [f"tag {c}" for c in range(6)]
    head = TaggingHead(tags, D)
    found = torch.rand(90, 6)
    found = found if steps is None else (found * steps).round() / steps
    wanted = torch.rand(90, 6) < torch.tensor([0.5, 0.1, 0.9, 0.3, 0.0, 1.0])
    assert wanted[:, :4].any(0).all()
    assert not wanted[:, :4].all(0).any()
    targets = [[tag for tag, holds in zip(tags, row, strict=True) if holds] for row in wanted.tolist()]
    scores = head.metrics(list(found), targets)
    # A tag that all or none of the examples have says nothing, and scikit-learn has no score for it.
    expected = found[:, :4].numpy(), wanted[:, :4].numpy()
    assert scores["macro_auc"] == pytest.approx(roc_auc_score(expected[1], expected[0], average="macro"), rel=1e-5)
    assert scores["map"] == pytest.approx(average_precision_score(expected[1], expected[0], average="macro"), rel=1e-5)


def test_targets_that_tell_no_tag_apart_have_no_score() -> None:
    head = TaggingHead(TAGS, D)
    scores = head.metrics([torch.rand(3), torch.rand(3)], [("joy",), ("joy",)])
    assert all(map(math.isnan, scores.values()))


def test_a_target_is_a_collection_of_tags() -> None:
    head = TaggingHead(TAGS, D)
    assert head.encode(["power", "calm", "power"]).tolist() == [1, 0, 1]
    assert head.encode({"joy"}).tolist() == [0, 1, 0]
    assert head.encode(()).tolist() == [0, 0, 0]


def test_tags_outside_the_set_and_sets_that_are_none() -> None:
    with pytest.raises(InputError, match="the tag 'rage' is outside the set: calm, joy, power"):
        TaggingHead(TAGS, D).encode(["joy", "rage"])
    for tags in ([], ["one", "two", "one"]):
        with pytest.raises(InputError, match="one or more different tags are needed"):
            TaggingHead(tags, D)
    assert TaggingHead(["one"], D).predict(batch())[0].shape == (1,)


def test_any_number_of_tags_is_one_target_however_long() -> None:
    head, columns = TaggingHead([f"tag {k}" for k in range(100)], D), Digits().split("train")[:3]
    split, _ = encode_split([Example(one.input, ["tag 3"]) for one in columns], PatchTokenizer(D, channels=1), head)
    assert split.lengths()[:, 1].tolist() == [1, 1, 1]
    assert collate(split, range(3)).lengths()[1].tolist() == [1, 1, 1]


def test_predictions_are_told_apart_under_bfloat16() -> None:
    head, tokens = TaggingHead(TAGS, D), batch()
    wanted = torch.stack(head.predict(tokens))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(torch.stack(head.predict(tokens)), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", [None, 3, [["joy"]], [1]])
def test_what_is_no_collection_of_tags_is_refused(target: Any) -> None:
    with pytest.raises(InputError, match=r"is expected|outside the set"):
        TaggingHead(TAGS, D).encode(target)
