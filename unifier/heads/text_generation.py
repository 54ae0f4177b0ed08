"""The contract of a head that writes a text, and what all of them share: loss, searches and scores."""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypedDict, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.generation import Decoder, Hypothesis, beam_search, check_length_penalty, greedy_search, sample
from unifier.heads.head import IGNORE_INDEX, Head
from unifier.nn.cross_entropy import projected_cross_entropy
from unifier.nn.linear import linear, prepacked_linear
from unifier.nn.precision import to_compute_dtype
from unifier_tokenizers import InputError, Tokens, Vocabulary
from unifier_tokenizers.errors import check_fraction
from unifier_tokenizers.text import BOS, EOS, PAD

LengthLimit = TypeVar("LengthLimit", int, Tensor)


class TextGenerationOptions(TypedDict, total=False):
    """What every `WritingHead` may be told besides its shape, as its constructor says."""

    label_smoothing: float
    beam_width: int
    """1 is greedy decoding."""
    length_penalty: float
    """The power of the length that divides a text's log-probability."""
    r_drop: float
    """How much two readings of an example with different dropout are made to agree (alpha of Liang et al. 2021)."""
    embedding: nn.Embedding | None
    tied: bool
    """Whether the output projection is the embedding's transpose (Press and Wolf 2017)."""
    language: str
    """The code of the target's, by whose rules it is scored."""


def check_language(language: str) -> str:
    """The language, or an InputError where it is no code; one that Moses has no rules for is cut by English's."""
    if not re.fullmatch("[a-z]{2,3}", language):
        raise InputError(f"language={language!r}: a code of ISO 639 in small letters is expected, such as en or de")
    return language


