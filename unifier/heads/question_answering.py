"""A head that answers a question with a part of the context: extractive question answering."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import count_examples
from unifier.heads.summed_metrics import SummedHead
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Mixture, Tokenizer, Tokens, Units
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.text import WORD_START

CONTEXT, QUESTION = "context", "question"
"""The members of a mixture for question answering. The context is the last member."""


@final
class SpanTarget(NamedTuple):
    """The true spans in a context, each as the index of its first and of its last token, and their texts."""

    spans: tuple[tuple[int, int], ...]
    texts: tuple[str, ...] = ()
    """The text of each span, or () if the context is not a text."""
    context: str = ""
    """The text whose words are the tokens of the context."""


@final
class QuestionAnsweringHead(SummedHead):
    """Two scores for each token of the context: the answer begins here, and the answer ends here.

    The context is the last member of a mixture, and its positions begin with 0. A prediction contains the indices of
    the first and the last token of the answer in the context. The answer is the span of at most `max_length` tokens
    with the largest sum of both scores (Devlin et al. 2019, section 4.2).

    A target is a `SpanTarget`, and training predicts its most frequent span. The metrics for texts are exact match and
    F1 of SQuAD (Rajpurkar et al. 2016, section 6.1), without case, articles and punctuation. The metrics for other
    contexts compare the tokens of the spans. For several true spans, the highest score counts.
    """

    task_tag = "question-answering"

    def __init__(self, dim: int, *, max_length: int = 30, dropout: float = 0.0) -> None:
        """Build the head.

        Args:
            dim: D, the number of features of a token.
            max_length: The largest number of tokens of an answer.
            dropout: The dropout probability before the linear map.
        """
        super().__init__()
        if max_length < 1:
            raise InputError(f"max_length={max_length}: an answer has at least 1 token")
        self.dim, self.max_length = dim, max_length
        self.dropout, self.out = Dropout(dropout), nn.Linear(dim, 2)

    def encode(self, target: SpanTarget) -> Tensor:
        """Return the first and the last token (2,) of the most frequent span."""
        if not isinstance(target, SpanTarget) or not target.spans:
            raise InputError("a SpanTarget with at least one span is expected")
        first, last = max(target.spans, key=target.spans.count)
        if not 0 <= first <= last:
            raise InputError(f"the span from token {first} to {last} is empty: give the first and the last token")
        return torch.tensor([first, last])

    def check_target(self, units: Units, target: Tensor) -> None:
        length = int(_is_context(units.positions[None]).sum())
        if int(target[1]) >= length:
            raise InputError(
                f"the span from token {int(target[0])} to {int(target[1])} is outside its context, which has "
                f"{length} tokens: correct the span"
            )

    def logits(self, tokens: Tokens) -> Tensor:
        """Map Tokens (B, D, N) to the scores (B, 2, N) of the first and the last token, -inf outside the context."""
        scores = in_float32(self.out, self.dropout(tokens.matrix.mT)).mT
        return scores.masked_fill(~(_is_context(tokens.positions) & tokens.mask)[:, None], -torch.inf)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of the first and the last token, with their indices (B, 2)."""
        places = target + _is_context(tokens.positions).to(torch.uint8).argmax(1, keepdim=True)
        return functional.cross_entropy(self.logits(tokens).flatten(0, 1), places.flatten())

    def target_counts(self, target: Tensor) -> Tensor:
        return count_examples(target)

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, 2, N) of the first and the last token of the answer."""
        return self.logits(tokens).softmax(-1)

    def describe_graph(self) -> list[str]:
        return [
            "Axis 1 of `output` has the probability that the answer begins, and the probability that it ends, with "
            "each token. Tokens outside the context have the probability 0.",
            f"The answer is the span of at most {self.max_length} tokens with the largest product of both.",
        ]

    def predict(self, tokens: Tokens) -> list[Tensor]:
        begins, ends = self.logits(tokens).detach().float().cpu().unbind(1)
        length = begins.shape[1]
        legal = torch.ones(length, length, dtype=torch.bool).triu().tril(self.max_length - 1)
        starts = _is_context(tokens.positions.cpu()).to(torch.uint8).argmax(1).tolist()
        answers: list[Tensor] = []
        for begin, end, start in zip(begins, ends, starts, strict=True):  # A matrix (N, N) per example is enough.
            best = int((begin[:, None] + end).masked_fill(~legal, -torch.inf).argmax())
            answers.append(torch.tensor([best // length - start, best % length - start]))
        return answers

    def statistics(self, predictions: Sequence[Tensor], targets: Sequence[SpanTarget]) -> NDArray[np.float64]:
        """Return (n, 3): F1 and exact match of each answer in percent, and 1."""
        rows: list[tuple[float, float, float]] = []
        for prediction, target in zip(predictions, targets, strict=True):
            first, last = prediction.tolist()
            if target.texts:
                rows.append(answer_scores(span_text(target.context, first, last), target.texts))
                continue
            found = [
                200 * max(min(last, end) - max(first, begin) + 1, 0) / (last - first + end - begin + 2)
                for begin, end in target.spans
            ]
            rows.append((max(found), 100.0 * ((first, last) in target.spans), 1.0))
        return np.array(rows, np.float64)

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        return answer_means(total)

    def example_score(self, prediction: Tensor, target: SpanTarget) -> tuple[float, float]:
        return float(self.statistics([prediction], [target])[0, 0]), 1.0

    def describe(self, prediction: Tensor) -> str:
        return f"{int(prediction[0])} to {int(prediction[1])}"

    def describe_target(self, target: SpanTarget) -> str:
        return target.texts[0] if target.texts else self.describe(self.encode(target))

    def describe_task(self, noun: str) -> str:
        return f"answers a question with a part of its context, given {noun}."

    def describe_answer(self) -> str:
        return (
            "A linear map of each token of the context gives two scores: the answer begins, and it ends, with this "
            f"token. The answer is the span of at most {self.max_length} tokens with the largest sum of both."
        )


def _is_context(positions: Tensor) -> Tensor:
    """Return True (B, N) for the tokens of the last member of a mixture, given positions (B, A, N)."""
    members = (positions[:, 0] == 0).cumsum(1)  # The positions of each member begin with 0.
    return (members == members[:, -1:]) & (positions[:, 0] >= 0)


def answer_scores(text: str, answers: Sequence[str]) -> tuple[float, float, float]:
    """Return F1 and exact match of an answer by the rules of SQuAD in percent, and 1. The best true answer counts."""
    from torchmetrics.functional.text import squad

    true = {"answers": {"text": [*answers], "answer_start": [0] * len(answers)}, "id": "0"}
    scores = squad({"prediction_text": text, "id": "0"}, true)
    return float(scores["f1"]), float(scores["exact_match"]), 1.0


def answer_means(total: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean F1 and exact match, given the sums (3,) of the columns of `answer_scores`."""
    return dict(zip(("f1", "exact_match"), (total[:2] / total[2]).tolist(), strict=True))


