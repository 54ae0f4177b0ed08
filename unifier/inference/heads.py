"""The effect of each attention head: scores of a trained model on validation examples without one head."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final, get_args

import numpy as np
from scipy.stats import binomtest

from unifier.analysis.activations import align_examples
from unifier.analysis.attention import alignment_error_rate
from unifier.analysis.attention_heads import AttentionHead, attention_layers, without_head
from unifier.data.dataset import open_split
from unifier.data.encoding import encode_split
from unifier.data.source import example_of
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.grammar_agreement import Category, agreement
from unifier.experiment import Task
from unifier.inference.model import Model
from unifier.report.estimates import count_noun
from unifier_tokenizers import InputError

SIGNIFICANCE = 0.05
"""Largest probability with which chance alone gives an effect to at least one of the heads."""

CATEGORIES: tuple[Category, ...] = get_args(Category)

Judgments = dict[tuple[int, int], bool]
"""The correctness of each judged word, keyed by the sentence and the word in the sentence."""


@final
class HeadEffect(NamedTuple):
    """The scores of a model without one attention head."""

    head: AttentionHead | None
    """The head, or None for the whole model."""
    score: float
    """The first metric of the task."""
    alignment_error_rate: float | None
    """The alignment error rate, from 0 to 1, or None without a known alignment."""
    agreement: dict[Category, Judgments]
    """The agreement of the inflected words. The mapping is empty if the task is not a translation of the grammar."""

    def percent(self, category: Category) -> float | None:
        """Return the percentage of the judged words that are correct, or None without judged words."""
        words = self.agreement.get(category)
        return 100 * float(np.mean([*words.values()])) if words else None

    def p_value(self, whole: "HeadEffect", category: Category) -> float:
        """Return the probability that the loss of agreement is random (exact one-sided McNemar test).

        Args:
            whole: The scores of the whole model.
            category: The category of the agreement.
        """
        words, before = self.agreement[category], whole.agreement[category]
        changed = [before[word] for word, right in words.items() if word in before and before[word] != right]
        return float(binomtest(sum(changed), len(changed), 0.5, alternative="greater").pvalue) if changed else 1.0


def measure_heads(model: Model, task: str, max_examples: int, names: Sequence[str] = ()) -> Iterator[HeadEffect]:
    """Yield the scores of the whole model, then the scores without each attention head.

    The validation split of the model's experiment is read, so the run's experiment file is executed.

    Args:
        model: The model of a run.
        task: The name of the task.
        max_examples: The number of validation examples. The first examples of the split are used.
        names: The heads to leave out, such as "cross 2.3". An empty sequence means all heads.

    Raises:
        InputError: The task has an objective, the model has no attention heads or no experiment, a name is no head, or
            an example cannot be read.
    """
    parts = model.tasks[task]
    if parts.objective is not None:
        raise InputError(
            f"the task {task} has the objective {type(parts.objective).__name__}: give a task with targets"
        )
    layers = attention_layers(model.network.trunk, parts.head)
    if not layers:
        raise InputError(f"the model {model.name} has no attention heads: give a model with a transformer")
    heads = {
        AttentionHead(part, number, index + 1): (layer, index)
        for (part, number), layer in layers.items()
        for index in range(layer.heads)
    }
    if unknown := [name for name in names if name not in map(str, heads)]:
        listed = ", ".join(f"{part} {number}.1 to {number}.{layer.heads}" for (part, number), layer in layers.items())
        raise InputError(f"head={unknown[0]}: the model has no such head; its heads are {listed}")
    source = model.experiment.tasks[task].source
    examples = open_split(source, "val")
    rows = range(min(max_examples, len(examples)))
    inputs, targets = zip(*(example_of(examples[row])[:2] for row in rows), strict=True)
    trained = Task(source, parts.tokenizer, parts.head)
    split, _ = encode_split([examples[row] for row in rows], parts.tokenizer, parts.head)

    def measure(head: AttentionHead | None) -> HeadEffect:
        predictions = list(model.predictions(inputs, task))
        with model.inference_mode():
            aligned = align_examples(model.network.trunk, trained, split, rows)
        known = [sentence for sentence in aligned.values() if sentence.gold]
        return HeadEffect(
            head,
            next(iter(parts.head.checked_metrics(predictions, targets).values())),
            alignment_error_rate(known) if known else None,
            judge(predictions, targets) if isinstance(source, GrammarPairs) else {},
        )

    yield measure(None)
    for head, (layer, index) in heads.items():
        if not names or str(head) in names:
            with without_head(layer, index):
                yield measure(head)


def judge(predictions: Sequence[str], targets: Sequence[str]) -> dict[Category, Judgments]:
    """Return the agreement of each inflected word of the translations."""
    judgments: dict[Category, Judgments] = {category: {} for category in CATEGORIES}
    for sentence, (prediction, target) in enumerate(zip(predictions, targets, strict=True)):
        for word, category, right in agreement(prediction, target):
            judgments[category][sentence, word] = right
    return judgments


def carrier(effects: Sequence[HeadEffect], category: Category) -> HeadEffect | None:
    """Return the head without which the agreement is worst, or None if no head has an effect.

    A head has an effect if the p-value, multiplied by the number of heads (Bonferroni), is at most `SIGNIFICANCE`.

    Args:
        effects: The scores of the whole model, then the scores without each head.
        category: The category of the agreement.
    """
    whole, *heads = effects
    if not whole.agreement.get(category):
        return None
    best = min(heads, key=lambda each: (each.p_value(whole, category), each.percent(category) or 0))
    return best if best.p_value(whole, category) * len(heads) <= SIGNIFICANCE else None


def describe_carrier(effects: Sequence[HeadEffect], category: Category) -> str:
    """Return a sentence about the head without which the agreement is worst, if any head has an effect."""
    whole, *heads = effects
    words = count_noun(len(whole.agreement[category]), "judged word")
    if not whole.agreement[category]:
        return f"{category}: {words}, so no head is compared; give more examples, or a model that translates better"
    if (found := carrier(effects, category)) is None:
        over = count_noun(len(heads), "head")
        return f"{category}: no significant effect on the agreement ({words}, p > {SIGNIFICANCE} for {over})"
    before, after = whole.percent(category), found.percent(category)
    p_value = found.p_value(whole, category) * len(heads)
    scores = f"{before:.1f} % correct, {after:.1f} % without the head"
    return f"{category}: head {found.head} ({words}, {scores}, p = {p_value:.1g})"


def to_rows(effects: Sequence[HeadEffect]) -> list[dict[str, Any]]:
    """Return one row of a table per head. The first row is the whole model."""
    rows: list[dict[str, Any]] = []
    for each in effects:
        row: dict[str, Any] = {"without head": "none" if each.head is None else str(each.head), "score": each.score}
        row |= {f"{category} %": each.percent(category) for category in each.agreement}
        if each.alignment_error_rate is not None:
            row["alignment error %"] = 100 * each.alignment_error_rate
        rows.append(row)
    return rows
