"""Searches over a toy model whose texts can all be written down: exact where wide, greedy where narrow, and bounded."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from unifier.heads.generation import Hypothesis, beam_search, greedy_search, topk
from unifier_tokenizers.text import BOS, EOS

R, V = 4, 6


class Markov:
    """What comes next depends on the row's table and the two tokens before it, of which it must remember one."""

    def __init__(self, tables: Tensor) -> None:
        self.tables, self.pasts = tables, [list[int]() for _ in tables]
        self.sizes: list[int] = []

    def step(self, ids: Tensor) -> Tensor:
        assert len(ids) == len(self.tables) == len(self.pasts)
        for past, token in zip(self.pasts, ids.tolist(), strict=True):
            assert past or token == BOS
            past.append(token)
        self.sizes.append(len(ids))
        before = torch.tensor([([BOS, *past])[-2] for past in self.pasts])
        return self.tables[torch.arange(len(ids)), before, ids]

    def reorder(self, rows: Tensor) -> None:
        self.tables, self.pasts = self.tables[rows], [list(self.pasts[row]) for row in rows.tolist()]


@pytest.fixture(params=range(3))
def tables(request: pytest.FixtureRequest) -> Tensor:
    """(R, V, V, V) log-probabilities, of models more and less sure of themselves."""
    draw = torch.Generator().manual_seed(request.param)
    return (torch.randn(R, V, V, V, generator=draw) * (1 + request.param)).log_softmax(-1)


def log_probability(table: Tensor, tokens: list[int]) -> float:
    past = [BOS, BOS, *tokens]
    return sum(float(table[past[n], past[n + 1], token]) for n, token in enumerate(tokens))


def score_of(table: Tensor, ids: list[int], limit: int, penalty: float) -> float:
    """A text's log-probability by its length, both with the end mark unless the limit cut it off."""
    tokens = ids if len(ids) == limit else [*ids, EOS]
    return log_probability(table, tokens) / len(tokens) ** penalty


