"""The head of language models, which predicts the next token."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import IGNORE_INDEX, Head, count_labels
from unifier.heads.masked_language_modeling import CHUNK_ROWS
from unifier.nn.cross_entropy import projected_cross_entropy
from unifier.nn.linear import linear, prepacked_linear
from unifier.nn.precision import to_compute_dtype
from unifier_tokenizers import InputError, Tokens, Vocabulary
from unifier_tokenizers.errors import check_fraction
from unifier_tokenizers.subwords import BOS, EOS, PAD, UNK

TOP_TOKENS = 5
"""The number of likeliest next tokens in the answer for a text."""

PROBE_TEXT = "Aa  1\n\t\u00e9."
"""A text from which a head finds out if a vocabulary decodes ids to exactly the encoded text."""


@final
class SequenceScore(NamedTuple):
    """The loss of one example, and for a new text the likeliest next tokens."""

    nats: float
    """The sum of the negative log-likelihoods of the predicted tokens."""
    tokens: int
    """The number of predicted tokens."""
    characters: int = 0
    """The number of characters of the predicted text, or 0 if the characters are unknown."""
    following: tuple[tuple[str, float], ...] = ()
    """The likeliest tokens after the example, with their probabilities."""


@final
class LanguageModelingHead(Head):
    """The output projection of a causal language model (Radford et al. 2018, section 3.1).

    The targets come from the objective `NextToken`. The metrics are the mean loss per predicted token in nats and in
    bits, and the perplexity. For texts, the bits per character are comparable between vocabularies. At level
    "character", all metrics are per character of the text, and the loss of an end token is part of its text.
    """

    attention_mode = "causal"
    max_score = None
    task_tag = "text-generation"

    def __init__(
        self,
        num_ids: int,
        dim: int,
        *,
        vocabulary: Vocabulary | None = None,
        embedding: nn.Embedding | None = None,
        unit: str = "token",
        context: int | None = None,
        memory: int = 0,
        label_smoothing: float = 0.0,
    ) -> None:
        """Build the head.

        Args:
            num_ids: V, the number of ids of the tokenizer.
            dim: D, the number of features of a token.
            vocabulary: The vocabulary of a text tokenizer, or None for ids of another kind, such as pixels.
            embedding: The tokenizer's embedding (V, D), which then is also the output projection. None learns a
                separate projection.
            unit: The name of one token in the names of the metrics, such as "character", "pixel" or "note".
            context: The largest number of tokens that training reads as the context of a prediction. None means the
                length of the longest example. The tokens of the memory are not counted.
            memory: The number of tokens before a piece of a long text that the trunk keeps (see `Head.memory`).
            label_smoothing: The share of the target probability that is spread evenly over all ids in training.
        """
        super().__init__()
        if context is not None and context < 2:
            raise InputError(f"context={context}: at least 2 tokens are needed")
        self.context, self.memory = context, memory
        self.marked_text = vocabulary is not None and len(vocabulary.extra) > 0
        if vocabulary is not None and len(vocabulary) != num_ids:
            raise InputError(f"num_ids={num_ids}: the vocabulary has {len(vocabulary)} entries")
        if embedding is not None and embedding.weight.shape != (num_ids, dim):
            shape = tuple(embedding.weight.shape)
            raise InputError(f"the shared embedding has the shape {shape}, but the head needs {(num_ids, dim)}")
        self.num_ids, self.dim, self.vocabulary, self.unit = num_ids, dim, vocabulary, unit
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)
        self.output = nn.Embedding(num_ids, dim) if embedding is None else embedding
        if embedding is None:
            nn.init.zeros_(self.output.weight)  # The first predictions are uniform, so no step corrects random logits.
        self.counts_characters = vocabulary is not None and _is_lossless(vocabulary)
        """True if the characters of the predicted text can be counted."""
        if unit == "character" and not self.counts_characters:
            raise InputError("unit=character needs a vocabulary that decodes ids to exactly the encoded text")
        names = [f"nats_per_{unit}", f"bits_per_{unit}", "perplexity"]
        self.lower_is_better = frozenset([*names, *(["bits_per_character"] if self.counts_characters else [])])

    def encode(self, target: object) -> Tensor:
        """Return 0, because the objective defines the targets."""
        return torch.tensor(0)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the cross-entropy of the next tokens.

        Args:
            tokens: The trunk's tokens (B, D, N).
            target: The id (B, N) after each token, or `IGNORE_INDEX`.
        """
        rows, ids = _select(tokens, target)
        smoothing = self.label_smoothing if self.training else 0.0
        return projected_cross_entropy(to_compute_dtype(rows), self.output.weight, ids, smoothing)

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, N, V) of the id after each token."""
        return self._logits(tokens.matrix.mT).softmax(-1)

    def describe_graph(self) -> list[str]:
        return ["`output` has one row per token: the probability of each id as the next id."]

    def target_counts(self, target: Tensor) -> Tensor:
        return count_labels(target)

    def predict(self, tokens: Tokens) -> list[SequenceScore]:
        """Return the likeliest token after each example. The loss of the example is unknown without its ids."""
        last = tokens.mask.sum(1) - 1
        rows = tokens.matrix.mT[torch.arange(len(last), device=last.device), last]
        return [SequenceScore(0.0, 0, 0, following) for following in self._likeliest(rows)]

    def predict_inputs(self, tokens: Tokens, values: Tensor) -> list[SequenceScore]:
        """Return the loss of each new example, and the likeliest tokens after the example.

        Args:
            tokens: The trunk's tokens (B, D, N).
            values: The ids (B, N) of the input. A final end token is not treated as a part of the text.
        """
        lengths = tokens.mask.sum(1)
        if self.vocabulary is not None:
            ends = values.gather(1, lengths[:, None] - 1)[:, 0] == EOS
            lengths = torch.where(ends & (lengths > 1), lengths - 1, lengths)
        places = torch.arange(values.shape[1], device=values.device)
        is_read = places < lengths[:, None]
        target = functional.pad(values[:, 1:].long().masked_fill(~is_read[:, 1:], IGNORE_INDEX), (0, 1))
        target[~tokens.mask | (places >= lengths[:, None] - 1)] = IGNORE_INDEX
        shorter = Tokens(tokens.matrix, is_read, tokens.positions)
        # No pixel follows the last pixel of a picture, and training has never read this pixel.
        is_complete = lengths > (self.context or values.shape[1]) if self.vocabulary is None else lengths < 0
        triples = zip(self.evaluate(shorter, target), self.predict(shorter), is_complete.tolist(), strict=True)
        return [score._replace(following=() if complete else after.following) for score, after, complete in triples]

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[SequenceScore]:
        rows, ids = _select(tokens, target)
        losses = [ids.new_zeros(0, dtype=torch.float64)]
        for part, part_ids in zip(rows.split(CHUNK_ROWS), ids.split(CHUNK_ROWS), strict=True):
            losses.append(functional.cross_entropy(self._logits(part), part_ids, reduction="none").detach().double())
        counts = (target != IGNORE_INDEX).sum(1).tolist()
        nats = torch.cat(losses).cpu().split(counts)
        texts = ids.cpu().split(counts)
        return [
            SequenceScore(float(own.sum()), len(own), self._num_characters(text.tolist()))
            for own, text in zip(nats, texts, strict=True)
        ]

    def metrics(self, predictions: Sequence[SequenceScore], targets: Sequence[Any]) -> dict[str, float]:
        """Return the loss per token in nats and bits, the perplexity, and the bits per character of a text."""
        nats = sum(example.nats for example in predictions)
        characters = sum(example.characters for example in predictions)
        per_unit = nats / (characters if self.unit == "character" else sum(example.tokens for example in predictions))
        metrics = {
            f"nats_per_{self.unit}": per_unit,
            f"bits_per_{self.unit}": per_unit / math.log(2),
            "perplexity": math.exp(min(per_unit, 700.0)),
        }
        if self.counts_characters:
            metrics["bits_per_character"] = nats / characters / math.log(2)
        return metrics

    def example_score(self, prediction: SequenceScore, target: Any) -> tuple[float, float]:
        """Return the nats per unit of an example, and the number of its units."""
        units = prediction.characters if self.unit == "character" else prediction.tokens
        return prediction.nats / max(units, 1), float(units)

    def describe(self, prediction: SequenceScore) -> str:
        loss, _ = self.example_score(prediction, None)
        parts = [f"{loss:.3f} nats per {self.unit}"] if prediction.tokens else []
        following = ", ".join(f"{token} ({probability:.0%})" for token, probability in prediction.following)
        return "; ".join([*parts, *([f"next: {following}"] if following else [])])

    def describe_task(self, noun: str) -> str:
        return f"continues {noun}, and gives its loss in nats per {self.unit}."

    def describe_answer(self) -> str:
        return "Each token attends to earlier tokens only. The softmax over its logits predicts the next id."

    def next_token_log_probs(self, *, ends: bool = True) -> Callable[[Tensor], Tensor]:
        """Return a function that maps hidden states (R, D) to log-probabilities (R, V) of the next token.

        Padding, the begin token and the unknown word of a vocabulary get probability 0. Call this method only once per
        generated text, because the returned function copies the weights.

        Args:
            ends: False gives the end token of a vocabulary probability 0.
        """
        project = prepacked_linear(self.output.weight)
        never = [] if self.vocabulary is None else [PAD, UNK, BOS, *([] if ends else [EOS])]

        @torch.no_grad()
        def log_probs(hidden: Tensor) -> Tensor:
            logits = project(hidden).float()
            logits[:, never] = -math.inf
            return torch.log_softmax(logits, -1)

        return log_probs

    def _logits(self, rows: Tensor) -> Tensor:
        """Map the trunk's tokens (R, D) to logits (R, V) in float32."""
        return linear(to_compute_dtype(rows), self.output.weight).float()

    def _likeliest(self, rows: Tensor) -> list[tuple[tuple[str, float], ...]]:
        best = self._logits(rows).softmax(-1).topk(min(TOP_TOKENS, self.num_ids))
        names = [self._names(ids) for ids in best.indices.tolist()]
        return [tuple(zip(*pair, strict=True)) for pair in zip(names, best.values.tolist(), strict=True)]

    def _names(self, ids: Sequence[int]) -> list[str]:
        if self.vocabulary is None:
            return [f"{self.unit} {i}" for i in ids]
        # White space has no visible name.
        names = zip(self.vocabulary.tokens(ids), ids, strict=True)
        return [name or repr(self.vocabulary.codec.decode([i])) for name, i in names]

    def _num_characters(self, ids: Sequence[int]) -> int:
        """Return the number of characters of a text.

        Control codes, the space after the codes, and the space that a vocabulary adds before a text are not counted.
        """
        if not self.counts_characters:
            return 0
        assert self.vocabulary is not None
        special = self.vocabulary.is_special
        parts = [i for i in ids if not special(i)]
        text = self.vocabulary.codec.decode(parts, skip_special_tokens=False)
        if ids and ids[0] in self.vocabulary.extra.values():
            return len(text.removeprefix(" "))
        # Only a complete text has an end token. A space alone is an id of the text itself (see `encode_start`).
        begins = EOS in ids and text.startswith(" ") and self.vocabulary.codec.decode(parts[:1]) != " "
        return len(text) - int(begins)


def _is_lossless(vocabulary: Vocabulary) -> bool:
    return vocabulary.decode(vocabulary.encode(PROBE_TEXT)) == PROBE_TEXT


def _select(tokens: Tokens, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens (R, D) that have a target, and the targets (R,), in the order of the examples."""
    indices = (target.flatten() != IGNORE_INDEX).nonzero()[:, 0]
    return tokens.matrix.mT.flatten(0, 1).index_select(0, indices), target.take(indices)
