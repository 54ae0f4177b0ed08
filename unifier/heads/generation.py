"""Greedy search, beam search and sampling for models that predict the next token."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers import InputError
from unifier_tokenizers.subwords import BOS, EOS

TOPK_STRIPE = 64
"""The number of neighboring scores in a stripe. `topk` first computes the maximum of each stripe."""


class Decoder(Protocol):
    """An incremental decoder of R partial texts, which stores the state of each text."""

    def step(self, ids: Tensor) -> Tensor:
        """Append ids (R,) to the R texts. Return the log-probabilities (R, V) of the next token."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Select the texts with the indices `rows` (R',). An index in `rows` may occur several times."""
        ...


class Hypothesis(NamedTuple):
    """A finished text and its score."""

    ids: list[int]
    """The token ids of the text, without the begin token and the end token."""
    score: float
    """The log-probability of the text and its end token, divided by length ** penalty (Wu et al. 2016, section 7)."""


TokenPicker = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function that picks the next token of each partial text.

The arguments are the log-probabilities (R, V) and the example index (R,) of each partial text. The results are the
log-probabilities (R,) and the ids (R,) of the picked tokens.
"""


def greedy_search(decoder: Decoder, max_lengths: Tensor, *, length_penalty: float = 1.0) -> list[Hypothesis]:
    """Generate one text per example by picking the most likely token in each step (see `decode_loop`)."""
    return decode_loop(decoder, max_lengths, _pick_most_likely, length_penalty=length_penalty)


def sample(
    decoder: Decoder,
    max_lengths: Tensor,
    generators: Sequence[torch.Generator],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """Generate one text per example by sampling each token.

    Each example has its own random generator, so a text does not depend on the other texts of the batch. `temperature`,
    `top_k` and `top_p` do not change the returned scores.

    Args:
        decoder: The incremental decoder of R empty texts.
        max_lengths: The maximum number of tokens (R,) of each text.
        generators: R random generators on the CPU.
        temperature: See `sampling_probabilities`.
        top_k: See `sampling_probabilities`.
        top_p: See `sampling_probabilities`.
        length_penalty: The exponent p: a text's score is its log-probability divided by length ** p.

    Raises:
        InputError: If `temperature`, `top_k` or `top_p` is out of range.
    """
    pick = token_sampler(generators, temperature=temperature, top_k=top_k, top_p=top_p)
    return decode_loop(decoder, max_lengths, pick, length_penalty=length_penalty)


def token_sampler(
    generators: Sequence[torch.Generator], *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
) -> TokenPicker:
    """Return a function that samples the next token of each partial text.

    Args:
        generators: One random generator on the CPU per example.
        temperature: See `sampling_probabilities`.
        top_k: See `sampling_probabilities`.
        top_p: See `sampling_probabilities`.

    Raises:
        InputError: If `temperature`, `top_k` or `top_p` is out of range.
    """
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature={temperature}: a finite number above 0 is needed; top_k=1 is greedy search")
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k={top_k}: at least 1 is needed, or None for all tokens")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p={top_p}: a probability above 0 and at most 1 is needed")

    def pick(logs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, tokens = sampling_probabilities(logs, temperature, top_k, top_p)
        uniform = torch.stack([torch.rand((), generator=generators[row]) for row in rows.tolist()]).to(logs.device)
        cumulative = probabilities.cumsum(1)
        index = (cumulative < uniform[:, None] * cumulative[:, -1:]).sum(1, keepdim=True)
        picked = tokens.gather(1, index)
        return logs.gather(1, picked)[:, 0], picked[:, 0]

    return pick


def beam_search(
    decoder: Decoder, max_lengths: Tensor, beam_width: int, *, length_penalty: float = 1.0
) -> list[list[Hypothesis]]:
    """Return the `beam_width` texts with the highest scores for each example, best first.

    The search extends `beam_width` partial texts per example. The search of an example ends if `beam_width` texts are
    finished and no partial text has a higher score than the worst finished text. At the maximum length, partial texts
    are treated as finished texts.

    Args:
        decoder: The incremental decoder of R empty texts.
        max_lengths: The maximum number of tokens (R,) of each text.
        beam_width: The number of texts per example.
        length_penalty: The exponent p: a text's score is its log-probability divided by length ** p.
    """
    device, limits = max_lengths.device, max_lengths.tolist()
    finished: list[list[Hypothesis]] = [[] for _ in limits]
    rows = torch.arange(len(max_lengths), device=device)
    # Each example starts with one empty text, which the first step extends to `beam_width` texts.
    scores = torch.zeros(len(rows), 1, device=device)
    texts = torch.empty(len(rows), 1, 0, dtype=torch.long, device=device)
    ids = torch.full((len(rows),), BOS, device=device)
    while len(rows):
        # Up to `beam_width` candidates may be end tokens, so 2 * `beam_width` candidates are computed.
        logs, tokens = topk(decoder.step(ids), 2 * beam_width)
        beams = scores.shape[1]
        totals = (scores[:, :, None] + logs.view(len(rows), beams, -1)).flatten(1)
        totals = functional.pad(totals, (0, max(2 * beam_width - totals.shape[1], 0)), value=-torch.inf)
        best, index = totals.topk(2 * beam_width, dim=1)
        index = index.clamp(max=tokens.numel() // len(rows) - 1)
        parent, token = index // tokens.shape[1], tokens.view(len(rows), -1).gather(1, index)
        texts = torch.cat([texts.gather(1, parent[:, :, None].expand(-1, -1, texts.shape[2])), token[:, :, None]], 2)
        length = texts.shape[2]
        is_end = token == EOS
        examples, updated = rows.tolist(), set[int]()
        for r, k in (is_end[:, :beam_width] & best[:, :beam_width].isfinite()).nonzero().tolist():
            hypothesis = Hypothesis(texts[r, k, :-1].tolist(), best[r, k].item() / length**length_penalty)
            finished[examples[r]].append(hypothesis)
            updated.add(r)
        order = (best.masked_fill(is_end, -torch.inf)).topk(beam_width, dim=1)
        scores, beam = order.values, order.indices
        texts = texts.gather(1, beam[:, :, None].expand(-1, -1, length))
        parent = parent.gather(1, beam)
        continued: list[int] = []
        for r, (example, top_score) in enumerate(zip(examples, scores[:, 0].tolist(), strict=True)):
            if at_limit := length >= limits[example]:
                # In the first steps, a wide beam has unused entries. The score of an unused entry is minus infinity.
                used = scores[r].isfinite()
                partial = zip(texts[r][used].tolist(), scores[r][used].tolist(), strict=True)
                finished[example] += [Hypothesis(text, score / length**length_penalty) for text, score in partial]
            if at_limit or r in updated:
                finished[example] = sorted(finished[example], key=lambda text: -text.score)[:beam_width]
            is_full = len(finished[example]) >= beam_width
            if not at_limit and (not is_full or top_score / length**length_penalty > finished[example][-1].score):
                continued.append(r)
        keep = torch.tensor(continued, dtype=torch.long, device=device)
        decoder.reorder((keep[:, None] * beams + parent[keep]).flatten())
        rows, scores, texts = rows[keep], scores[keep], texts[keep]
        ids = texts[:, :, -1].flatten() if len(keep) else ids[:0]
    return finished


def decode_loop(
    decoder: Decoder, max_lengths: Tensor, pick: TokenPicker, *, length_penalty: float = 1.0
) -> list[Hypothesis]:
    """Generate one text per example, token by token.

    A finished text is removed from the batch.

    Args:
        decoder: The incremental decoder of R empty texts.
        max_lengths: The maximum number of tokens (R,) of each text.
        pick: The function that picks the next token of each text.
        length_penalty: The exponent p: a text's score is its log-probability divided by length ** p.
    """
    texts: list[list[int]] = [[] for _ in range(len(max_lengths))]
    scores = [0.0] * len(max_lengths)
    rows = torch.arange(len(max_lengths), device=max_lengths.device)
    ids, totals = torch.full_like(rows, BOS), torch.zeros(len(rows), device=max_lengths.device)
    length = 0
    while len(rows):
        values, ids = pick(decoder.step(ids), rows)
        totals = totals + values
        length += 1
        for row, token, total in zip(rows.tolist(), ids.tolist(), totals.tolist(), strict=True):
            scores[row] = total / length**length_penalty
            if token != EOS:
                texts[row].append(token)
        continued = ((ids != EOS) & (length < max_lengths[rows])).nonzero()[:, 0]
        if len(continued) < len(rows):
            rows, ids, totals = rows[continued], ids[continued], totals[continued]
            decoder.reorder(continued)
    return [Hypothesis(text, score) for text, score in zip(texts, scores, strict=True)]


def sampling_probabilities(logs: Tensor, temperature: float, top_k: int | None, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the probabilities of the tokens to sample from.

    Args:
        logs: Log-probabilities (R, V).
        temperature: The divisor of the log-probabilities.
        top_k: The number of most likely tokens to sample from (Fan et al. 2018, section 5.1). None means all tokens.
        top_p: A token can be sampled only if the total probability of all more likely tokens is below `top_p` (Holtzman
            et al. 2020, section 3.1). The most likely token can always be sampled.

    Returns:
        Unnormalized probabilities (R, K), highest first, and the ids (R, K) of the tokens.
    """
    ordered, tokens = logs.sort(dim=1, descending=True, stable=True)
    # The bounds of the temperature prevent an overflow in float32, which would result in probabilities of NaN.
    scaled = (ordered - ordered[:, :1]) / min(max(temperature, 1e-30), 1e30)
    probabilities = scaled[:, :top_k].softmax(1)
    cumulative_before = probabilities.cumsum(1) - probabilities
    is_dropped = cumulative_before >= top_p
    is_dropped[:, 0] = False
    return probabilities.masked_fill(is_dropped, 0.0), tokens[:, :top_k]


def topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k highest values (R, min(k, M)) in each row of scores (R, M), and the indices of these values.

    This function is several times faster than `torch.topk`. The k highest scores are always in the k stripes with the
    highest maxima.
    """
    striped = scores.shape[1] // TOPK_STRIPE * TOPK_STRIPE
    stripes = scores[:, :striped].unflatten(1, (-1, TOPK_STRIPE))
    if stripes.shape[1] <= k:
        return scores.topk(min(k, scores.shape[1]), dim=1)
    starts = stripes.amax(-1).topk(k, dim=1).indices[:, :, None] * TOPK_STRIPE
    indices = (starts + torch.arange(TOPK_STRIPE, device=scores.device)).flatten(1)
    rest = torch.arange(striped, scores.shape[1], device=scores.device).expand(len(scores), -1)
    indices = torch.cat([indices, rest], dim=1)
    values, chosen = scores.gather(1, indices).topk(k, dim=1)
    return values, indices.gather(1, chosen)


def check_length_penalty(power: float) -> float:
    """Return the exponent of the length penalty, or raise InputError if the exponent is not from 0 to 10."""
    if not 0 <= power <= 10:
        raise InputError(
            f"length_penalty={power}: an exponent from 0 (no penalty) to 10 is needed; 1 gives the mean over the tokens"
        )
    return power


def _pick_most_likely(logs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    values, tokens = topk(logs, 1)
    return values[:, 0], tokens[:, 0]
