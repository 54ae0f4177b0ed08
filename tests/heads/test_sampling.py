"""Texts drawn by chance: from what is left of the distribution, by the generator alone, whoever stands beside them."""

import math

import pytest
import torch
from torch import Tensor

from unifier.heads.generation import greedy_search, sample, sampling_probabilities
from unifier_tokenizers import InputError
from unifier_tokenizers.text import BOS, EOS

V = 7


class Chain:
    """What comes next depends on the row's table and the token before."""

    def __init__(self, tables: Tensor) -> None:
        self.tables = tables

    def step(self, ids: Tensor) -> Tensor:
        return self.tables[torch.arange(len(ids)), ids]

    def reorder(self, rows: Tensor) -> None:
        self.tables = self.tables[rows]


def tables(rows: int, seed: int = 0) -> Tensor:
    """(rows, V, V) log-probabilities."""
    return (2 * torch.randn(rows, V, V, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)


def generators(rows: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + row) for row in range(rows)]


def test_the_seed_of_a_row_decides_its_text_and_its_neighbors_nothing() -> None:
    table, limits = tables(6), torch.tensor([9, 3, 12, 1, 9, 9])
    whole = sample(Chain(table), limits, generators(6))
    assert whole == sample(Chain(table), limits, generators(6))
    assert whole != sample(Chain(table), limits, generators(6, seed=100))
    for row, found in enumerate(whole):
        alone = sample(Chain(table[row : row + 1]), limits[row : row + 1], generators(6)[row : row + 1])
        assert alone == [found]


def test_a_text_keeps_to_its_limit_and_is_scored_as_the_model_holds_it() -> None:
    table, limits = tables(8), torch.tensor([1, 2, 3, 4, 5, 6, 30, 30])
    found = sample(Chain(table), limits, generators(8), temperature=2.0, top_k=5, length_penalty=0.5)
    for row, (ids, score) in enumerate(found):
        tokens = ids if len(ids) == limits[row] else [*ids, EOS]
        assert EOS not in ids
        past = [BOS, *tokens]
        total = sum(float(table[row, past[n], token]) for n, token in enumerate(tokens))
        assert score == pytest.approx(total / len(tokens) ** 0.5, abs=1e-5)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}], ids=str)
def test_where_only_the_likeliest_is_left_it_is_greedy(options: dict[str, float]) -> None:
    table, limits = tables(5), torch.tensor([9, 3, 12, 1, 9])
    drawn = sample(Chain(table), limits, generators(5), **options)  # pyright: ignore[reportArgumentType]
    for one, likeliest in zip(drawn, greedy_search(Chain(table), limits), strict=True):
        assert one.ids == likeliest.ids
        assert one.score == pytest.approx(likeliest.score)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    count = 4000
    table = tables(1).expand(count, V, V)
    found = sample(Chain(table), torch.ones(count), generators(count), temperature=temperature)
    drawn = torch.tensor([[*text.ids, EOS][0] for text in found]).bincount(minlength=V) / count
    expected = (table[0, BOS] / temperature).softmax(0)
    assert (drawn - expected).abs().max() < 4 * math.sqrt(0.25 / count)


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-38, 1e38, 1e40, 1e300])
def test_no_temperature_draws_what_cannot_be(temperature: float) -> None:
    logs = torch.tensor([[-math.inf, -2.0, -math.inf, -1.0, -3.0]]).log_softmax(1)
    kept, tokens = sampling_probabilities(logs, temperature, None, 1.0)
    assert tokens[0].tolist() == [3, 1, 4, 0, 2]
    expected = [1.0, 0.0, 0.0] if temperature < 1 else [1 / 3] * 3
    assert kept[0].tolist() == pytest.approx([*expected, 0.0, 0.0])


def test_top_k_and_top_p_leave_the_right_share() -> None:
    logs = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]]).log()

    def left(top_k: int | None, top_p: float) -> list[dict[int, float]]:
        kept, tokens = sampling_probabilities(logs, 1.0, top_k, top_p)
        return [
            {token: round(share, 4) for token, share in zip(*row, strict=True) if share}
            for row in zip(tokens.tolist(), kept.tolist(), strict=True)
        ]

    assert left(None, 1.0) == [{1: 0.4, 2: 0.3, 3: 0.2, 0: 0.1}, dict.fromkeys(range(4), 0.25)]
    assert left(None, 0.65) == [{1: 0.4, 2: 0.3}, {0: 0.25, 1: 0.25, 2: 0.25}]
    assert left(None, 0.5) == [{1: 0.4, 2: 0.3}, {0: 0.25, 1: 0.25}]
    assert left(None, 0.39) == [{1: 0.4}, {0: 0.25, 1: 0.25}]
    assert left(2, 1.0) == [{1: round(4 / 7, 4), 2: round(3 / 7, 4)}, {0: 0.5, 1: 0.5}]
    assert left(2, 0.57) == [{1: round(4 / 7, 4)}, {0: 0.5, 1: 0.5}]
    assert left(9, 1.0) == left(None, 1.0)


def test_the_nucleus_is_the_smallest_that_holds_its_share() -> None:
    logs = torch.randn(50, 100, generator=torch.Generator().manual_seed(1)).log_softmax(1)
    for top_p in (0.1, 0.5, 0.9, 0.99):
        kept, _ = sampling_probabilities(logs, 1.0, None, top_p)
        assert (kept.sum(1) >= top_p - 1e-5).all()
        least = kept.masked_fill(kept == 0, math.inf).amin(1)
        assert (kept.sum(1) - least < top_p + 1e-5).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 0}, "temperature=0: a number above 0"),
        ({"temperature": math.nan}, "temperature=nan: a number above 0"),
        ({"temperature": math.inf}, "temperature=inf: a number above 0, not infinite"),
        ({"top_k": 0}, "top_k=0: at least 1 token"),
        ({"top_p": 0}, "top_p=0: a share"),
        ({"top_p": 1.5}, "top_p=1.5: a share"),
    ],
)
def test_nothing_to_draw_from_is_said(options: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sample(Chain(tables(1)), torch.tensor([3]), generators(1), **options)  # pyright: ignore[reportArgumentType]
