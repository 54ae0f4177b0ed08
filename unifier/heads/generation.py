"""Greedy and beam search, from a model of the next token.

Sampling texts from a model of the next token: temperature, top-k, top-p."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers import InputError
from unifier_tokenizers.text import BOS, EOS


class Decoder(Protocol):
    """What a search walks: R rows, each one text in the making, whose past it remembers."""

    def step(self, ids: Tensor) -> Tensor:
        """Append ids (R,) to the rows; returns the log-probabilities (R, V) of what comes next."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Go on with rows (R',), in that order and with repeats."""
        ...


class Hypothesis(NamedTuple):
    """A finished text and how likely the model holds it."""

    ids: list[int]
    """Without begin and end."""
    score: float
    """Log-probability, end mark included, divided by length ** penalty (Wu et al. 2016, section 7, has a near kin)."""


def check_length_penalty(power: float) -> float:
    """Raise InputError for a power that no score is divided by."""
    if not 0 <= power <= 10:
        raise InputError(f"length_penalty={power}: a power from 0 (none) to 10 is expected, 1 of a mean of each token")
    return power


TOPK_STRIPE = 64
"""Neighboring scores of which the highest is found first."""


def topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of each row, or all where there are fewer, and their places: scores (R, M) -> (R, k) and (R, k).

    As `topk`, and several times as fast: the k highest lie in the k stripes whose own highest are highest, and to find
    a maximum alone is cheap.
    """
    whole = scores.shape[1] // TOPK_STRIPE * TOPK_STRIPE
    stripes = scores[:, :whole].unflatten(1, (-1, TOPK_STRIPE))
    if stripes.shape[1] <= k:
        return scores.topk(min(k, scores.shape[1]), dim=1)
    starts = stripes.amax(-1).topk(k, dim=1).indices[:, :, None] * TOPK_STRIPE
    places = (starts + torch.arange(TOPK_STRIPE, device=scores.device)).flatten(1)
    rest = torch.arange(whole, scores.shape[1], device=scores.device).expand(len(scores), -1)
    places = torch.cat([places, rest], dim=1)
    values, chosen = scores.gather(1, places).topk(k, dim=1)
    return values, places.gather(1, chosen)


Pick = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""What each row says next: log-probabilities (R, V), and which text each row is (R,), to the log-probabilities (R,) of
the tokens picked, and these (R,)."""


def decode_loop(decoder: Decoder, limits: Tensor, pick: Pick, *, length_penalty: float = 1.0) -> list[Hypothesis]:
    """One text for each of the limits (R,), the most tokens a text may have, written token by token as `pick` says.

    A row that has reached its end mark or its limit is dropped from the batch.
    """
    texts: list[list[int]] = [[] for _ in range(len(limits))]
    scores = [0.0] * len(limits)
    rows = torch.arange(len(limits), device=limits.device)
    ids, totals = torch.full_like(rows, BOS), torch.zeros(len(rows), device=limits.device)
    length = 0
    while len(rows):
        values, ids = pick(decoder.step(ids), rows)
        totals = totals + values
        length += 1
        for row, token, total in zip(rows.tolist(), ids.tolist(), totals.tolist(), strict=True):
            scores[row] = total / length**length_penalty
            if token != EOS:
                texts[row].append(token)
        going = ((ids != EOS) & (length < limits[rows])).nonzero()[:, 0]
        if len(going) < len(rows):
            rows, ids, totals = rows[going], ids[going], totals[going]
            decoder.reorder(going)
    return [Hypothesis(text, score) for text, score in zip(texts, scores, strict=True)]


def greedy_search(decoder: Decoder, limits: Tensor, *, length_penalty: float = 1.0) -> list[Hypothesis]:
    """The likeliest token each time."""
    return decode_loop(decoder, limits, _likeliest, length_penalty=length_penalty)