def all_texts(table: Tensor, limit: int, penalty: float) -> list[Hypothesis]:
    going_on = [token for token in range(V) if token != EOS]
    texts = [list(text) for length in range(limit + 1) for text in itertools.product(going_on, repeat=length)]
    found = [Hypothesis(text, score_of(table, text, limit, penalty)) for text in texts]
    return sorted(found, key=lambda each: -each.score)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_beam_as_wide_as_all_texts_finds_them_all_in_order(tables: Tensor, penalty: float) -> None:
    limits = [4, 3, 1, 2]
    found = beam_search(Markov(tables), torch.tensor(limits), 800, length_penalty=penalty)
    for table, limit, texts in zip(tables, limits, found, strict=True):
        expected = all_texts(table, limit, penalty)
        assert len(texts) == len(expected) <= 800
        assert {tuple(text.ids) for text in texts} == {tuple(text.ids) for text in expected}
        assert texts[0].ids == expected[0].ids
        scores = [text.score for text in texts]
        assert scores == pytest.approx([text.score for text in expected], abs=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("width", [1, 2, 5, 9])
def test_hypotheses_are_distinct_bounded_sorted_and_scored_as_said(tables: Tensor, width: int, penalty: float) -> None:
    limits = [1, 7, 12, 3]
    found = beam_search(Markov(tables), torch.tensor(limits), width, length_penalty=penalty)
    for table, limit, texts in zip(tables, limits, found, strict=True):
        assert 1 <= len(texts) <= width
        assert len({tuple(text.ids) for text in texts}) == len(texts)
        assert [text.score for text in texts] == sorted((text.score for text in texts), reverse=True)
        for ids, score in texts:
            assert len(ids) <= limit
            assert EOS not in ids
            assert score == pytest.approx(score_of(table, ids, limit, penalty), abs=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_beam_of_one_is_greedy(tables: Tensor, penalty: float) -> None:
    limits = torch.tensor([12, 3, 1, 7])
    narrow = beam_search(Markov(tables), limits, 1, length_penalty=penalty)
    plain = greedy_search(Markov(tables), limits, length_penalty=penalty)
    for (one,), other in zip(narrow, plain, strict=True):
        assert one.ids == other.ids
        assert one.score == pytest.approx(other.score, abs=1e-5)


def test_greedy_takes_the_likeliest_each_time(tables: Tensor) -> None:
    limits = [12, 3, 1, 7]
    for table, limit, (ids, score) in zip(
        tables, limits, greedy_search(Markov(tables), torch.tensor(limits)), strict=True
    ):
        expected, before, token = list[int](), BOS, BOS
        while len(expected) < limit and (following := int(table[before, token].argmax())) != EOS:
            expected.append(following)
            before, token = token, following
        assert ids == expected
        assert score == pytest.approx(score_of(table, ids, limit, 1.0), abs=1e-5)


@pytest.mark.parametrize("width", [1, 3])
def test_a_batch_writes_what_each_row_writes_alone(tables: Tensor, width: int) -> None:
    limits = torch.tensor([12, 3, 1, 7])
    together = beam_search(Markov(tables), limits, width)
    plain = greedy_search(Markov(tables), limits)
    for r in range(R):
        row = slice(r, r + 1)
        (alone,) = beam_search(Markov(tables[row]), limits[row], width)
        assert [text.ids for text in alone] == [text.ids for text in together[r]]
        assert greedy_search(Markov(tables[row]), limits[row])[0].ids == plain[r].ids


def until_end(length: int) -> Tensor:
    """A row that surely writes the tokens 4, 5, 4 ... until a length: one state a token, V = 4 + length."""
    table = torch.full((12, 12), -math.inf)
    for n, state in enumerate([BOS, *range(4, 4 + length)]):
        table[state, EOS if n == length else 4 + n] = 0.0
    return table.expand(12, 12, 12)


def test_finished_rows_leave_the_batch() -> None:
    lengths = [5, 0, 2, 7]
    tables = torch.stack([until_end(length) for length in lengths])
    limits = torch.tensor([20, 20, 20, 4])
    decoder = Markov(tables)
    assert [len(text.ids) for text in greedy_search(decoder, limits)] == [5, 0, 2, 4]
    assert decoder.sizes == [4, 3, 3, 2, 1, 1]
    decoder = Markov(tables)
    found = beam_search(decoder, limits, 1)
    assert [len(texts[0].ids) for texts in found] == [5, 0, 2, 4]
    assert decoder.sizes == [4, 3, 3, 2, 1, 1]


def chances(of: dict[tuple[int, int], float]) -> Tensor:
    """A row's table out of what a token makes likely."""
    table = torch.full((V, V), -math.inf)
    for (token, following), chance in of.items():
        table[token, following] = math.log(chance)
    return table


def test_a_beam_waits_for_a_text_that_is_better_than_what_has_ended() -> None:
    """Two poor texts end before the third token; a better one ends with it."""
    table = chances({(BOS, 4): 0.7, (BOS, EOS): 0.3, (4, 5): 0.6, (4, EOS): 0.4, (5, EOS): 1.0}).expand(V, V, V)
    decoder = Markov(table[None])
    (found,) = beam_search(decoder, torch.tensor([20]), 2)
    assert [text.ids for text in found] == [[4, 5], [4]]
    assert [text.score for text in found] == pytest.approx([math.log(0.42) / 3, math.log(0.28) / 2])
    assert len(decoder.sizes) == 3


def test_a_beam_stops_where_no_text_can_be_better_than_the_worst_that_has_ended() -> None:
    """After two tokens two texts have ended, of 0.6 and 0.12; 0.4 * 0.7 ** 4 is the first that is less likely."""
    table = chances({(BOS, EOS): 0.6, (BOS, 4): 0.4, (4, 4): 0.7, (4, EOS): 0.3}).expand(V, V, V)
    decoder = Markov(table[None])
    (found,) = beam_search(decoder, torch.tensor([20]), 2, length_penalty=0)
    assert [text.ids for text in found] == [[], [4]]
    assert len(decoder.sizes) == 5


def test_a_beam_ends_where_nothing_can_go_on() -> None:
    """Only one text has any probability: a wide beam holds that one, and nothing that cannot be."""
    found = beam_search(Markov(until_end(2)[None]), torch.tensor([6]), 3)
    assert [text.ids for text in found[0]] == [[4, 5]]
    assert found[0][0].score == 0


def test_a_beam_finds_what_greed_misses() -> None:
    """The first token is likelier, and what follows it is not."""
    table = torch.full((V, V), -math.inf)
    table[BOS, 4], table[BOS, 5] = math.log(0.6), math.log(0.4)
    table[4] = math.log(1 / V)
    table[5, EOS] = 0.0
    table, limits = table.expand(V, V, V), torch.tensor([3])
    assert greedy_search(Markov(table[None]), limits, length_penalty=0)[0].ids[0] == 4
    assert beam_search(Markov(table[None]), limits, 2, length_penalty=0)[0][0].ids == [5]


@pytest.mark.parametrize("k", [1, 2, 10])
@pytest.mark.parametrize("width", [3, 128, 1000, 1280, 1281])
def test_the_highest_are_those_that_topk_finds(k: int, width: int) -> None:
    scores = torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    scores[0, : width // 2] = -torch.inf
    found = topk(scores, k)
    wanted = scores.topk(min(k, width), dim=1)
    assert torch.equal(found[0], wanted.values)
    assert torch.equal(found[1], wanted.indices)


def test_the_highest_of_equal_scores_are_different_places() -> None:
    values, places = topk(torch.zeros(2, 600), 4)
    assert values.tolist() == [[0.0] * 4] * 2
    assert all(len(set(row)) == 4 for row in places.tolist())
