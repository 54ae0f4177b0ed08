"""The head of masked language models, which predicts hidden tokens as entries of the vocabulary."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import IGNORE_INDEX, Head, count_labels
from unifier.nn.cross_entropy import projected_cross_entropy
from unifier.nn.linear import Linear, linear
from unifier.nn.precision import LayerNorm, to_compute_dtype
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, Tokenizer, Tokens, Vocabulary
from unifier_tokenizers.words import MAX_PIECES

MASK = "<mask>"
"""The extra entry of a vocabulary that replaces hidden tokens. In the inputs of a trained model, the entry is a gap."""

TOP_WORDS, DESCRIBED_WORDS = 100, 5
"""The number of likeliest words for each gap of an input: in a prediction, and in the prediction as text."""

CHUNK_ROWS = 1024
"""The number of hidden tokens whose logits are in memory at the same time, in validation and inference."""


TEMPERATURE = 2.0
"""The temperature at which a model learns the predictions of its teacher, as in DistilBERT."""


@final
class HiddenTokens(NamedTuple):
    """The answers for the hidden tokens of one example."""

    nats: float
    """The sum of the negative log-likelihoods of the hidden tokens."""
    expected: list[int]
    """The ids of the hidden tokens."""
    predicted: list[int]
    """The likeliest id for each hidden token."""


@final
class Candidate(NamedTuple):
    """A word that may fill a gap, and its probability."""

    word: str
    probability: float


@final
class Teacher(NamedTuple):
    """A trained masked language model, whose predictions another model learns."""

    tokenizer: Tokenizer
    trunk: Trunk
    head: "MaskedLanguageModelingHead"
    name: str = ""
    sha256: str = ""
    """The hash of the weights."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """The facts of the model's folder, such as the cost of the training."""


