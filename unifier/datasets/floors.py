"""Floors: scores of simple rules without a model, such as the most frequent label, measured on the test split.

A rule is fitted to train. Its answers for test are scored by the metrics of the head.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unifier.data.dataloader import Batch, Objective
from unifier.data.dataset import open_split
from unifier.data.source import Example, Source, SplitName, target_of
from unifier.datasets.gray_pictures import independent_pixel_nats
from unifier.heads.ctc import CTCHead
from unifier.heads.detection import DetectionHead, FoundBoxes
from unifier.heads.forecasting import ForecastingHead
from unifier.heads.head import IGNORE_INDEX, Head
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.heads.masked_language_modeling import MaskedLanguageModelingHead
from unifier.heads.masked_reconstruction import MaskedReconstructionHead
from unifier.heads.next_item import NextItemHead
from unifier.heads.question_answering import CONTEXT, QUESTION, QuestionAnsweringHead, context_token_seconds
from unifier.heads.segmentation import SegmentationHead
from unifier.heads.sentence_selection import split_sentences
from unifier.heads.token_classification import OUTSIDE, TokenClassificationHead
from unifier_tokenizers import InputError, Mixture, PixelTokenizer, Tokenizer, pad_columns
from unifier_tokenizers.text import WORD_START

NUM_FITTED = 200
"""The number of training examples among which the setting of a rule is chosen."""

PERIODS = (1, 24, 168)
"""The numbers of time steps that a forecast may repeat: the last value, day or week of hourly values."""

NUM_GRAYS, NUM_PARTS = 256, 10

WORD = re.compile(r"\w+")


@final
class Floor(NamedTuple):
    """A simple rule without a model."""

    metric: str
    """The metric of the head in which the rule is scored."""
    perfect: float
    """The best possible value of the metric."""
    rule: str
    """The rule in words."""
    measure: Callable[[], float]
    """A function that returns the score of the rule on the test split. It may read all of train and test."""


def find_floor(source: Source, tokenizer: Tokenizer, head: Head, objective: Objective | None = None) -> Floor:
    """Return the simple rule for the kind of head, given the parts of a task.

    Raises:
        InputError: No rule is known for the head.
    """
    match head:
        case MaskedLanguageModelingHead() if objective is not None:
            rule = "the most frequent hidden id of train"
            return Floor("accuracy", 100.0, rule, lambda: frequent_id_accuracy(source, tokenizer, objective))
        case MaskedReconstructionHead():  # R2 compares the error with the error of this rule.
            return Floor("r2", 100.0, "the mean of each hidden patch", lambda: 0.0)
        case LanguageModelingHead() if isinstance(tokenizer, PixelTokenizer):
            rule = "each pixel by the frequencies of its own grays in train"
            return Floor(f"nats_per_{head.unit}", 0.0, rule, lambda: independent_pixel_nats(source, tokenizer))
        case LanguageModelingHead():
            rule = "each id by its frequency in train"
            return Floor(f"nats_per_{head.unit}", 0.0, rule, lambda: unigram_nats(source, tokenizer, head.num_ids))
        case NextItemHead():
            rule = "the most popular items of train"
            return Floor("hit_rate_10", 1.0, rule, lambda: popular_items_score(source, head)["hit_rate_10"])
        case ForecastingHead():
            rule = f"the last {', '.join(map(str, PERIODS))} values repeated, the best of them in train"
            return Floor("mse", 0.0, rule, lambda: repeated_values_score(source, head)["mse"])
        case TokenClassificationHead() if head.marks_entities:
            return Floor("f1", 100.0, "the entities of train", lambda: known_entities_score(source, head)["f1"])
        case TokenClassificationHead():
            rule = "the most frequent label of train"
            return Floor("accuracy", 100.0, rule, lambda: frequent_label_score(source, head)["accuracy"])
        case SegmentationHead():
            return Floor("iou", 100.0, "the threshold of Otsu", lambda: otsu_score(source, head)["iou"])
        case CTCHead():
            rule = "the constant string that is best in train"
            return Floor("error_rate", 0.0, rule, lambda: constant_string_score(source, head)["error_rate"])
        case QuestionAnsweringHead() if isinstance(tokenizer, Mixture) and context_token_seconds(tokenizer):
            rule = "the same part of each sound, the best of train"
            return Floor("f1", 100.0, rule, lambda: fixed_part_score(source, tokenizer, head)["f1"])
        case QuestionAnsweringHead():
            rule = "the sentence with most words of the question"
            return Floor("f1", 100.0, rule, lambda: matching_sentence_score(source, head)["f1"])
        case DetectionHead():
            rule = "the boxes of another picture"
            return Floor("ap50", 100.0, rule, lambda: other_boxes_score(source, head)["ap50"])
        case _:
            raise InputError(f"{type(head).__name__}: no simple rule is known for this head; give a ScoreRange")


def unigram_nats(source: Source, tokenizer: Tokenizer, num_ids: int) -> float:
    """Return the test loss in nats per id if each id is predicted by its frequency in train.

    Args:
        source: The data set.
        tokenizer: A tokenizer whose values are ids (N,) after a begin token, which is not counted.
        num_ids: The number of ids. The count of each id is increased by 1.
    """
    train, test = (_count_ids(source, split, tokenizer, num_ids) for split in ("train", "test"))
    return float(-(np.log((train + 1) / (train + 1).sum()) * test).sum() / max(test.sum(), 1))


def _count_ids(source: Source, split: SplitName, tokenizer: Tokenizer, num_ids: int) -> NDArray[np.int64]:
    codes = (tokenizer.encode(example.input).values[1:].numpy() for example in open_split(source, split))
    return sum((np.bincount(each, minlength=num_ids) for each in codes), np.zeros(num_ids, np.int64))


def frequent_id_accuracy(source: Source, tokenizer: Tokenizer, objective: Objective) -> float:
    """Return the accuracy in percent if each hidden id of test is predicted as the most frequent hidden id of train.

    Args:
        source: The texts.
        tokenizer: A tokenizer of ids.
        objective: The objective, which hides ids. Its random numbers have the number of the example as seed.
    """

    def hidden(split: SplitName) -> Counter[int]:
        counts: Counter[int] = Counter()
        for index, example in enumerate(open_split(source, split)):
            values, positions, mask = pad_columns([tokenizer.encode(example.input)])
            batch = Batch(values, positions, mask, torch.zeros(1), torch.tensor([index]))
            target = objective(batch, [torch.Generator().manual_seed(index)]).target
            counts.update(target[target != IGNORE_INDEX].tolist())
        return counts

    (best, _), *_ = hidden("train").most_common(1)
    test = hidden("test")
    return 100 * test[best] / test.total()


def popular_items_score(source: Source, head: NextItemHead) -> dict[str, float]:
    """Return the test scores if items are recommended by how often each item occurs in train.

    Items of the history are left out, as in `NextItemHead`. Of equally frequent items, the first of the catalog is
    recommended first.
    """
    counts = np.zeros(head.num_items + 1)
    for example in open_split(source, "train"):
        np.add.at(counts, example.input, 1)
    place = np.empty_like(counts)
    place[np.argsort(-counts[1:], kind="stable") + 1] = np.arange(head.num_items)
    ranks: list[int] = []
    for example in open_split(source, "test"):
        *history, answer = example.input
        before = {item for item in history if item != answer and place[item] < place[answer]}
        ranks.append(1 + int(place[answer]) - len(before))
    return dict(head.metrics(ranks, ranks))


def repeated_values_score(source: Source, head: ForecastingHead) -> dict[str, float]:
    """Return the test scores if the last values of the window are repeated.

    The number of values is the one of `PERIODS` with the smallest error on `NUM_FITTED` windows of train.
    """

    def score(split: SplitName, period: int, count: int | None = None) -> dict[str, float]:
        examples = open_split(source, split)
        rows = range(0, len(examples), _step(examples, count))
        columns = torch.arange(head.horizon) % period - period
        return _score(head, (examples[row] for row in rows), lambda example: torch.as_tensor(example.input)[:, columns])

    return score("test", min(PERIODS, key=lambda period: score("train", period, NUM_FITTED)["mse"]))


def frequent_label_score(source: Source, head: TokenClassificationHead) -> dict[str, float]:
    """Return the test scores if each token gets the most frequent label of train."""
    counts = Counter(label for target in _targets(source, "train") for label in target if label is not None)
    best = head.encode([max(counts, key=counts.__getitem__)])
    return _score_targets(head, _targets(source, "test"), lambda target: best.expand(len(target)))


def known_entities_score(source: Source, head: TokenClassificationHead) -> dict[str, float]:
    """Return the test scores if the entities of train are marked, the longest first, from the start of a sentence."""
    known: dict[tuple[str, ...], str] = {}
    for example in open_split(source, "train"):
        for kind, first, last in head.entities(head.encode(example.target)):
            known[tuple(example.input[first : last + 1])] = kind
    longest = max(map(len, known), default=0)

    def mark(example: Example) -> Tensor:
        words, labels, start = tuple(example.input), list[str](), 0
        while start < len(words):
            sizes = (n for n in range(min(longest, len(words) - start), 0, -1) if words[start : start + n] in known)
            size = next(sizes, 0)
            kind = known.get(words[start : start + size])
            labels += [OUTSIDE] if kind is None else [f"B-{kind}", *[f"I-{kind}"] * (size - 1)]
            start += max(size, 1)
        return head.encode(labels)

    return _score(head, open_split(source, "test"), mark)


def otsu_score(source: Source, head: SegmentationHead) -> dict[str, float]:
    """Return the test scores if Otsu's threshold divides each picture, and the smaller part is the second class.

    The threshold maximizes the variance between both parts (Otsu 1979).
    """

    def divide(example: Example) -> Tensor:
        picture = np.asarray(example.input, np.float64)
        gray = picture.mean(2) if picture.ndim == 3 else picture
        counts = np.bincount(gray.astype(np.int64).ravel(), minlength=NUM_GRAYS).astype(np.float64)
        below, sums = counts.cumsum(), (counts * np.arange(NUM_GRAYS)).cumsum()
        above = below[-1] - below
        with np.errstate(divide="ignore", invalid="ignore"):
            variance = (sums[-1] * below - sums * below[-1]) ** 2 / (below * above)
        bright = gray.astype(np.int64) > int(np.nanargmax(np.where(below * above > 0, variance, -1)))
        return torch.from_numpy((bright if bright.mean() < 0.5 else ~bright).astype(np.uint8))

    return _score(head, open_split(source, "test"), divide)


def constant_string_score(source: Source, head: CTCHead) -> dict[str, float]:
    """Return the test scores of the best constant string, which repeats one symbol.

    The string is chosen by its error rate on about `NUM_FITTED` examples of train.
    """
    train = _targets(source, "train", NUM_FITTED)
    longest = max(map(len, train))
    strings = [torch.tensor([k] * n) for k in range(1, len(head.labels) + 1) for n in range(1, longest + 1)]
    best = min(strings, key=lambda string: head.metrics([string] * len(train), train)["error_rate"])
    return _score_targets(head, _targets(source, "test"), lambda target: best)


def matching_sentence_score(source: Source, head: QuestionAnsweringHead) -> dict[str, float]:
    """Return the test scores if the answer is the whole sentence with the most words of the question.

    A word counts by its inverse document frequency in the contexts of train.
    """
    contexts = {example.input[CONTEXT]: None for example in open_split(source, "train")}
    counts = Counter(word for context in contexts for word in _words(context))

    def choose(example: Example) -> Tensor:
        question, sentences = _words(example.input[QUESTION]), split_sentences(example.input[CONTEXT])
        scores = [
            sum(math.log((1 + len(contexts)) / (1 + counts[word])) for word in question & _words(sentence))
            for sentence in sentences
        ]
        best = int(np.argmax(scores))
        lengths = [len(WORD_START.findall(sentence)) for sentence in sentences]
        first = sum(lengths[:best])
        return torch.tensor([first, first + lengths[best] - 1])

    return _score(head, open_split(source, "test"), choose)


def fixed_part_score(source: Source, tokenizer: Mixture, head: QuestionAnsweringHead) -> dict[str, float]:
    """Return the test scores if the answer is the same part of each context, such as from 0.2 to 0.4 of its tokens.

    The part begins and ends at tenths, and is chosen by its F1 on about `NUM_FITTED` examples of train.
    """

    def measure(split: SplitName, count: int | None = None) -> tuple[list[int], list[Any]]:
        examples = open_split(source, split)
        chosen = [examples[row] for row in range(0, len(examples), _step(examples, count))]
        context = tokenizer.members[CONTEXT]
        lengths = [context.encode(example.input[CONTEXT]).values.shape[-1] for example in chosen]
        return lengths, [example.target for example in chosen]

    def score(lengths: Sequence[int], targets: Sequence[Any], part: tuple[int, int]) -> dict[str, float]:
        spans = [(length * part[0] // NUM_PARTS, length * part[1] // NUM_PARTS - 1) for length in lengths]
        return head.checked_metrics([torch.tensor([first, max(first, last)]) for first, last in spans], targets)

    train, parts = measure("train", NUM_FITTED), combinations(range(NUM_PARTS + 1), 2)
    return score(*measure("test"), max(parts, key=lambda part: score(*train, part)["f1"]))


def _words(text: str) -> set[str]:
    return {*WORD.findall(text.lower())}


def other_boxes_score(source: Source, head: DetectionHead) -> dict[str, float]:
    """Return the test scores if the objects of a random training picture are found in each picture."""
    train, test = (_targets(source, split) for split in ("train", "test"))
    drawn = np.random.default_rng(0).integers(len(train), size=len(test))
    found = [
        FoundBoxes(torch.as_tensor(boxes.corners).float(), torch.as_tensor(boxes.labels), torch.ones(len(boxes.labels)))
        for boxes in (train[k] for k in drawn.tolist())
    ]
    return head.checked_metrics(found, test)


def _targets(source: Source, split: SplitName, count: int | None = None) -> list[Any]:
    """Return the targets of a split, or of at most about `count` examples that are evenly spaced in the split."""
    examples = open_split(source, split)
    return [target_of(examples, index) for index in range(0, len(examples), _step(examples, count))]


def _step(examples: Sequence[Example], count: int | None) -> int:
    return 1 if count is None else max(len(examples) // count, 1)


def _score(head: Head, examples: Iterable[Example], answer: Callable[[Example], Any]) -> dict[str, float]:
    pairs = [(answer(example), example.target) for example in examples]
    return head.checked_metrics([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _score_targets(head: Head, targets: Sequence[Any], answer: Callable[[Any], Any]) -> dict[str, float]:
    return head.checked_metrics([*map(answer, targets)], targets)
