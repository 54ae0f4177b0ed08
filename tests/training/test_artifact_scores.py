"""Confusion matrices and BLEU by input length, counted from a run's test predictions."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch.nn import functional

from unifier.data.source import Example
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.experiment import Task
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.rnn_decoders import RecurrentHead
from unifier.heads.text_metrics import text_scores
from unifier.training.artifacts import LENGTH_BUCKETS, confusion_counts, scores_by_length
from unifier_tokenizers import InputError, PatchTokenizer, SubwordTokenizer, Vocabulary
from unifier_tokenizers.text import WORD_START

D = 8
LABELS = ("dog", "cat", "owl")
PAIRS = GrammarPairs(train=40, val=5, test=120)


def source_of(examples: list[Example]) -> Any:
    return SimpleNamespace(split=lambda name: examples)


def text_tasks() -> dict[str, Task]:
    vocabulary = Vocabulary.fit((text for pair in PAIRS.split("train") for text in pair), size=300)
    head = RecurrentHead(vocabulary, D, depth=1, language="fr")
    return {
        "en-fr": Task(PAIRS, SubwordTokenizer(vocabulary, D), head),
        "digits": Task(Digits(), PatchTokenizer(D, patch=2, channels=1), ClassificationHead(Digits.labels, D)),
    }


def num_words(text: str) -> int:
    return len(WORD_START.findall(text))


def test_confusions_agree_with_sklearn() -> None:
    true = ["cat", "dog", "owl", "cat", "cat", "dog"]
    predicted = {0: "cat", 1: "owl", 3: "dog", 4: "cat", 5: "dog"}  # The example of index 2 is unreadable.
    one_hot = {k: functional.one_hot(torch.tensor(LABELS.index(label)), 3).float() for k, label in predicted.items()}
    labels, tags = source_of([Example(None, t) for t in true]), source_of([Example(None, (t,)) for t in true])
    tasks = {
        "animals": Task(labels, PatchTokenizer(D, channels=1), ClassificationHead(LABELS, D)),
        "moods": Task(tags, PatchTokenizer(D, channels=1), TaggingHead(LABELS, D)),
    }
    expected = confusion_matrix([true[k] for k in predicted], list(predicted.values()), labels=LABELS)
    assert confusion_counts(tasks, dict.fromkeys(tasks, one_hot)) == {
        "animals": {"labels": list(LABELS), "counts": expected.tolist()}
    }


def test_lengths_skip_unreadable_examples() -> None:
    class Torn(list[Example]):
        def __getitem__(self, index: Any) -> Any:
            if index == 0:
                raise InputError("torn")
            return super().__getitem__(index)

    pairs = PAIRS.split("test")
    torn = {"en-fr": replace(text_tasks()["en-fr"], source=source_of(Torn(pairs)))}
    (groups,) = scores_by_length(torn, {"en-fr": dict.fromkeys(range(1, len(pairs)), "")}).values()
    assert sum(group["examples"] for group in groups) == len(pairs) - 1


def test_lengths_group_and_score_each_example() -> None:
    pairs = list(PAIRS.split("test"))
    lengths = [num_words(pair.input) for pair in pairs]
    predictions = {k: pair.target if lengths[k] < 8 else "rien" for k, pair in enumerate(pairs)}
    (groups,) = scores_by_length(text_tasks(), {"en-fr": predictions, "digits": {}}).values()
    assert 3 <= len(groups) <= LENGTH_BUCKETS
    assert sum(group["examples"] for group in groups) == len(pairs)
    assert max(group["examples"] for group in groups) < len(pairs) / 2
    assert all(group["to"] < following["from"] for group, following in pairwise(groups))
    for group in groups:
        rows = [k for k, length in enumerate(lengths) if group["from"] <= length <= group["to"]]
        assert group["from"] <= group["words"] <= group["to"]
        assert group["examples"] == len(rows)
        bleu = text_scores([predictions[k] for k in rows], [pairs[k].target for k in rows], "fr")["bleu"].score
        assert group["bleu"] == pytest.approx(bleu)
        assert (group["bleu"] > 99) == (group["to"] < 8)


@pytest.mark.parametrize(("period", "bleu"), [(1, 100), (2, 50), (21, 0)])
def test_bleu_of_single_words_reaches_100(period: int, bleu: float) -> None:
    examples = [Example(f"w{k}", f"m{k}") for k in range(20)]
    short = {"en-fr": replace(text_tasks()["en-fr"], source=source_of(examples))}
    predictions = {k: f"m{k}" if (k + 1) % period == 0 else "rien" for k in range(20)}
    (group,) = scores_by_length(short, {"en-fr": predictions})["en-fr"]
    assert group["bleu"] == pytest.approx(bleu, abs=3)


def test_texts_of_one_length_are_one_group() -> None:
    pairs = list(PAIRS.split("test"))
    length = num_words(pairs[0].input)
    predictions = {k: pair.target for k, pair in enumerate(pairs) if num_words(pair.input) == length}
    (group,) = scores_by_length(text_tasks(), {"en-fr": predictions})["en-fr"]
    assert (group["from"], group["to"]) == (length, length)
