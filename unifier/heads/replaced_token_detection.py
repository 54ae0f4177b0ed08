"""The head of ELECTRA: a small generator replaces hidden tokens, and the trunk finds the replaced tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import IGNORE_INDEX, Head
from unifier.heads.masked_language_modeling import MaskedLanguageModelingHead, select_tokens
from unifier.nn.linear import Linear
from unifier.nn.precision import in_float32, to_compute_dtype
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError, SubwordTokenizer, Tokenizer, Tokens, Vocabulary
from unifier_tokenizers.shares import drawn_shape, mean_over_shares, own_rows

DETECTION_WEIGHT = 50.0
"""The weight of the loss of the replaced tokens (Clark et al. 2020, section 3.1)."""

SUMS = ("nats", "right words", "hidden", "found", "reported", "replaced", "right answers", "tokens")
"""The names of the sums that `evaluate` returns for each example."""


@final
class SuspiciousWord(NamedTuple):
    """A word of an input, and the probability that the word was replaced."""

    word: str
    probability: float


@final
class _Detection(NamedTuple):
    generator_logits: Tensor
    """The generator's logits (R, V) for the hidden tokens."""
    expected: Tensor
    """The ids (R,) of the hidden tokens."""
    logits: Tensor
    """The logits (B, N) of the answer that a token was replaced."""
    is_replaced: Tensor
    """(B, N), True for the tokens that were replaced by another token."""


