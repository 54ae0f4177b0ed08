"""A head that gives a label to every token, such as named entities in a text or the structure of a protein."""

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, SupportsIndex, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import IGNORE_INDEX, Head, check_labels, check_trained_classes, count_labels, list_labels
from unifier.heads.question_answering import QuestionAnsweringHead, context_of, context_token_seconds, span_text
from unifier.heads.sentence_selection import SentenceSelectionHead, SummaryTarget, split_sentences
from unifier.heads.summed_metrics import SummedHead, percent
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Tokenizer, Tokens, Units, WordTokenizer
from unifier_tokenizers.errors import check_fraction

OUTSIDE = "O"
"""The label of a word outside all entities. An entity begins with the label B-TYPE and continues with I-TYPE."""

UNLABELED = "-"
"""The text for a token without a label."""


@final
class TokenClassificationHead(SummedHead):
    """A linear classifier on each token.

    A target has one label, index of a label, or None per token of the example. A token with None has no label, and is
    neither trained nor scored. A prediction contains the index of a label for each token (N,).

    If all labels are `OUTSIDE`, B-TYPE or I-TYPE, the labels mark entities (the format BIO of CoNLL 2003). The metrics
    are then precision, recall and F1 over complete entities. A prediction is the most probable sequence in which each
    I-TYPE continues an entity of its type. For other labels, the metric is the accuracy over all labeled tokens.
    """

    task_tag = "token-classification"

    def __init__(self, labels: Sequence[str], dim: int, *, dropout: float = 0.0, label_smoothing: float = 0.0) -> None:
        """Build the head.

        Args:
            labels: The names of the C labels.
            dim: D, the number of features of a token.
            dropout: The dropout probability before the linear map.
            label_smoothing: The share of the target probability that is spread evenly over all labels.
        """
        super().__init__()
        self.labels, self.dim = check_labels(labels, minimum=2), dim
        self.label_index = {label: i for i, label in enumerate(self.labels)}
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)
        self.marks_entities = all(label == OUTSIDE or label.startswith(("B-", "I-")) for label in self.labels)
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(dim, len(self.labels))

    def encode(self, target: Sequence[str | SupportsIndex | None]) -> Tensor:
        """Return the index of the label of each token (N,), or `IGNORE_INDEX` for a token without a label."""
        if not isinstance(target, Sequence) or not target:
            raise InputError(f"the target {target!r} is not a sequence of labels, one for each word or token")
        return torch.tensor([IGNORE_INDEX if label is None else self._index(label) for label in target])

    def _index(self, label: str | SupportsIndex) -> int:
        try:
            index = self.label_index[label] if isinstance(label, str) else operator.index(label)
        except (KeyError, TypeError):
            index = -1
        if not 0 <= index < len(self.labels):
            raise InputError(f"label {label!r} is not one of: {', '.join(self.labels)}")
        return index

    def check_target(self, units: Units, target: Tensor) -> None:
        if units.values.shape[-1] != len(target):
            raise InputError(
                f"{len(target)} labels for an input of {units.values.shape[-1]} tokens: give one label per token, and "
                "None for a token without a label"
            )
        if self.marks_entities:
            names = [self.labels[index] if index >= 0 else OUTSIDE for index in target.tolist()]
            for before, name in pairwise([OUTSIDE, *names]):
                if name.startswith("I-") and before[2:] != name[2:]:
                    raise InputError(
                        f"the label {name} after {before} continues no entity: begin each entity with B-{name[2:]}"
                    )

    def check_trained(self, targets: Iterable[Tensor]) -> None:
        check_trained_classes(self.labels, targets)

    def logits(self, tokens: Tokens) -> Tensor:
        """Map Tokens (B, D, N) to logits (B, N, C)."""
        return in_float32(self.out, self.dropout(tokens.matrix.mT))

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean cross-entropy over all labeled tokens, with label indices (B, N)."""
        logits, target = self.logits(tokens).flatten(0, 1), target.flatten()
        losses = functional.cross_entropy(
            logits, target, ignore_index=IGNORE_INDEX, label_smoothing=self.label_smoothing, reduction="sum"
        )
        # A batch may have no labeled token.
        return losses / (target != IGNORE_INDEX).sum().clamp(min=1)

    def target_counts(self, target: Tensor) -> Tensor:
        return count_labels(target)

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, N, C)."""
        return self.logits(tokens).softmax(-1)

    def describe_graph(self) -> list[str]:
        answer = (
            "The answer is the sequence of labels with the largest product of probabilities in which every I-TYPE "
            "follows B-TYPE or I-TYPE of the same type (Viterbi's algorithm)."
        )
        return [
            "`output` has one row of probabilities of the labels per token. Ignore the rows of padding.",
            answer if self.marks_entities else "The answer of each token is the label with the largest probability.",
        ]

    def predict(self, tokens: Tokens) -> list[Tensor]:
        scores, lengths = self.logits(tokens).detach().log_softmax(-1).cpu(), tokens.mask.sum(1).tolist()
        if not self.marks_entities:
            return [best[:n] for best, n in zip(scores.argmax(-1), lengths, strict=True)]
        paths = best_paths(scores.numpy(), tokens.mask.cpu().numpy(), self._transitions())
        return [torch.from_numpy(path[:n]) for path, n in zip(paths, lengths, strict=True)]

    def _transitions(self) -> NDArray[np.float32]:
        """Return 0 for each label (column) that may follow a label (row), and -inf for the others.

        The last row contains the labels that may be first.
        """
        kinds = [*self.labels, OUTSIDE]
        allowed = [[not b.startswith("I-") or (a != OUTSIDE and a[2:] == b[2:]) for b in self.labels] for a in kinds]
        return np.where(allowed, np.float32(0), np.float32(-np.inf))

    def statistics(
        self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str | SupportsIndex | None]]
    ) -> NDArray[np.float64]:
        """Return (n, 3): the number of right, of predicted and of true entities or labels."""
        counts = np.zeros((len(targets), 3))
        for row, (prediction, target) in enumerate(zip(predictions, targets, strict=True)):
            if len(prediction) != len(target):
                raise InputError(
                    f"{len(prediction)} predicted labels for a target of {len(target)} labels: give one label per token"
                )
            true = self.encode(target)
            if self.marks_entities:
                found, expected = (set(self.entities(labels)) for labels in (prediction, true))
                counts[row] = len(found & expected), len(found), len(expected)
            else:
                labeled = true != IGNORE_INDEX
                right, count = int((prediction == true)[labeled].sum()), int(labeled.sum())
                counts[row] = right, count, count
        return counts

    def class_counts(
        self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str | SupportsIndex | None]]
    ) -> dict[str, tuple[int, int, int]]:
        """Return the number of right, of predicted and of true entities of each type, or tokens of each label."""
        found, expected = (
            [(k, *part) for k, labels in enumerate(rows) for part in self._parts(labels)]
            for rows in (predictions, map(self.encode, targets))
        )
        if not self.marks_entities:  # A token without a label counts nothing.
            labeled = {(k, token) for k, _, token, _ in expected}
            found = [part for part in found if (part[0], part[2]) in labeled]
        right = set(found) & set(expected)
        counts = [Counter(kind for _, kind, _, _ in parts) for parts in (right, found, expected)]
        return {kind: (counts[0][kind], counts[1][kind], counts[2][kind]) for kind in self._kinds()}

    def _parts(self, labels: Tensor) -> list[tuple[str, int, int]]:
        """Return the entities, or each labeled token as a part of its own: the kind, the first and the last token."""
        if self.marks_entities:
            return self.entities(labels)
        return [(self.labels[index], token, token) for token, index in enumerate(labels.tolist()) if index >= 0]

    def _kinds(self) -> list[str]:
        """Return the types of entities in the order of the labels, or the labels."""
        if not self.marks_entities:
            return [*self.labels]
        return [*dict.fromkeys(label[2:] for label in self.labels if label != OUTSIDE)]

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        """Return F1, precision and recall of the entities, or the accuracy of the labels, in percent."""
        right, predicted, true = total
        if not self.marks_entities:
            return {"accuracy": percent(right, true)}
        shares = {"precision": percent(right, predicted), "recall": percent(right, true)}
        return {"f1": percent(2 * right, predicted + true), **shares}

    def example_score(
        self, prediction: Tensor, target: Sequence[str | SupportsIndex | None]
    ) -> tuple[float, float] | None:
        if self.marks_entities:  # F1 is not a mean over examples.
            return None
        right, _, count = self.statistics([prediction], [target])[0]
        return percent(right, count), float(count)

    def entities(self, indices: Tensor) -> list[tuple[str, int, int]]:
        """Return the type, the first token and the last token of each entity, given the indices of labels (N,)."""
        from seqeval.metrics.sequence_labeling import get_entities

        return get_entities([self.labels[index] if index >= 0 else OUTSIDE for index in indices.tolist()])

    def describe_target(self, target: Sequence[str | SupportsIndex | None]) -> str:
        return self.describe(self.encode(target))

    def describe(self, prediction: Tensor) -> str:
        labels = [self.labels[index] if index >= 0 else UNLABELED for index in prediction.tolist()]
        return ("" if all(len(label) == 1 for label in labels) else " ").join(labels)

    def describe_task(self, noun: str) -> str:
        return f"gives each token of {noun} one of {len(self.labels):,} labels: {list_labels(self.labels)}."

    def describe_answer(self) -> str:
        path = "sequence without an I-TYPE that continues no entity" if self.marks_entities else "label of each token"
        return f"The answer is the most probable {path}: a softmax over {len(self.labels):,} logits per token."

    def mark(self, words: Iterable[str], indices: Tensor) -> str:
        """Return the words of a text with each entity in brackets, such as "He saw [New York: location]"."""
        marked = [*words]
        for kind, first, last in self.entities(indices):
            marked[first] = f"[{marked[first]}"
            marked[last] = f"{marked[last]}: {kind}]"
        return " ".join(marked)


