"""From a model of the next token to whole texts: greedy and beam search."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from unifier_tokenizers.vocabulary import BEGIN, END


class Decoder(Protocol):
    """What a search walks: R rows, each one text in the making, whose past it remembers."""

    def step(self, ids: Tensor) -> Tensor:
        """Append ids (R,) to the rows; returns the log-probabilities (R, V) of what comes next."""
        ...

    def select(self, rows: Tensor) -> None:
        """Go on with rows (R',), in that order and with repeats."""
        ...


class Hypothesis(NamedTuple):
    """A finished text and how likely the model holds it."""

    ids: list[int]
    """Without begin and end."""
    score: float
    """Log-probability, end mark included, divided by length ** penalty (Wu et al. 2016, section 7, has a near kin)."""


def greedy(decoder: Decoder, limits: Tensor, *, length_penalty: float = 1.0) -> list[Hypothesis]:
    """The likeliest token each time: one text for each of the limits (R,), the most tokens a text may have.

    A row that has reached its end mark or its limit is dropped from the batch.
    """
    texts: list[list[int]] = [[] for _ in range(len(limits))]
    scores = [0.0] * len(limits)
    rows = torch.arange(len(limits), device=limits.device)
    ids, totals = torch.full_like(rows, BEGIN), torch.zeros(len(rows), device=limits.device)
    length = 0
    while len(rows):
        likeliest = decoder.step(ids).max(-1)
        ids, totals = likeliest.indices, totals + likeliest.values
        length += 1
        for row, token, total in zip(rows.tolist(), ids.tolist(), totals.tolist(), strict=True):
            scores[row] = total / length**length_penalty
            if token != END:
                texts[row].append(token)
        going = ((ids != END) & (length < limits[rows])).nonzero()[:, 0]
        if len(going) < len(rows):
            rows, ids, totals = rows[going], ids[going], totals[going]
            decoder.select(going)
    return [Hypothesis(text, score) for text, score in zip(texts, scores, strict=True)]


def beam(decoder: Decoder, limits: Tensor, width: int, *, length_penalty: float = 1.0) -> list[list[Hypothesis]]:
    """The `width` best texts found for each of the limits (R,), best first, by log-probability / length ** penalty.

    Each row keeps `width` partial texts. It is done when as many have ended and no partial one scores better, at its
    present length, than the worst of them; at its limit a partial text is taken as it is.
    """
    device = limits.device
    ended: list[list[Hypothesis]] = [[] for _ in range(len(limits))]
    rows = torch.arange(len(limits), device=device)
    decoder.select(rows.repeat_interleave(width))
    # Only the first of a row's equal beginnings counts, or the beam would hold one text `width` times.
    scores = torch.full((len(rows), width), -torch.inf, device=device)
    scores[:, 0] = 0
    texts = torch.empty(len(rows), width, 0, dtype=torch.long, device=device)
    ids = torch.full((len(rows) * width,), BEGIN, device=device)
    while len(rows):
        logs = decoder.step(ids)
        vocabulary = logs.shape[-1]
        totals = (scores[:, :, None] + logs.view(len(rows), width, vocabulary)).flatten(1)
        # Twice the width: were all of one half end marks, the other half still fills the beam.
        best, place = totals.topk(min(2 * width, totals.shape[1]), dim=1)
        origin, token = place // vocabulary, place % vocabulary
        texts = torch.cat([texts.gather(1, origin[:, :, None].expand(-1, -1, texts.shape[2])), token[:, :, None]], 2)
        length = texts.shape[2]
        ends = token == END
        for r, k in (ends[:, :width] & best[:, :width].isfinite()).nonzero().tolist():
            ended[int(rows[r])].append(
                Hypothesis(texts[r, k, :-1].tolist(), best[r, k].item() / length**length_penalty)
            )
        order = (best.masked_fill(ends, -torch.inf)).topk(width, dim=1)
        scores, kept = order.values, order.indices
        texts = texts.gather(1, kept[:, :, None].expand(-1, -1, length))
        origin = origin.gather(1, kept)
        going: list[int] = []
        for r, row in enumerate(rows.tolist()):
            ended[row] = sorted(ended[row], key=lambda found: -found.score)[:width]
            bound = scores[r, 0].item() / length**length_penalty
            if length >= int(limits[row]):
                live = scores[r].isfinite()  # a wide beam has fewer texts than places at first
                partial = zip(texts[r][live].tolist(), scores[r][live].tolist(), strict=True)
                ended[row] += [Hypothesis(text, score / length**length_penalty) for text, score in partial]
                ended[row] = sorted(ended[row], key=lambda found: -found.score)[:width]
            elif len(ended[row]) < width or bound > ended[row][-1].score:
                going.append(r)
        keep = torch.tensor(going, dtype=torch.long, device=device)
        decoder.select((keep[:, None] * width + origin[keep]).flatten())
        rows, scores, texts = rows[keep], scores[keep], texts[keep]
        ids = texts[:, :, -1].flatten() if len(keep) else ids[:0]
    return ended