@final
class MaskedLanguageModelingHead(Head):
    """The head of a masked language model (Devlin et al. 2019, section 3.1).

    A linear layer, GELU and a norm convert the trunk's token at each hidden place. The output projection is the
    transposed embedding. The targets come from the objective `MaskedTokens`. In an input of a trained model, each
    "<mask>" is a gap, and the prediction contains the likeliest words for each gap.
    """

    marked_text = True
    lower_is_better = frozenset({"nats", "bits", "perplexity"})
    task_tag = "fill-mask"

    def __init__(self, vocabulary: Vocabulary, dim: int, *, embedding: nn.Embedding) -> None:
        """Build the head.

        Args:
            vocabulary: The tokenizer's vocabulary with V entries, one of which is "<mask>".
            dim: D, the number of features of a token.
            embedding: The tokenizer's embedding (V, D), which is also the output projection.
        """
        super().__init__()
        self.mask_id = find_mask(vocabulary)
        if embedding.weight.shape != (len(vocabulary), dim):
            shape = tuple(embedding.weight.shape)
            raise InputError(f"the shared embedding has the shape {shape}, but the head needs {(len(vocabulary), dim)}")
        self.vocabulary, self.dim, self.embedding = vocabulary, dim, embedding
        self.transform = nn.Sequential(Linear(dim, dim), nn.GELU(), LayerNorm(dim))
        self.teachers: list[Teacher] = []  # nn.Module ignores lists, so the teacher is not registered in the head.
        self._special = [i for i in range(len(vocabulary)) if vocabulary.is_special(i)]

    def encode(self, target: object) -> Tensor:
        """Return 0, because the objective defines the targets."""
        return torch.tensor(0)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the cross-entropy of the hidden tokens.

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: The ids (B, N) of the hidden tokens, and `IGNORE_INDEX` at all other places.
        """
        is_hidden = target != IGNORE_INDEX
        hidden = to_compute_dtype(self.transform(select_tokens(tokens, is_hidden)))
        return projected_cross_entropy(hidden, self.embedding.weight, target[is_hidden])

    def target_counts(self, target: Tensor) -> Tensor:
        return count_labels(target)

    def learn_from(self, teacher: Teacher) -> None:
        """Learn the soft predictions of a trained model, in addition to the hidden words (see `loss_inputs`).

        The teacher is neither trained nor saved.

        Raises:
            InputError: If the vocabularies differ.
        """
        if teacher.head.vocabulary.codec.to_str() != self.vocabulary.codec.to_str():
            raise InputError("the teacher has another vocabulary: start from the teacher, or leave out start")
        for part in teacher[:3]:
            part.eval().requires_grad_(False)
        self.teachers = [teacher]

    def loss_inputs(self, tokens: Tokens, target: Tensor, values: Tensor) -> Tensor:
        """Return the loss. With a teacher, add the cross-entropy to the teacher's predictions of the hidden tokens.

        Both models read the same hidden tokens. Their logits are divided by a temperature T = 2, and the cross-entropy
        is multiplied by T squared (Hinton et al. 2015, section 2; Sanh et al. 2019, section 2).

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: See `loss`.
            values: The ids (B, N) of the input.
        """
        if not self.teachers:
            return self.loss(tokens, target)
        (teacher,), is_hidden = self.teachers, target != IGNORE_INDEX
        with torch.no_grad():
            for part in teacher[:3]:
                part.to(values.device)
            inputs = Tokens(teacher.tokenizer.embed(values, tokens.positions), tokens.mask, tokens.positions)
            output = teacher.head.run_trunk(teacher.trunk, inputs)
            soft = (teacher.head.logits(select_tokens(output, is_hidden)) / TEMPERATURE).softmax(-1)
        logits = self.logits(select_tokens(tokens, is_hidden))
        distilled = functional.cross_entropy(logits / TEMPERATURE, soft) * TEMPERATURE**2
        return functional.cross_entropy(logits, target[is_hidden]) + distilled

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, N, V) of the words at each place. Special entries have probability 0."""
        special = torch.tensor(self._special, device=tokens.mask.device)
        return self.logits(tokens.matrix.mT).index_fill(-1, special, -math.inf).softmax(-1)

    def describe_graph(self) -> list[str]:
        return [
            f"The id of a gap, `{MASK}`, is {self.mask_id}. The spaces before a gap are removed.",
            "`output` has one row per token: the probability of each id. The answers are the rows of the gaps.",
        ]

    def predict(self, tokens: Tokens) -> list[list[list[Candidate]]]:
        """Return the likeliest words for every token of each example."""
        return self._candidates(tokens, tokens.mask)

    def predict_inputs(self, tokens: Tokens, values: Tensor) -> list[list[list[Candidate]]]:
        """Return the likeliest words for each gap of each example, best first.

        Args:
            tokens: The trunk's tokens (B, D, N).
            values: The ids (B, N) of the input, or (B, 8 + letters, N) of a `WordTokenizer`.

        Raises:
            InputError: If an example has no gap.
        """
        is_gap = (values if values.ndim == 2 else values[:, :MAX_PIECES]) == self.mask_id
        is_gap = is_gap if values.ndim == 2 else is_gap.any(1)
        if not is_gap.any(1).all():
            raise InputError(f"the text has no {MASK}: write {MASK} in place of each word that the model shall predict")
        return self._candidates(tokens, is_gap)

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[HiddenTokens]:
        is_hidden = target != IGNORE_INDEX
        counts, expected = is_hidden.sum(1).tolist(), target[is_hidden]
        nats, predicted = [expected.new_zeros(0, dtype=torch.float64)], [expected[:0]]
        chunks = (part.split(CHUNK_ROWS) for part in (select_tokens(tokens, is_hidden), expected))
        for rows, ids in zip(*chunks, strict=True):
            logits = self.logits(rows)
            nats.append(functional.cross_entropy(logits, ids, reduction="none").detach().double())
            predicted.append(logits.argmax(-1))
        parts = (torch.cat(part).cpu().split(counts) for part in (nats, [expected], predicted))
        return [
            HiddenTokens(float(own.sum()), ids.tolist(), answers.tolist())
            for own, ids, answers in zip(*parts, strict=True)
        ]

    def metrics(self, predictions: Sequence[HiddenTokens], targets: Sequence[Any]) -> dict[str, float]:
        """Return the accuracy of the hidden tokens in percent, and their mean loss in nats, bits and perplexity."""
        count = sum(len(example.expected) for example in predictions)
        right = sum(map(_count_right, predictions))
        nats = sum(example.nats for example in predictions) / count
        return {
            "accuracy": 100 * right / count,
            "nats": nats,
            "bits": nats / math.log(2),
            "perplexity": math.exp(min(nats, 700.0)),
        }

    def example_score(self, prediction: HiddenTokens, target: object) -> tuple[float, float]:
        """Return the accuracy of the hidden tokens in percent, weighted by their number."""
        count = len(prediction.expected)
        return 100 * _count_right(prediction) / count, float(count)

    def describe(self, prediction: HiddenTokens | list[list[Candidate]]) -> str:
        """Return the likeliest words for the gaps, or the hidden words with the model's answers."""
        if isinstance(prediction, HiddenTokens):
            pairs = zip(*map(self.vocabulary.tokens, (prediction.expected, prediction.predicted)), strict=True)
            words = ", ".join(word if word == answer else f"{word} (not {answer})" for word, answer in pairs)
            return f"{_count_right(prediction)} of {len(prediction.expected)} right: {words}"
        gaps = (" · ".join(f"{word} {p:.0%}" for word, p in gap[:DESCRIBED_WORDS]) for gap in prediction)
        return " | ".join(gaps)

    def describe_task(self, noun: str) -> str:
        return f"gives the likeliest words for each gap, `{MASK}`, of {noun}, with probabilities."

    def describe_answer(self) -> str:
        return (
            f"In a text, `{MASK}` becomes the id {self.mask_id}, and the spaces before it are removed. The answer is "
            "the softmax over the logits at each such place, without the special ids."
        )

    def logits(self, rows: Tensor) -> Tensor:
        """Map the trunk's tokens (..., D) to logits (..., V) in float32."""
        return linear(to_compute_dtype(self.transform(rows)), self.embedding.weight).float()

    def _candidates(self, tokens: Tokens, places: Tensor) -> list[list[list[Candidate]]]:
        """Return the likeliest words at each of the places (B, N)."""
        found: list[list[Candidate]] = []
        for rows in select_tokens(tokens, places).split(CHUNK_ROWS):
            logits = self.logits(rows)
            logits[:, self._special] = -math.inf  # A special entry is no word, and is never hidden in training.
            best = logits.softmax(-1).topk(min(TOP_WORDS, logits.shape[1] - len(self._special)))
            for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                found.append([Candidate(*pair) for pair in zip(self.vocabulary.tokens(ids), values, strict=True)])
        answers = iter(found)
        return [[next(answers) for _ in range(count)] for count in places.sum(1).tolist()]


def find_mask(vocabulary: Vocabulary) -> int:
    """Return the id of the entry "<mask>", or raise InputError if the vocabulary has no such entry."""
    if MASK not in vocabulary.extra:
        raise InputError(f'the vocabulary has no entry {MASK}: learn it with Vocabulary.fit(..., extra=("{MASK}",))')
    return vocabulary.extra[MASK]


def select_tokens(tokens: Tokens, places: Tensor) -> Tensor:
    """Return the tokens (R, D) at R places (B, N), in the order of the examples."""
    return tokens.matrix.mT.flatten(0, 1).index_select(0, places.flatten().nonzero()[:, 0])


def _count_right(example: HiddenTokens) -> int:
    return sum(word == answer for word, answer in zip(example.expected, example.predicted, strict=True))