def word_span(context: str, begin: int, text: str) -> tuple[int, int]:
    """Return the first and the last word of an answer in its context.

    Args:
        context: The text.
        begin: The index of the answer's first character.
        text: The answer.

    Raises:
        InputError: The answer is empty, or the context does not have the answer at this place.
    """
    if not text.strip() or context[begin : begin + len(text)] != text or begin < 0:
        place = f" at character {begin}" if begin >= 0 else ""
        raise InputError(f"the context has no answer {text[:50]!r}{place}: correct the answer")
    words = [*WORD_START.finditer(context)]
    inside = [k for k, word in enumerate(words) if word.start() < begin + len(text) and word.end() > begin]
    return inside[0], inside[-1]


def timed_span(begin: float, end: float, token_seconds: float) -> tuple[int, int]:
    """Return the first and the last token of a time span in a sound.

    Args:
        begin: The begin of the span, in seconds.
        end: The end of the span, in seconds.
        token_seconds: The time from one token to the next, in seconds.
    """
    first = int(begin / token_seconds)
    return first, max(first, int(end / token_seconds) - 1)


def span_text(context: str, first: int, last: int) -> str:
    """Return the part of a context from its word `first` to its word `last`."""
    words = [*WORD_START.finditer(context)]
    return context[words[first].start() : words[min(last, len(words) - 1)].end()]


def mark_spans(context: str, spans: Mapping[str, tuple[int, int]]) -> str:
    """Return a context in which the words of spans are marked as [words: kinds], such as "[in 1973: true+predicted]".

    Args:
        context: The text.
        spans: The first and the last word of each kind of span.
    """
    words = [*WORD_START.finditer(context)]
    kinds = ["+".join(name for name, (a, b) in spans.items() if a <= k <= b) for k in range(len(words))]
    parts, end = list[str](), 0
    for k, word in enumerate(words):
        is_first, is_last = k == 0 or kinds[k - 1] != kinds[k], k + 1 == len(words) or kinds[k + 1] != kinds[k]
        parts.append(context[end : word.start()] + "[" * bool(kinds[k] and is_first) + word.group())
        parts.append(f": {kinds[k]}]" if kinds[k] and is_last else "")
        end = word.end()
    return "".join(parts) + context[end:]


def context_token_seconds(tokenizer: Tokenizer) -> float | None:
    """Return the time from one token of a sound as context to the next, in seconds, or None for other contexts.

    In an input, the path of a sound is a text, too.
    """
    if not isinstance(tokenizer, Mixture) or CONTEXT not in tokenizer.members:
        return None
    context = tokenizer.members[CONTEXT]
    return context.token_seconds if isinstance(context, AudioTokenizer) else None


def context_of(raw: Any) -> str | None:
    """Return the context of an input, or None if the context is not a text."""
    context = raw.get(CONTEXT) if isinstance(raw, Mapping) else raw
    return context if isinstance(context, str) else None
