"""The base classes of heads that generate a text, with loss, search, sampling and metrics."""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.error_rates import error_names, error_rates, error_statistics
from unifier.heads.generation import Decoder, Hypothesis, beam_search, check_length_penalty, greedy_search, sample
from unifier.heads.grouped_text import language_of, rows_by_group
from unifier.heads.head import IGNORE_INDEX, Head, count_labels
from unifier.heads.name_scores import name_means, name_scores
from unifier.heads.question_answering import answer_means, answer_scores
from unifier.heads.rouge import rouge_means, rouge_statistics
from unifier.heads.summed_metrics import percent
from unifier.nn.cross_entropy import projected_cross_entropy
from unifier.nn.linear import linear, prepacked_linear
from unifier.nn.precision import to_compute_dtype
from unifier_tokenizers import InputError, Tokens, Vocabulary
from unifier_tokenizers.errors import check_choice, check_fraction
from unifier_tokenizers.subwords import BOS, EOS, PAD

Length = TypeVar("Length", int, Tensor)

TextScores = Literal["bleu", "rouge", "squad", "names", "error_rate"]
"""The metrics of written texts.

"bleu" means BLEU and chrF of translations. "rouge" means ROUGE-1, ROUGE-2 and ROUGE-L of summaries. "squad" means F1
and exact match of answers. "names" means exact match and F1 of the words of names. "error_rate" means the wrong
characters in percent, for texts that are read from a sound or a picture.
"""

State = tuple[Tensor, ...]
"""The state of a decoder after R partial texts. Each tensor has the shape (R, ...)."""


class TextGenerationOptions(TypedDict, total=False):
    """The options of every `TextGenerationHead`."""

    label_smoothing: float
    """The share of the target probability that is spread evenly over the vocabulary."""
    beam_width: int
    """The number of partial texts per example in the search. 1 means greedy search."""
    length_penalty: float
    """The exponent p: a text's score is its log-probability divided by length ** p."""
    r_drop: float
    """The weight alpha of the R-Drop loss, which compares two passes with different dropout (Liang et al. 2021)."""
    embedding: nn.Embedding | None
    """The embedding to use, which may belong to a tokenizer with an equal vocabulary.

    None creates a new embedding.
    """
    tied: bool
    """Use the transposed embedding as the output projection (Press and Wolf 2017)."""
    language: str
    """The code of the target language, which selects the tokenization rules of the metrics."""
    scores: TextScores
    """The metrics."""
    longest: int | None
    """For scores="error_rate": the number of characters of the longest training text (see `CTCHead`)."""