class TextGenerationHead(Head):
    """Writes a text token by token from what the trunk read; what finds the next token is a subclass's.

    A target is a text, a prediction the text written. `embedding` shares a tokenizer's table, where the two
    vocabularies are one.
    """

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
    ) -> None:
        super().__init__()
        self.vocabulary, self.dim = vocabulary, dim
        embedding = embedding or create_embedding(vocabulary, dim)
        if embedding.weight.shape != (len(vocabulary), dim):
            raise InputError(
                f"the shared embedding is {tuple(embedding.weight.shape)}, and the head needs {(len(vocabulary), dim)}"
            )
        self.embedding = embedding
        self.output = embedding if tied else create_embedding(vocabulary, dim)
        if beam_width < 1:
            raise InputError(f"beam_width={beam_width}: a beam holds at least 1 text, which is greedy decoding")
        if not 0 <= r_drop < math.inf:
            raise InputError(f"r_drop={r_drop}: 0 or more is needed")
        self.label_smoothing, self.r_drop = check_fraction("label_smoothing", label_smoothing), r_drop
        self.num_passes = 2 if r_drop else 1
        self.beam_width, self.length_penalty = beam_width, check_length_penalty(length_penalty)
        self.language = check_language(language)
        self._signatures: dict[str, str] = {}

    @abstractmethod
    def hidden_states(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """What `project` turns into the token after each of ids (B, L), which see those before: (B, L, D).

        Tokens (B, D, N) are what the trunk read.
        """

    @abstractmethod
    def start_search(self, tokens: Tokens) -> Decoder:
        """The same for a search, which asks for one token after the other: rows that begin with B texts of nothing."""

    def encode(self, target: str) -> Tensor:
        """The ids (L,) of a text and its end mark."""
        if not isinstance(target, str):
            raise InputError(f"a text is expected, not {type(target).__name__}")
        if not target.strip():
            raise InputError("an empty text has no translation to learn from")
        return torch.tensor([*self.vocabulary.encode(target), EOS])

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the table, scaled by sqrt(D) (Vaswani et al. 2017, section 3.4): ids (B, L) -> (B, L, D)."""
        return self.embedding(ids) * math.sqrt(self.dim)

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return linear(hidden, self.output.weight)

    def next_token_log_probs(self) -> Callable[[Tensor], Tensor]:
        """For one search: of columns (R, D) the log-probabilities (R, V) of what may follow them.

        No padding, and no second beginning; and no gradient goes through it.
        """
        project = prepacked_linear(self.output.weight)

        @torch.no_grad()
        def follow(hidden: Tensor) -> Tensor:
            logits = project(hidden).float()
            logs = torch.log_softmax(logits, -1, out=logits)
            logs[:, PAD] = logs[:, BOS] = -math.inf
            return logs

        return follow

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Cross-entropy of each next token given the true ones before it (teacher forcing), smoothed over V.

        With R-Drop the second half of the batch is the first, read again, and half of alpha times the divergence of the
        two is added.
        """
        # What is padding is not projected onto V. It is found once: an accelerator's program waits for that each time.
        real = (target.flatten() != IGNORE_INDEX).nonzero()[:, 0]
        hidden = to_compute_dtype(self.hidden_states(tokens, shift_right(target))).flatten(0, 1).index_select(0, real)
        again = self.r_drop if self.training else 0.0
        return projected_cross_entropy(hidden, self.output.weight, target.take(real), self.label_smoothing, again)

    def search(self, tokens: Tokens, beam_width: int, *, length_penalty: float | None = None) -> list[list[Hypothesis]]:
        """The `width` best texts for each of B examples, best first; a penalty of None is the head's own."""
        walk, limits = self.start_search(tokens), self.max_lengths(tokens)
        penalty = self.length_penalty if length_penalty is None else length_penalty
        if beam_width == 1:
            return [[found] for found in greedy_search(walk, limits, length_penalty=penalty)]
        return beam_search(walk, limits, beam_width, length_penalty=penalty)

    def sample(
        self,
        tokens: Tokens,
        num_samples: Sequence[torch.Generator],
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        length_penalty: float | None = None,
    ) -> list[Hypothesis]:
        """A text drawn by chance for each of B examples, each with the random numbers of its own generator."""
        penalty = self.length_penalty if length_penalty is None else length_penalty
        options = {"temperature": temperature, "top_p": top_p, "length_penalty": penalty}
        return sample(self.start_search(tokens), self.max_lengths(tokens), num_samples, top_k=top_k, **options)

    def max_lengths(self, tokens: Tokens) -> Tensor:
        """The most tokens (B,) that a text for each example may have."""
        return max_target_length(tokens.mask.sum(1))

    def predict(self, tokens: Tokens) -> list[str]:
        return [self.vocabulary.decode(found[0].ids) for found in self.search(tokens, self.beam_width)]

    def metrics(self, predictions: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        """Corpus BLEU and chrF, and where words are spaced BLEU in small letters on Moses tokens; 0 to 100."""
        from unifier.heads.text_metrics import text_scores

        found = text_scores(predictions, targets, self.language)
        self._signatures = {name: one.signature for name, one in found.items()}
        return {name: one.score for name, one in found.items()}

    @property
    def signatures(self) -> dict[str, str]:
        """sacreBLEU's signatures of the last metrics."""
        return self._signatures


class AttentiveTextHead(TextGenerationHead):
    """A head that writes a text, and shows which columns it looks at."""

    @abstractmethod
    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """How much it looks at each column to write what follows each of ids (B, L): (B, L, N), float32.

        Each row sums to 1, and is the mean over whatever layers and heads there are: none is picked by the very
        alignment that it is then scored on.
        """

    def alignment(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """The same to write each of ids (B, L), and what follows the last: (B, L + 1, N)."""
        return self.attention(tokens, functional.pad(ids, (1, 0), value=BOS))


def max_target_length(columns: LengthLimit) -> LengthLimit:
    """The most tokens that a text for so many columns may have: twice as many, and 16."""
    return columns * 2 + 16


def create_embedding(vocabulary: Vocabulary, dim: int) -> nn.Embedding:
    """A row of D for each entry, of length 1 on average."""
    embedding = nn.Embedding(len(vocabulary), dim)
    nn.init.normal_(embedding.weight, std=dim**-0.5)
    return embedding


def shift_right(target: Tensor) -> Tensor:
    """For each token of targets (B, L) the one before it, which teacher forcing shows the decoder."""
    return functional.pad(target[:, :-1].masked_fill(target[:, :-1] == IGNORE_INDEX, PAD), (1, 0), value=BOS)