def _likeliest(logs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    values, tokens = topk(logs, 1)
    return values[:, 0], tokens[:, 0]


def beam_search(decoder: Decoder, limits: Tensor, width: int, *, length_penalty: float = 1.0) -> list[list[Hypothesis]]:
    """The `width` best texts found for each of the limits (R,), best first, by log-probability / length ** penalty.

    Each row keeps `width` partial texts. It is done when as many have ended and no partial one scores better, at its
    present length, than the worst of them; at its limit a partial text is taken as it is.
    """
    device, most = limits.device, limits.tolist()
    ended: list[list[Hypothesis]] = [[] for _ in most]
    rows = torch.arange(len(limits), device=device)
    scores = torch.zeros(len(rows), 1, device=device)  # of one text each, from which the first step makes `width`
    texts = torch.empty(len(rows), 1, 0, dtype=torch.long, device=device)
    ids = torch.full((len(rows),), BOS, device=device)
    while len(rows):
        # Twice the width: were all of one half end marks, the other half still fills the beam.
        logs, tokens = topk(decoder.step(ids), 2 * width)
        beams = scores.shape[1]
        totals = (scores[:, :, None] + logs.view(len(rows), beams, -1)).flatten(1)
        totals = functional.pad(totals, (0, max(2 * width - totals.shape[1], 0)), value=-torch.inf)
        best, place = totals.topk(2 * width, dim=1)
        place = place.clamp(max=tokens.numel() // len(rows) - 1)
        origin, token = place // tokens.shape[1], tokens.view(len(rows), -1).gather(1, place)
        texts = torch.cat([texts.gather(1, origin[:, :, None].expand(-1, -1, texts.shape[2])), token[:, :, None]], 2)
        length = texts.shape[2]
        ends = token == EOS
        numbers, gained = rows.tolist(), set[int]()
        for r, k in (ends[:, :width] & best[:, :width].isfinite()).nonzero().tolist():
            found = Hypothesis(texts[r, k, :-1].tolist(), best[r, k].item() / length**length_penalty)
            ended[numbers[r]].append(found)
            gained.add(r)
        order = (best.masked_fill(ends, -torch.inf)).topk(width, dim=1)
        scores, kept = order.values, order.indices
        texts = texts.gather(1, kept[:, :, None].expand(-1, -1, length))
        origin = origin.gather(1, kept)
        going: list[int] = []
        for r, (row, likeliest) in enumerate(zip(numbers, scores[:, 0].tolist(), strict=True)):
            if cut := length >= most[row]:
                live = scores[r].isfinite()  # a wide beam has fewer texts than places at first
                partial = zip(texts[r][live].tolist(), scores[r][live].tolist(), strict=True)
                ended[row] += [Hypothesis(text, score / length**length_penalty) for text, score in partial]
            if cut or r in gained:
                ended[row] = sorted(ended[row], key=lambda found: -found.score)[:width]
            if not cut and (len(ended[row]) < width or likeliest / length**length_penalty > ended[row][-1].score):
                going.append(r)
        keep = torch.tensor(going, dtype=torch.long, device=device)
        decoder.reorder((keep[:, None] * beams + origin[keep]).flatten())
        rows, scores, texts = rows[keep], scores[keep], texts[keep]
        ids = texts[:, :, -1].flatten() if len(keep) else ids[:0]
    return ended


def sample(
    decoder: Decoder,
    limits: Tensor,
    num_samples: Sequence[torch.Generator],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """One text for each of the limits (R,), the most tokens it may have.

    Each token takes one random number of that text's own generator, so a text does not depend on the rest of the batch.
    `temperature`, `top_k` and `top_p` are those of `probabilities`; scores are the model's, whatever they are.
    """
    if not 0 < temperature < math.inf:
        raise InputError(
            f"temperature={temperature}: a number above 0, not infinite, is expected; a beam of 1 takes the likeliest"
        )
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k={top_k}: at least 1 token must be left to draw from")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p={top_p}: a share of the probability is expected, above 0 and at most 1")

    def pick(logs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        kept, tokens = sampling_probabilities(logs, temperature, top_k, top_p)
        numbers = torch.stack([torch.rand((), generator=num_samples[row]) for row in rows.tolist()]).to(logs.device)
        reached = kept.cumsum(1)
        place = (reached < numbers[:, None] * reached[:, -1:]).sum(1, keepdim=True)
        chosen = tokens.gather(1, place)
        return logs.gather(1, chosen)[:, 0], chosen[:, 0]

    return decode_loop(decoder, limits, pick, length_penalty=length_penalty)


def sampling_probabilities(logs: Tensor, temperature: float, top_k: int | None, top_p: float) -> tuple[Tensor, Tensor]:
    """What is drawn from: log-probabilities (R, V) to probabilities (R, K), highest first, and their tokens (R, K).

    Logits are divided by the temperature. Of the `top_k` likeliest tokens (Fan et al. 2018, section 5.1; None: of all),
    those stay that begin below the first `top_p` of their probability (Holtzman et al. 2020, section 3.1), and always
    the likeliest; the others get 0.
    """
    ordered, tokens = logs.sort(dim=1, descending=True, stable=True)
    # Beyond these, float32 has no inverse, and what is impossible or likeliest would become no number.
    below = (ordered - ordered[:, :1]) / min(max(temperature, 1e-30), 1e30)
    likely = below[:, :top_k].softmax(1)
    before = likely.cumsum(1) - likely
    outside = before >= top_p
    outside[:, 0] = False
    return likely.masked_fill(outside, 0.0), tokens[:, :top_k]