class TextGenerationHead(Head):
    """A head that generates a text token by token. A subclass computes the hidden states that predict the tokens.

    A target is a text, and a prediction is the generated text. For the scores "rouge" and "squad", a target may be a
    sequence of reference texts, of which training reads the first.
    """

    task_tag = "translation"

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        label_smoothing: float = 0.1,
        r_drop: float = 0.0,
        beam_width: int = 1,
        length_penalty: float = 1.0,
        embedding: nn.Embedding | None = None,
        tied: bool = True,
        language: str = "en",
        scores: TextScores = "bleu",
        longest: int | None = None,
    ) -> None:
        """Build the parts that all text generation heads share.

        Args:
            vocabulary: The vocabulary of the target texts, with V entries.
            dim: D, the number of features of a token.
            label_smoothing: `TextGenerationOptions` explains the arguments from `label_smoothing` to `longest`.
        """
        super().__init__()
        self.vocabulary, self.dim = vocabulary, dim
        embedding = embedding or create_embedding(vocabulary, dim)
        if embedding.weight.shape != (len(vocabulary), dim):
            shape = tuple(embedding.weight.shape)
            raise InputError(f"the shared embedding has the shape {shape}, but the head needs {(len(vocabulary), dim)}")
        self.embedding = embedding
        self.output = embedding if tied else create_embedding(vocabulary, dim)
        if beam_width < 1:
            raise InputError(f"beam_width={beam_width}: a number of at least 1 is needed; 1 means greedy search")
        if not 0 <= r_drop < math.inf:
            raise InputError(f"r_drop={r_drop}: a finite number of at least 0 is needed")
        self.label_smoothing, self.r_drop = check_fraction("label_smoothing", label_smoothing), r_drop
        self.num_passes = 2 if r_drop else 1
        self.beam_width, self.length_penalty = beam_width, check_length_penalty(length_penalty)
        self.language = check_language(language)
        self.scores: TextScores = check_choice("scores", scores, get_args(TextScores))
        self.longest = longest
        if scores == "error_rate":
            self.lower_is_better, self.max_score = error_names(longest), None
        if scores == "rouge":
            self.task_tag = "summarization"
        if scores == "squad":
            self.task_tag = "question-answering"
        self._signatures: dict[str, str] = {}

    @abstractmethod
    def hidden_states(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """Return the hidden states (B, L, D) from which `project` predicts the next token after each of ids (B, L).

        Each hidden state depends on the trunk's tokens (B, D, N), on the current id and on the previous ids.
        """

    @abstractmethod
    def start_search(self, tokens: Tokens) -> Decoder:
        """Return an incremental decoder of B texts, before the first token of each text."""

    def start_decoding(self, tokens: Tokens) -> State:
        """Return the decoder's initial state for B texts, before the first token of each text.

        Exported graphs use `start_decoding` and `step`, because both methods consist of tensor operations only.

        Raises:
            InputError: If the head cannot be exported as a graph.
        """
        raise InputError(
            f"{type(self).__name__} cannot be exported as a graph, because the class has no method start_decoding: use "
            "--format folder"
        )

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Append ids (R, L) to R texts. Return the hidden states (R, L, D) of the ids, and the new decoder state."""
        raise NotImplementedError

    def encode(self, target: str | Sequence[str]) -> Tensor:
        """Return the token ids (L,) of a text, or of the first reference text, followed by the end token."""
        if self.scores in ("rouge", "squad") and not isinstance(target, str) and target:
            target = target[0]
        if not isinstance(target, str):
            raise InputError(f"the target is a {type(target).__name__}: a text is expected")
        if not target.strip():
            raise InputError(f"the target {target!r} is empty: a text that is not empty is expected")
        return torch.tensor([*self.vocabulary.encode(target), EOS])

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids (B, L) as vectors (B, L, D), scaled by sqrt(D) (Vaswani et al. 2017, section 3.4)."""
        return self.embedding(ids) * math.sqrt(self.dim)

    def project(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., D) to logits (..., V)."""
        return linear(hidden, self.output.weight)

    def next_token_log_probs(self) -> Callable[[Tensor], Tensor]:
        """Return a function that maps hidden states (R, D) to log-probabilities (R, V) of the next token.

        Padding and the begin token get probability 0. The function computes no gradients. Call this method only once
        per search, because the returned function copies the weights.
        """
        project = prepacked_linear(self.output.weight)

        @torch.no_grad()
        def log_probs(hidden: Tensor) -> Tensor:
            logits = project(hidden).float()
            logs = torch.log_softmax(logits, -1, out=logits)
            logs[:, PAD] = logs[:, BOS] = -math.inf
            return logs

        return log_probs

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the label-smoothed cross-entropy of each next token, given the true previous tokens.

        With R-Drop, the second half of the batch repeats the first half. R-Drop adds alpha / 2 times the divergence
        between the outputs for the two halves to the loss.
        """
        # Only real tokens are projected to V. `nonzero` synchronizes a GPU, so the indices of real tokens are computed
        # only once.
        indices = (target.flatten() != IGNORE_INDEX).nonzero()[:, 0]
        hidden = to_compute_dtype(self.hidden_states(tokens, shift_right(target))).flatten(0, 1)
        hidden, labels = hidden.index_select(0, indices), target.take(indices)
        r_drop = self.r_drop if self.training else 0.0
        return projected_cross_entropy(hidden, self.output.weight, labels, self.label_smoothing, r_drop)

    def target_counts(self, target: Tensor) -> Tensor:
        return count_labels(target)

    def search(self, tokens: Tokens, beam_width: int, *, length_penalty: float | None = None) -> list[list[Hypothesis]]:
        """Return the `beam_width` best texts for each of B examples, best first.

        Args:
            tokens: The trunk's tokens (B, D, N).
            beam_width: The number of texts per example. 1 means greedy search.
            length_penalty: See `TextGenerationOptions`. None means the length penalty of the head.
        """
        decoder, max_lengths = self.start_search(tokens), self.max_lengths(tokens)
        penalty = self.length_penalty if length_penalty is None else length_penalty
        if beam_width == 1:
            return [[hypothesis] for hypothesis in greedy_search(decoder, max_lengths, length_penalty=penalty)]
        return beam_search(decoder, max_lengths, beam_width, length_penalty=penalty)

    def sample(
        self,
        tokens: Tokens,
        generators: Sequence[torch.Generator],
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        length_penalty: float | None = None,
    ) -> list[Hypothesis]:
        """Sample one text for each of B examples, with one random generator per example.

        Args:
            tokens: The trunk's tokens (B, D, N).
            generators: B random generators on the CPU.
            temperature: See `sampling_probabilities`.
            top_k: See `sampling_probabilities`.
            top_p: See `sampling_probabilities`.
            length_penalty: See `TextGenerationOptions`. None means the length penalty of the head.
        """
        return sample(
            self.start_search(tokens),
            self.max_lengths(tokens),
            generators,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            length_penalty=self.length_penalty if length_penalty is None else length_penalty,
        )

    def max_lengths(self, tokens: Tokens) -> Tensor:
        """Return the maximum number of tokens (B,) in the generated text of each example."""
        return max_target_length(tokens.mask.sum(1))

    def predict(self, tokens: Tokens) -> list[str]:
        return [self.vocabulary.decode(best[0].ids) for best in self.search(tokens, self.beam_width)]

    def metrics(self, predictions: Sequence[str], targets: Sequence[Any]) -> dict[str, float]:
        """Return the metrics in percent. For "bleu", these are the corpus scores of `text_scores`.

        The metrics of each group of a `GroupedText` follow, such as "bleu_en-de". Error rates have no groups.
        """
        self._signatures = {}
        scores = self._score_texts(predictions, targets)
        for group, rows in rows_by_group(targets).items() if self.scores != "error_rate" else ():
            scores |= self._score_texts([predictions[k] for k in rows], [targets[k] for k in rows], f"_{group}")
        return scores

    def _score_texts(self, predictions: Sequence[str], targets: Sequence[Any], suffix: str = "") -> dict[str, float]:
        if self.scores != "bleu":
            metrics = self.metrics_of(self.statistics(predictions, targets).sum(0))
            return {f"{name}{suffix}": score for name, score in metrics.items()}
        # The import is here, so sacreBLEU is loaded only if texts are scored.
        from unifier.heads.text_metrics import text_scores

        scores = text_scores(predictions, targets, language_of(targets, self.language))
        self._signatures |= {f"{name}{suffix}": score.signature for name, score in scores.items()}
        return {f"{name}{suffix}": score.score for name, score in scores.items()}

    def statistics(self, predictions: Sequence[str], targets: Sequence[Any]) -> NDArray[np.float64]:
        """Return the statistics (n, K) of n texts, from which `metrics_of` computes metrics other than "bleu"."""
        if self.scores == "rouge":
            return rouge_statistics(predictions, targets)
        if self.scores == "names":
            return np.array([name_scores(*pair) for pair in zip(predictions, targets, strict=True)])
        if self.scores == "squad":
            pairs = zip(predictions, targets, strict=True)
            return np.array([answer_scores(text, [true] if isinstance(true, str) else true) for text, true in pairs])
        return error_statistics(predictions, targets, self.longest)

    def metrics_of(self, total: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics, given the sums (K,) of the statistics of some texts (see `SummedHead`)."""
        if self.scores in ("squad", "names"):
            return answer_means(total) if self.scores == "squad" else name_means(total)
        return rouge_means(total) if self.scores == "rouge" else error_rates(total, self.longest)

    def example_score(self, prediction: str, target: Any) -> tuple[float, float] | None:
        if self.scores == "bleu":  # BLEU is no mean over texts.
            return None
        first, second, third = self.statistics([prediction], [target])[0, :3].tolist()
        return (first, 1.0) if self.scores in ("rouge", "squad", "names") else (percent(second, third), third)

    def describe_target(self, target: str | Sequence[str]) -> str:
        return target if isinstance(target, str) else target[0]

    def describe_task(self, noun: str) -> str:
        return f"writes a text in the language `{self.language}` for {noun}."

    def describe_answer(self) -> str:
        search = f"beam search of width {self.beam_width}" if self.beam_width > 1 else "greedy search"
        return (
            f"The answer is decoded with {search} (length penalty {self.length_penalty:g}) from the head's vocabulary. "
            "The special ids and the space before the text are removed."
        )

    @property
    def signatures(self) -> dict[str, str]:
        """The sacreBLEU signatures from the last call of `metrics`."""
        return self._signatures


class AttentiveTextHead(TextGenerationHead):
    """A head that generates a text and can return its attention over the trunk's tokens."""

    @abstractmethod
    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """Return the attention (B, L, N) that predicts the next token after each of ids (B, L).

        The attention is in float32, is averaged over all layers and heads, and sums to 1 over N. Selecting the layer
        with the lowest alignment error would bias the alignment error.
        """

    def alignment(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """Return the attention (B, L + 1, N) that predicts each of ids (B, L) and the token after the last id."""
        return self.attention(tokens, functional.pad(ids, (1, 0), value=BOS))


def max_target_length(num_tokens: Length) -> Length:
    """Return the maximum number of tokens in a text that is generated from `num_tokens` input tokens."""
    return num_tokens * 2 + 16


def create_embedding(vocabulary: Vocabulary, dim: int) -> nn.Embedding:
    """Return an embedding whose vectors have an expected squared length of 1."""
    embedding = nn.Embedding(len(vocabulary), dim)
    nn.init.normal_(embedding.weight, std=dim**-0.5)
    return embedding


def shift_right(target: Tensor) -> Tensor:
    """Return the decoder's input for targets (B, L): the begin token, then all target tokens except the last one."""
    return functional.pad(target[:, :-1].masked_fill(target[:, :-1] == IGNORE_INDEX, PAD), (1, 0), value=BOS)


def check_language(language: str) -> str:
    """Return the language code, or raise InputError if the code is not two or three lowercase letters.

    Moses uses the rules for English if Moses has no rules for the language.
    """
    if not re.fullmatch("[a-z]{2,3}", language):
        raise InputError(f"language={language!r}: a lowercase ISO 639 code is expected, such as en or de")
    return language
