"""Error rates against a plain edit distance, and the heads that write texts or read symbols."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from unifier.heads.ctc import CTCHead
from unifier.heads.error_rates import error_rates, error_statistics
from unifier.heads.score_intervals import score_intervals
from unifier.heads.transformer_decoder import TranslationHead
from unifier_tokenizers import InputError, Tokens, Vocabulary

DIGITS = Vocabulary.fit("0123456789", size=300, level="character")


def edits(found: str, true: str) -> int:
    """Return the edit distance of two texts."""
    row = [*range(len(true) + 1)]
    for k, a in enumerate(found, start=1):
        row, above = [k], row
        for n, b in enumerate(true, start=1):
            row.append(min(row[-1] + 1, above[n] + 1, above[n - 1] + (a != b)))
    return row[-1]


def test_rates_equal_a_plain_edit_distance() -> None:
    rng = np.random.default_rng(0)
    found, true = (["".join(rng.choice([*"12 "], rng.integers(k, 7))) for _ in range(40)] for k in (0, 1))
    total = error_statistics(found, true).sum(0)
    wrong, count = sum(map(edits, found, true)), sum(map(len, true))
    exact = sum(a == b for a, b in zip(found, true, strict=True))
    assert error_rates(total) == {"error_rate": 100 * wrong / count, "exact": pytest.approx(100 * exact / 40)}


def head(kind: str, longest: int | None = 3) -> CTCHead | TranslationHead:
    if kind == "ctc":
        return CTCHead("0123456789", 12, longest=longest)
    return TranslationHead(DIGITS, 12, depth=1, heads=2, scores="error_rate", longest=longest)


@pytest.mark.parametrize("kind", ["ctc", "transformer"])
def test_both_heads_count_longer_targets_apart(kind: str) -> None:
    targets, found = ["123", "45", "98765", "9876"], ["124", "45", "9876", ""]
    own = head(kind)
    predictions: Sequence[Tensor | str] = found
    if isinstance(own, CTCHead):
        predictions = [own.encode(text) if text else torch.tensor([], dtype=torch.long) for text in found]
    rates = {"error_rate": 20.0, "exact": 50.0, "error_rate_longer": pytest.approx(100 * 5 / 9)}
    assert own.checked_metrics(predictions, targets) == rates
    assert set(score_intervals(own, predictions, targets)) == rates.keys()
    scores = [own.example_score(*pair) for pair in zip(predictions, targets, strict=True)]  # pyright: ignore[reportArgumentType]
    assert sum(score * weight for score, weight in filter(None, scores)) / 5 == pytest.approx(20)
    assert math.isnan(own.checked_metrics(predictions[:2], targets[:2])["error_rate_longer"])
    assert own.max_score is None
    assert "error_rate_longer" not in head(kind, None).checked_metrics(predictions, targets)


@pytest.mark.slow
def test_decoder_of_digits_overfits_a_batch(tokens: Tokens) -> None:
    own, targets = head("transformer"), ["12", "3", "775"]
    assert isinstance(own, TranslationHead)
    ids = torch.nn.utils.rnn.pad_sequence([own.encode(t) for t in targets], batch_first=True, padding_value=-100)
    optimizer = torch.optim.Adam(own.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        own.loss(tokens, ids).backward()
        optimizer.step()
    assert own.eval().predict(tokens) == targets


def test_metrics_of_a_text_are_chosen_by_name() -> None:
    with pytest.raises(InputError, match="'meteor'"):
        TranslationHead(DIGITS, 12, depth=1, scores="meteor")  # pyright: ignore[reportArgumentType]
    own = TranslationHead(DIGITS, 12, depth=1, scores="rouge")
    assert own.encode(("12", "34")).tolist() == own.encode("12").tolist()
    assert own.metrics(["12 3"], [("9", "12 3")]) == {"rouge1": 100, "rouge2": 100, "rougeL": 100}
    assert own.example_score("12 3", "12 4") == (50, 1.0)
