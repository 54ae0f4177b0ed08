"""Scores of simple rules, beside scores that are counted by hand."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import unifier as uf
from unifier.datasets import find_floor
from unifier.heads.forecasting import Future
from unifier_tokenizers import InputError

WORDS = uf.Vocabulary.fit(["a b c"], size=300, level="word", extra=("<mask>",))


class Pairs:
    """A source of pairs, with equal pairs in val and test."""

    def __init__(self, train: Sequence[Any], test: Sequence[Any]) -> None:
        self._splits: Mapping[str, Sequence[Any]] = {"train": train, "val": test, "test": test}

    def split(self, name: str) -> list[uf.Example]:
        return [uf.Example(*pair) for pair in self._splits[name]]


def measure(source: Pairs, tokenizer: uf.Tokenizer, head: uf.Head, objective: uf.Objective | None = None) -> float:
    return find_floor(source, tokenizer, head, objective).measure()


def words(dim: int = 8) -> uf.SubwordTokenizer:
    return uf.SubwordTokenizer(WORDS, dim)


def test_frequent_label_of_train_is_given_to_each_token() -> None:
    source = Pairs([("abc", ("x", "y", "y"))], [("abcd", ("y", None, "x", "x"))])
    assert measure(source, words(), uf.TokenClassificationHead("xy", 8)) == pytest.approx(100 / 3)


def test_known_entities_prefer_the_longest() -> None:
    head = uf.TokenClassificationHead(("O", "B-d", "I-d"), 8)
    train = [(("bad", "flu"), ("B-d", "I-d")), (("the", "flu"), ("O", "B-d"))]
    test = [(("bad", "flu", "or", "flu"), ("B-d", "I-d", "O", "B-d")), (("cold",), ("B-d",))]
    assert measure(Pairs(train, test), words(), head) == pytest.approx(100 * 2 * 2 / (2 + 3))


def test_threshold_of_otsu_finds_the_smaller_part_in_dark_and_bright_pictures() -> None:
    picture = np.full((8, 8, 3), 40, np.uint8)
    picture[2:4, 2:4] = 200
    mask = (picture[..., 0] > 100).astype(np.uint8)
    source = Pairs([(picture, mask)], [(picture, mask), (255 - picture, mask)])
    head = uf.SegmentationHead(("out", "in"), 8, patch=4)
    assert measure(source, uf.PatchTokenizer(8, patch=4), head) == 100


def test_constant_string_is_the_best_of_train() -> None:
    source = Pairs([(None, "22"), (None, "222"), (None, "12")], [(None, "21"), (None, "22")])
    assert measure(source, words(), uf.CTCHead("12", 8)) == 25


def test_sentence_with_most_words_of_the_question_is_the_answer() -> None:
    context = "It rains. The old mill burned in 1901. Mill and town sleep."
    target = uf.SpanTarget(((8, 8),), ("1901",), context)
    other = {"question": "Why?", "context": "No such word."}
    source = Pairs(
        [(other, uf.SpanTarget(((0, 0),), ("No",), other["context"]))],
        [({"question": "When was the old mill burned?", "context": context}, target)],
    )
    # Without the article, the answer has 5 words, one of which is right.
    assert measure(source, words(), uf.QuestionAnsweringHead(8)) == pytest.approx(100 / 3)


def test_boxes_of_another_picture_are_right_if_all_pictures_are_equal() -> None:
    boxes = uf.Boxes(np.array([[0.0, 0, 8, 8]]), np.array([1]))
    head = uf.TokenDetectionHead(("a", "b"), 8, patch=4)
    source = Pairs([(None, boxes)], [(None, boxes)])
    assert measure(source, uf.PatchTokenizer(8, patch=4), head) == pytest.approx(100)


def test_popular_items_leave_out_the_history() -> None:
    tokenizer = uf.ItemTokenizer(30, 8, length=40)
    train = [([item] * (31 - item), None) for item in range(1, 31)]
    # Item 12 has the rank 12 of all items, and the rank 10 of the items that are not in the history.
    source = Pairs(train, [([1, 2, 12], None), ([29, 12], None)])
    assert measure(source, tokenizer, uf.NextItemHead(tokenizer.embedding)) == 0.5


def test_repeated_values_take_the_period_that_is_best_in_train() -> None:
    days = torch.arange(24.0).repeat(8)[None].double()

    def window(start: int) -> tuple[torch.Tensor, Future]:
        past = days[:, start : start + 168]
        return past, Future(days[:, start + 168 : start + 170], past.mean(1, True), past.std(1, keepdim=True))

    source = Pairs([window(k) for k in range(4)], [window(5)])
    tokenizer = uf.SeriesTokenizer(8, context=168, patch=24, stride=24)
    assert measure(source, tokenizer, uf.ForecastingHead(2, 8, num_patches=7)) == pytest.approx(0)


def test_hidden_ids_are_the_most_frequent_of_train() -> None:
    tokenizer = words()
    head = uf.MaskedLanguageModelingHead(WORDS, 8, embedding=tokenizer.embedding)
    source = Pairs([("b b b a", None)] * 3, [("b", None), ("a", None), ("b", None), ("c", None)])
    assert measure(source, tokenizer, head, uf.MaskedTokens(WORDS, 0.5)) == 50


def test_unigrams_predict_ids_by_their_frequency() -> None:
    tokenizer = uf.SubwordTokenizer(WORDS, 8, begin=True, end=False)
    head = uf.LanguageModelingHead(len(WORDS), 8, vocabulary=WORDS)
    source = Pairs([("a a b", None)], [("a b", None)])
    expected = -(math.log(3 / (3 + len(WORDS))) + math.log(2 / (3 + len(WORDS)))) / 2
    assert measure(source, tokenizer, head, uf.NextToken()) == pytest.approx(expected)


def test_head_without_a_rule_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="ClassificationHead"):
        find_floor(Pairs([], []), words(), uf.ClassificationHead("ab", 8))