@final
class ReplacedTokenDetectionHead(Head):
    """Replaced token detection (Clark et al. 2020).

    A generator, a small transformer with the tokenizer's embedding, predicts the hidden tokens of the objective
    `MaskedTokens`. Samples of its predictions replace the hidden tokens, and the trunk reads the result. For every
    token, the head answers whether the token was replaced. The loss is the generator's loss plus 50 times the
    cross-entropy of the answers.
    """

    trunk_output = "input"
    lower_is_better = frozenset({"nats"})
    task_tag = "replaced-token-detection"

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        embedding: nn.Embedding,
        generator_dim: int | None = None,
        generator_depth: int = 2,
        dropout: float = 0.0,
    ) -> None:
        """Build the head.

        Args:
            vocabulary: The tokenizer's vocabulary with V entries, one of which is "<mask>".
            dim: D, the number of features of a token.
            embedding: The tokenizer's embedding (V, D), which the generator shares.
            generator_dim: The number of features of a token in the generator. The default is half of `dim`.
            generator_depth: The number of blocks of the generator.
            dropout: The dropout probability of the generator.
        """
        super().__init__()
        self.vocabulary, self.dim = vocabulary, dim
        width = max(dim // 2, 1) if generator_dim is None else generator_dim
        self.shrink, self.expand = Linear(dim, width), Linear(width, dim)
        self.generator = Transformer(width, generator_depth, dropout=dropout)
        self.hidden_words = MaskedLanguageModelingHead(vocabulary, dim, embedding=embedding)
        self.detect = nn.Sequential(Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1))
        # nn.Module ignores lists, so the trunk and the tokenizer are not registered in the head.
        self._attached: list[Trunk] = []
        self._tokenizers: list[SubwordTokenizer] = []

    def attach_trunk(self, trunk: Trunk) -> None:
        self._attached = [trunk]

    def attach_tokenizer(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, SubwordTokenizer):
            raise InputError(
                f"ReplacedTokenDetectionHead needs a SubwordTokenizer, because it replaces ids, not a "
                f"{type(tokenizer).__name__}"
            )
        self._tokenizers = [tokenizer]

    def encode(self, target: object) -> Tensor:
        """Return 0, because the objective defines the targets."""
        return torch.tensor(0)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the generator's loss plus 50 times the discriminator's cross-entropy, averaged over all tokens.

        Args:
            tokens: The input tokens (B, D, N) of the trunk, with hidden tokens.
            target: The ids (B, N) of the hidden tokens, and `IGNORE_INDEX` at all other places.
        """
        # The random numbers are drawn for all tokens, so that they do not depend on the number of processes.
        draws = own_rows(torch.rand(drawn_shape(target.shape), device=target.device))
        found = self._run(tokens, target, draws[target != IGNORE_INDEX])
        answers = functional.binary_cross_entropy_with_logits(
            found.logits[tokens.mask], found.is_replaced[tokens.mask].float(), reduction="none"
        )
        hidden = functional.cross_entropy(found.generator_logits, found.expected, reduction="none")
        return mean_over_shares(hidden) + DETECTION_WEIGHT * mean_over_shares(answers)

    def target_counts(self, target: Tensor) -> Tensor:
        """Return 1 for each example, because `loss` is the loss of the whole batch on every process."""
        return torch.ones(len(target), dtype=torch.int64)

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probability (B, N) that each token was replaced."""
        return self._answer(tokens).sigmoid()

    def describe_graph(self) -> list[str]:
        return ["`output` is the probability that each token was replaced. Ignore padding and special ids."]

    def predict(self, tokens: Tokens) -> list[list[float]]:
        """Return the probability that a token was replaced, for each token of each example."""
        probabilities = self.graph_output(tokens)
        return [row[mask].tolist() for row, mask in zip(probabilities, tokens.mask, strict=True)]

    def predict_inputs(self, tokens: Tokens, values: Tensor) -> list[list[SuspiciousWord]]:
        """Return the words of each example with the probability that they were replaced.

        Args:
            tokens: The input tokens (B, D, N) of the trunk.
            values: The ids (B, N) of the input.
        """
        return [
            [
                SuspiciousWord(*pair)
                for i, pair in zip(ids, zip(self.vocabulary.tokens(ids), row, strict=False), strict=False)
                if not self.vocabulary.is_special(i)
            ]
            for ids, row in zip(values.tolist(), self.predict(tokens), strict=True)
        ]

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[Tensor]:
        """Return the sums `SUMS` of each example. The samples of the generator depend only on the hidden ids."""
        is_hidden = target != IGNORE_INDEX
        hidden = [row[mask] for row, mask in zip(target.cpu(), is_hidden.cpu(), strict=True)]
        seeded = [torch.rand(len(ids), generator=torch.Generator().manual_seed(int(ids.sum()))) for ids in hidden]
        found = self._run(tokens, target, torch.cat(seeded).to(target.device))
        is_reported, counts = found.logits > 0, is_hidden.sum(1).tolist()
        nats = functional.cross_entropy(found.generator_logits, found.expected, reduction="none")
        is_right = found.generator_logits.argmax(-1) == found.expected
        by_hidden = [torch.stack([part.double().sum() for part in own.split(counts)]) for own in (nats, is_right)]
        by_token = (
            is_reported & found.is_replaced,
            is_reported,
            found.is_replaced,
            is_reported == found.is_replaced,
            tokens.mask,
        )
        sums = [*by_hidden, is_hidden.sum(1), *((part & tokens.mask).sum(1) for part in by_token)]
        return [*torch.stack([part.double() for part in sums], 1).detach().cpu()]

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[Any]) -> dict[str, float]:
        """Return the scores of the generator and of the answers, in percent, and the generator's loss in nats.

        "hidden_accuracy" is the accuracy of the generator. The first metric selects the weights, and the score of the
        answers cannot select them, because a better generator makes the answers harder. "f1" is the F1 score of the
        replaced tokens, and "accuracy" is the share of right answers.
        """
        total = dict(zip(SUMS, torch.stack([*predictions]).sum(0).tolist(), strict=True))
        return {
            "hidden_accuracy": 100 * total["right words"] / total["hidden"],
            "f1": 200 * total["found"] / max(total["reported"] + total["replaced"], 1),
            "accuracy": 100 * total["right answers"] / total["tokens"],
            "nats": total["nats"] / total["hidden"],
        }

    def example_score(self, prediction: Tensor, target: object) -> tuple[float, float]:
        """Return the accuracy of the generator in percent, weighted by the number of hidden tokens."""
        own = dict(zip(SUMS, prediction.tolist(), strict=True))
        return 100 * own["right words"] / own["hidden"], own["hidden"]

    def describe(self, prediction: Tensor | list[SuspiciousWord]) -> str:
        """Return the words that were probably replaced, or the counts of an evaluation."""
        if isinstance(prediction, Tensor):
            own = {name: round(value) for name, value in zip(SUMS, prediction.tolist(), strict=True)}
            return f"{own['found']} of {own['replaced']} replaced words found, {own['reported']} reported"
        found = [f"{word} {p:.0%}" for word, p in prediction if p >= 0.5]
        return " · ".join(found) or "no replaced word"

    def describe_task(self, noun: str) -> str:
        return f"gives the probability that a word was replaced, for each word of {noun}."

    def describe_answer(self) -> str:
        return "The answer is the sigmoid of one logit per token, without the special ids."

    def _run(self, tokens: Tokens, target: Tensor, draws: Tensor) -> _Detection:
        """Replace the hidden tokens by samples of the generator, and answer for every token.

        Args:
            tokens: See `loss`.
            target: See `loss`.
            draws: Uniform random numbers (R,), one for each of R hidden tokens.
        """
        is_hidden = target != IGNORE_INDEX
        narrow = tokens._replace(matrix=self.shrink(to_compute_dtype(tokens.matrix).mT).mT)
        wide = tokens._replace(matrix=self.expand(self.generator(narrow).matrix.mT).mT)
        logits, expected = self.hidden_words.logits(select_tokens(wide, is_hidden)), target[is_hidden]
        with torch.no_grad():
            cumulative = logits.softmax(-1).cumsum(-1)
            sampled = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None])[:, 0]
            sampled = sampled.clamp(max=len(self.vocabulary) - 1)
            ids = torch.zeros_like(target).masked_scatter(is_hidden, sampled)
            is_replaced = torch.zeros_like(is_hidden).masked_scatter(is_hidden, sampled != expected)
        assert self._tokenizers, "no tokenizer was attached to the head"
        embedded = self._tokenizers[0].embed(ids, tokens.positions)
        matrix = torch.where(is_hidden[:, None], embedded, tokens.matrix)
        return _Detection(logits, expected, self._answer(tokens._replace(matrix=matrix)), is_replaced)

    def _answer(self, tokens: Tokens) -> Tensor:
        """Return the logits (B, N) of the answer that a token was replaced, in float32."""
        assert self._attached, "no trunk was attached to the head"
        output = self._attached[0](tokens, self.attention_mode)
        return in_float32(self.detect, output.matrix.mT)[..., 0]
