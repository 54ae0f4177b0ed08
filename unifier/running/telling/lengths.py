"""Test scores of texts by the length of the input."""

from bisect import bisect_right
from collections.abc import Mapping
from statistics import fmean

import numpy as np

from unifier.data.examples import split_of
from unifier.heads.text_scores import bleu_of_few
from unifier.heads.writing import WritingHead
from unifier.study.experiment import Arm
from unifier_tokenizers.parts.vocabulary import WORD

BUCKETS = 8
"""The most groups of test examples, as equal in number as whole lengths allow."""


def by_length(
    arms: Mapping[str, Arm], predictions: Mapping[str, Mapping[int, str]]
) -> dict[str, list[dict[str, float]]]:
    """For each arm from text to text, groups of test examples with inputs of like length, and the BLEU of each.

    A group has the "words" of its inputs on average, the fewest ("from") and the most ("to"), and the number of its
    "examples"; the groups are the test split's alone, so that any two runs on it have the same ones.
    `predictions` are by arm and by the example's index.
    """
    found: dict[str, list[dict[str, float]]] = {}
    for name, arm in arms.items():
        examples = split_of(arm.source, "test")
        if not isinstance(arm.head, WritingHead):
            continue
        if not isinstance(examples[next(iter(predictions[name]))].input, str):  # of those that could be read
            continue
        texts = [(examples[index], said) for index, said in predictions[name].items()]
        lengths = [len(WORD.findall(pair.input)) for pair, _ in texts]
        starts = np.unique(np.quantile(lengths, np.arange(BUCKETS) / BUCKETS, method="lower")).tolist()
        groups: list[list[int]] = [[] for _ in starts]
        for k, length in enumerate(lengths):
            groups[bisect_right(starts, length) - 1].append(k)
        found[name] = [
            {
                "words": fmean(lengths[k] for k in group),
                "from": min(lengths[k] for k in group),
                "to": max(lengths[k] for k in group),
                "examples": len(group),
                "bleu": bleu_of_few(
                    [texts[k][1] for k in group], [texts[k][0].target for k in group], arm.head.language
                ),
            }
            for group in groups
        ]
    return found