def describe_labels(head: Head, tokenizer: Tokenizer, raw: Any, labels: Any) -> str | None:
    """Return the words of an input with marked entities, or its chosen sentence or span. Return None for other heads.

    The span of a sound is a time such as 0.50-0.90, in seconds.

    Args:
        head: The head.
        tokenizer: The tokenizer, which divides the input into words.
        raw: The input.
        labels: A prediction, or a raw target.
    """
    if isinstance(head, SentenceSelectionHead):
        if isinstance(labels, SummaryTarget):
            return head.describe_target(labels)
        return (split_sentences(raw) if isinstance(raw, str) else raw)[labels]
    if isinstance(head, QuestionAnsweringHead):
        if (seconds := context_token_seconds(tokenizer)) is not None:
            first, last = (labels if isinstance(labels, Tensor) else head.encode(labels)).tolist()
            return f"{first * seconds:.2f}-{(last + 1) * seconds:.2f}"
        if not isinstance(labels, Tensor):
            return head.describe_target(labels)
        return None if (context := context_of(raw)) is None else span_text(context, *labels.tolist())
    if not (isinstance(head, TokenClassificationHead) and head.marks_entities and isinstance(tokenizer, WordTokenizer)):
        return None
    return head.mark(tokenizer.words(raw), labels if isinstance(labels, Tensor) else head.encode(labels))


def best_paths(
    scores: NDArray[np.float32], mask: NDArray[np.bool_], transitions: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return the sequences of labels (B, N) with the highest sums of scores (Viterbi 1967).

    Args:
        scores: The score of each label for each token (B, N, C).
        mask: True for tokens, and False for the padding at the end (B, N).
        transitions: The score of each pair of successive labels (C + 1, C). The last row has the scores of the first
            label.
    """
    batch, length, classes = scores.shape
    total = scores[:, 0] + transitions[-1]
    origins = np.tile(np.arange(classes), (length, batch, 1))  # Padding repeats the last label.
    for n in range(1, length):
        candidates = total[:, :, None] + transitions[:-1]
        best = candidates.argmax(1)
        advanced = np.take_along_axis(candidates, best[:, None], 1)[:, 0] + scores[:, n]
        total = np.where(mask[:, n, None], advanced, total)
        origins[n] = np.where(mask[:, n, None], best, origins[n])
    paths = np.empty((batch, length), np.int64)
    paths[:, -1] = total.argmax(1)
    for n in range(length - 1, 0, -1):
        paths[:, n - 1] = np.take_along_axis(origins[n], paths[:, n, None], 1)[:, 0]
    return paths
