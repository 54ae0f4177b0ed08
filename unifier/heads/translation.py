"""A text written from what the trunk read."""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.cross_entropy import projected_cross_entropy
from unifier.heads.decoding import Hypothesis, beam, greedy
from unifier.heads.head import IGNORED, Head
from unifier.heads.sampling import sample
from unifier.heads.text_scores import check_language, text_scores
from unifier.trunks.attention import Cache
from unifier.trunks.layers import Activation, Block, Norm
from unifier.trunks.precision import working
from unifier_tokenizers import Dropout, InputError, PositionalEncoding, Tokens, Vocabulary
from unifier_tokenizers.vocabulary import BEGIN, END, PAD


@final
class TranslationHead(Head):
    """The decoder of Vaswani et al. 2017: blocks that see the text so far, and the trunk's columns by cross-attention.

    A target is a text, a prediction the text written. The output projection is the embedding's transpose (Press and
    Wolf 2017); `embedding` shares a tokenizer's table with both, where the two vocabularies are one.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        heads: int,
        hidden: int,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        label_smoothing: float = 0.1,
        beam_width: int = 1,
        length_penalty: float = 1.0,
        embedding: nn.Embedding | None = None,
        language: str = "en",
    ) -> None:
        """A beam of width 1 is greedy decoding; `language` is the code of the target's, by whose rules it is scored."""
        super().__init__()
        self.vocabulary, self.dim = vocabulary, dim
        if embedding is None:
            embedding = nn.Embedding(len(vocabulary), dim)
            nn.init.normal_(embedding.weight, std=dim**-0.5)
        if embedding.weight.shape != (len(vocabulary), dim):
            raise InputError(
                f"the shared embedding is {tuple(embedding.weight.shape)}, and the head needs {(len(vocabulary), dim)}"
            )
        self.embedding = embedding
        self.encoding = PositionalEncoding("sinusoid", dim, ())
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(dim, heads, hidden, cross=True, norm=norm, activation=activation, dropout=dropout)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()
        if beam_width < 1:
            raise InputError(f"beam_width={beam_width}: a beam holds at least 1 text, which is greedy decoding")
        self.label_smoothing = label_smoothing
        self.beam_width, self.length_penalty = beam_width, length_penalty
        self.language = check_language(language)
        self._signatures: dict[str, str] = {}

    def encode(self, target: str) -> Tensor:
        """The ids (L,) of a text and its end mark."""
        if not isinstance(target, str):
            raise InputError(f"a text is expected, not {type(target).__name__}")
        if not target.strip():
            raise InputError("an empty text has no translation to learn from")
        return torch.tensor([*self.vocabulary.encode(target), END])

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Cross-entropy of each next token given the true ones before it (teacher forcing), smoothed over V."""
        real = target != IGNORED  # what is padding is not projected onto V
        hidden = self.hidden(tokens, before(target))[real]
        return projected_cross_entropy(hidden, self.embedding.weight, target[real], self.label_smoothing)

    def logits(
        self, tokens: Tokens, ids: Tensor, caches: list[tuple[Cache, Cache]] | None = None, start: int = 0
    ) -> Tensor:
        """What follows each of ids (B, L) after Tokens (B, D, N), as `hidden` takes them: (B, L, V)."""
        return self.project(self.hidden(tokens, ids, caches, start))

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return functional.linear(hidden, self.embedding.weight)

    def hidden(
        self,
        tokens: Tokens,
        ids: Tensor,
        caches: list[tuple[Cache, Cache]] | None = None,
        start: int = 0,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """The last block's columns (B, L, D) for ids (B, L), the first at position `start`, after Tokens (B, D, N).

        With caches, ids are those not yet seen. `weights` receives each block's attention (B, H, L, N) to the columns.
        """
        places = torch.arange(start, start + ids.shape[1], device=ids.device).expand(len(ids), 1, -1)
        columns = self.encoding((self.embedding(ids) * math.sqrt(self.dim)).transpose(1, 2), places)
        x = self.dropout(working(columns)).transpose(1, 2)
        seen = torch.ones(ids.shape[1], start + ids.shape[1], dtype=torch.bool, device=ids.device)
        past = seen.tril(start) if len(seen) > 1 else None
        memory, memory_mask = tokens.matrix.transpose(1, 2), tokens.mask[:, None, None]
        for i, block in enumerate(self.blocks):
            own = caches[i] if caches else None
            x = block(x, past, memory=memory, memory_mask=memory_mask, caches=own, weights=weights)
        return self.norm(x)

    def search(self, tokens: Tokens, width: int, *, length_penalty: float | None = None) -> list[list[Hypothesis]]:
        """The `width` best texts for each of B examples, best first; a penalty of None is the head's own."""
        walk, limits = _Walk(self, tokens), self.limits(tokens)
        penalty = self.length_penalty if length_penalty is None else length_penalty
        if width == 1:
            return [[found] for found in greedy(walk, limits, length_penalty=penalty)]
        return beam(walk, limits, width, length_penalty=penalty)

    def sample(
        self,
        tokens: Tokens,
        draws: Sequence[torch.Generator],
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        length_penalty: float | None = None,
    ) -> list[Hypothesis]:
        """A text drawn by chance for each of B examples, each with the random numbers of its own generator."""
        penalty = self.length_penalty if length_penalty is None else length_penalty
        options = {"temperature": temperature, "top_p": top_p, "length_penalty": penalty}
        return sample(_Walk(self, tokens), self.limits(tokens), draws, top_k=top_k, **options)

    def limits(self, tokens: Tokens) -> Tensor:
        """The most tokens (B,) that a text for each example may have: twice its columns, and 16."""
        return tokens.mask.sum(1) * 2 + 16

    def alignment(self, tokens: Tokens, ids: Tensor) -> Tensor:
        """How much each of ids (B, L), and what follows the last, looks at each of the columns: (B, L + 1, N).

        The mean over blocks and heads; each row sums to 1.
        """
        weights: list[Tensor] = []
        self.hidden(tokens, functional.pad(ids, (1, 0), value=BEGIN), weights=weights)
        return torch.stack(weights).float().mean((0, 2))

    def predict(self, tokens: Tokens) -> list[str]:
        return [self.vocabulary.decode(found[0].ids) for found in self.search(tokens, self.beam_width)]

    def metrics(self, predictions: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        """Corpus BLEU and chrF, and BLEU in small letters on Moses tokens; 0 to 100."""
        found = text_scores(predictions, targets, self.language)
        self._signatures = {name: one.signature for name, one in found.items()}
        return {name: one.score for name, one in found.items()}

    @property
    def signatures(self) -> dict[str, str]:
        """sacreBLEU's signatures of the last metrics."""
        return self._signatures


def before(target: Tensor) -> Tensor:
    """For each token of targets (B, L) the one before it, which teacher forcing shows the decoder."""
    return functional.pad(target[:, :-1].masked_fill(target[:, :-1] == IGNORED, PAD), (1, 0), value=BEGIN)


@final
class _Walk:
    """A search's rows: the columns they translate, and what each block has seen of the texts so far.

    Rows that translate the same columns are neighbours, and as many for each: they share one memory.
    """

    def __init__(self, head: TranslationHead, tokens: Tokens) -> None:
        self.head, self.tokens, self.length = head, tokens, 0
        self.rows = len(tokens.mask)
        self.caches = [(Cache(grows=True), Cache(grows=False)) for _ in head.blocks]

    def step(self, ids: Tensor) -> Tensor:
        logits = self.head.logits(self.tokens, ids[:, None], self.caches, self.length)
        self.length += 1
        return logits[:, 0].float().log_softmax(-1)

    def select(self, rows: Tensor) -> None:
        sources = len(self.tokens.mask)
        kept = (rows * sources // max(self.rows, 1)).unique_consecutive()
        self.rows = len(rows)
        for own, _ in self.caches:
            own.select(rows)
        if len(kept) < sources:
            self.tokens = Tokens(*(part[kept] for part in self.tokens))
            for _, far in self.caches:
                far.select(kept)
