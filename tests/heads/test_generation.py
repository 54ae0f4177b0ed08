"""Search and sampling on a toy model whose texts can all be enumerated."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from unifier.heads.generation import Hypothesis, beam_search, greedy_search, sample, sampling_probabilities, topk
from unifier_tokenizers import InputError
from unifier_tokenizers.subwords import BOS, EOS

R, V = 4, 6
LIMITS = [12, 3, 1, 7]


class ToyDecoder:
    """A model of the next token with one table per row, which depends on the last two tokens."""

    def __init__(self, tables: Tensor) -> None:
        self.tables, self.pasts = tables, [list[int]() for _ in tables]
        self.batch_sizes: list[int] = []

    def step(self, ids: Tensor) -> Tensor:
        assert len(ids) == len(self.tables) == len(self.pasts)
        for past, token in zip(self.pasts, ids.tolist(), strict=True):
            assert past or token == BOS
            past.append(token)
        self.batch_sizes.append(len(ids))
        previous = torch.tensor([([BOS, *past])[-2] for past in self.pasts])
        return self.tables[torch.arange(len(ids)), previous, ids]

    def reorder(self, rows: Tensor) -> None:
        self.tables, self.pasts = self.tables[rows], [list(self.pasts[row]) for row in rows.tolist()]


def random_tables(rows: int, seed: int = 0, scale: float = 2.0, size: int = V) -> Tensor:
    """Return log-probabilities (rows, V, V, V); a larger scale makes the model more certain."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, size, size, size, generator=generator) * scale).log_softmax(-1)


@pytest.fixture(params=range(3))
def tables(request: pytest.FixtureRequest) -> Tensor:
    return random_tables(R, request.param, 1 + request.param)


def expected_score(table: Tensor, ids: list[int], limit: int, penalty: float) -> float:
    """Score a text by its definition; at the length limit, it has no end token."""
    tokens = ids if len(ids) == limit else [*ids, EOS]
    past = [BOS, BOS, *tokens]
    total = sum(float(table[past[n], past[n + 1], token]) for n, token in enumerate(tokens))
    return total / len(tokens) ** penalty


def all_texts(table: Tensor, limit: int, penalty: float) -> list[Hypothesis]:
    tokens = [token for token in range(V) if token != EOS]
    texts = [list(text) for length in range(limit + 1) for text in itertools.product(tokens, repeat=length)]
    scored = [Hypothesis(text, expected_score(table, text, limit, penalty)) for text in texts]
    return sorted(scored, key=lambda text: -text.score)


def all_ids(texts: Sequence[Hypothesis]) -> list[list[int]]:
    return [text.ids for text in texts]


def table_of(probabilities: dict[tuple[int, int], float], size: int = V) -> Tensor:
    """Return a table (1, V, V, V) from the probability of each pair of token and next token."""
    table = torch.full((size, size), -math.inf)
    for (token, following), probability in probabilities.items():
        table[token, following] = math.log(probability)
    return table.expand(1, size, size, size)


def fixed_text(length: int) -> Tensor:
    """Return a table with a single possible text, of the tokens 4, 5, 6 and so on."""
    states = [BOS, *range(4, 4 + length)]
    return table_of(dict.fromkeys(itertools.pairwise([*states, EOS]), 1.0), 12)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_widest_beam_finds_all_texts_in_order(tables: Tensor, penalty: float) -> None:
    limits = [4, 3, 1, 2]
    beams = beam_search(ToyDecoder(tables), torch.tensor(limits), 800, length_penalty=penalty)
    for table, limit, texts in zip(tables, limits, beams, strict=True):
        expected = all_texts(table, limit, penalty)
        assert len(texts) == len(expected) <= 800
        assert sorted(all_ids(texts)) == sorted(all_ids(expected))
        assert texts[0].ids == expected[0].ids
        assert [text.score for text in texts] == pytest.approx([text.score for text in expected], abs=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("beam_width", [1, 2, 5, 9])
def test_hypotheses_are_distinct_and_sorted(tables: Tensor, beam_width: int, penalty: float) -> None:
    beams = beam_search(ToyDecoder(tables), torch.tensor(LIMITS), beam_width, length_penalty=penalty)
    for table, limit, texts in zip(tables, LIMITS, beams, strict=True):
        assert 1 <= len(texts) <= beam_width
        assert len(set(map(tuple, all_ids(texts)))) == len(texts)
        assert [text.score for text in texts] == sorted((text.score for text in texts), reverse=True)
        for ids, score in texts:
            assert len(ids) <= limit
            assert EOS not in ids
            assert score == pytest.approx(expected_score(table, ids, limit, penalty), abs=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_greedy_takes_the_most_likely_token(tables: Tensor, penalty: float) -> None:
    limits = torch.tensor(LIMITS)
    narrow = beam_search(ToyDecoder(tables), limits, 1, length_penalty=penalty)
    greedy = greedy_search(ToyDecoder(tables), limits, length_penalty=penalty)
    for table, limit, (ids, score), (text,) in zip(tables, LIMITS, greedy, narrow, strict=True):
        expected, previous, token = list[int](), BOS, BOS
        while len(expected) < limit and (following := int(table[previous, token].argmax())) != EOS:
            expected.append(following)
            previous, token = token, following
        assert ids == text.ids == expected
        assert score == pytest.approx(expected_score(table, ids, limit, penalty), abs=1e-5)
        assert text.score == pytest.approx(score, abs=1e-5)


def test_finished_rows_leave_the_batch() -> None:
    tables, limits = torch.cat([fixed_text(length) for length in (5, 0, 2, 7)]), torch.tensor([20, 20, 20, 4])
    greedy, beam = ToyDecoder(tables), ToyDecoder(tables)
    assert [len(text.ids) for text in greedy_search(greedy, limits)] == [5, 0, 2, 4]
    assert [len(texts[0].ids) for texts in beam_search(beam, limits, 1)] == [5, 0, 2, 4]
    assert greedy.batch_sizes == beam.batch_sizes == [4, 3, 3, 2, 1, 1]


def test_beam_waits_for_a_better_text() -> None:
    """Two poor texts end before the third token, and a better one ends with it."""
    decoder = ToyDecoder(table_of({(BOS, 4): 0.7, (BOS, EOS): 0.3, (4, 5): 0.6, (4, EOS): 0.4, (5, EOS): 1.0}))
    (texts,) = beam_search(decoder, torch.tensor([20]), 2)
    assert all_ids(texts) == [[4, 5], [4]]
    assert [text.score for text in texts] == pytest.approx([math.log(0.42) / 3, math.log(0.28) / 2])
    assert len(decoder.batch_sizes) == 3


def test_beam_stops_if_no_text_can_be_better() -> None:
    """Two texts, of 0.6 and 0.12, end within two tokens; 0.4 * 0.7 ** 4 is the first lower probability."""
    decoder = ToyDecoder(table_of({(BOS, EOS): 0.6, (BOS, 4): 0.4, (4, 4): 0.7, (4, EOS): 0.3}))
    (texts,) = beam_search(decoder, torch.tensor([20]), 2, length_penalty=0)
    assert all_ids(texts) == [[], [4]]
    assert len(decoder.batch_sizes) == 5
    # A beam that is wider than the number of possible texts has possible texts only.
    assert beam_search(ToyDecoder(fixed_text(2)), torch.tensor([6]), 3) == [[Hypothesis([4, 5], 0)]]


@pytest.mark.parametrize("k", [1, 2, 10])
@pytest.mark.parametrize("size", [3, 128, 1000, 1280, 1281])
def test_topk_equals_torch(k: int, size: int) -> None:
    scores = torch.randn(5, size)
    scores[0, : size // 2] = -torch.inf
    values, indices = topk(scores, k)
    expected = scores.topk(min(k, size), dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(indices, expected.indices)
    values, indices = topk(torch.zeros(2, 600), 4)
    assert values.tolist() == [[0.0] * 4] * 2
    assert all(len(set(row)) == 4 for row in indices.tolist()), "ties have distinct indices"


def generators(rows: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + row) for row in range(rows)]


def test_sample_depends_on_its_generator_alone() -> None:
    tables, limits = random_tables(6), torch.tensor([9, 3, 12, 1, 9, 9])
    texts = sample(ToyDecoder(tables), limits, generators(6))
    assert texts == sample(ToyDecoder(tables), limits, generators(6))
    assert texts != sample(ToyDecoder(tables), limits, generators(6, seed=100))
    for r, text in enumerate(texts):
        row = slice(r, r + 1)
        assert sample(ToyDecoder(tables[row]), limits[row], generators(6)[row]) == [text]


def test_sample_has_the_models_score_and_limit() -> None:
    tables, limits = random_tables(8), [1, 2, 3, 4, 5, 6, 30, 30]
    options: dict[str, Any] = {"temperature": 2.0, "top_k": 5, "length_penalty": 0.5}
    texts = sample(ToyDecoder(tables), torch.tensor(limits), generators(8), **options)
    for table, limit, (ids, score) in zip(tables, limits, texts, strict=True):
        assert len(ids) <= limit
        assert EOS not in ids
        assert score == pytest.approx(expected_score(table, ids, limit, 0.5), abs=1e-5)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}], ids=str)
def test_narrowest_sampling_is_greedy(options: dict[str, Any]) -> None:
    tables, limits = random_tables(5), torch.tensor([9, 3, 12, 1, 9])
    texts = sample(ToyDecoder(tables), limits, generators(5), **options)
    greedy = greedy_search(ToyDecoder(tables), limits)
    assert all_ids(texts) == all_ids(greedy)
    assert [text.score for text in texts] == pytest.approx([text.score for text in greedy])


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_samples_have_the_models_frequencies(temperature: float) -> None:
    count = 4000
    table = random_tables(1).expand(count, V, V, V)
    texts = sample(ToyDecoder(table), torch.ones(count), generators(count), temperature=temperature)
    frequencies = torch.tensor([[*text.ids, EOS][0] for text in texts]).bincount(minlength=V) / count
    expected = (table[0, BOS, BOS] / temperature).softmax(0)
    assert (frequencies - expected).abs().max() < 4 * math.sqrt(0.25 / count)


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-38, 1e38, 1e40, 1e300])
def test_extreme_temperatures_keep_zeros(temperature: float) -> None:
    logs = torch.tensor([[-math.inf, -2.0, -math.inf, -1.0, -3.0]]).log_softmax(1)
    probabilities, tokens = sampling_probabilities(logs, temperature, None, 1.0)
    assert tokens[0].tolist() == [3, 1, 4, 0, 2]
    expected = [1.0, 0.0, 0.0] if temperature < 1 else [1 / 3] * 3
    assert probabilities[0].tolist() == pytest.approx([*expected, 0.0, 0.0])


EVEN = dict.fromkeys(range(4), 0.25)


@pytest.mark.parametrize(
    ("top_k", "top_p", "first", "second"),
    [
        (None, 1.0, {1: 0.4, 2: 0.3, 3: 0.2, 0: 0.1}, EVEN),
        (None, 0.65, {1: 0.4, 2: 0.3}, dict.fromkeys(range(3), 0.25)),
        (None, 0.5, {1: 0.4, 2: 0.3}, dict.fromkeys(range(2), 0.25)),
        (None, 0.39, {1: 0.4}, dict.fromkeys(range(2), 0.25)),
        (2, 1.0, {1: 4 / 7, 2: 3 / 7}, {0: 0.5, 1: 0.5}),
        (2, 0.57, {1: 4 / 7}, {0: 0.5, 1: 0.5}),
        (9, 1.0, {1: 0.4, 2: 0.3, 3: 0.2, 0: 0.1}, EVEN),
    ],
)
def test_top_k_and_top_p_keep_right_tokens(
    top_k: int | None, top_p: float, first: dict[int, float], second: dict[int, float]
) -> None:
    logs = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]]).log()
    probabilities, tokens = sampling_probabilities(logs, 1.0, top_k, top_p)
    for row, kept, expected in zip(tokens.tolist(), probabilities.tolist(), (first, second), strict=True):
        assert {token: p for token, p in zip(row, kept, strict=True) if p} == pytest.approx(expected)


def test_nucleus_is_the_smallest_set() -> None:
    for top_p in (0.1, 0.5, 0.9, 0.99):
        probabilities, _ = sampling_probabilities(torch.randn(50, 100).log_softmax(1), 1.0, None, top_p)
        assert (probabilities.sum(1) >= top_p - 1e-5).all()
        smallest = probabilities.masked_fill(probabilities == 0, math.inf).amin(1)
        assert (probabilities.sum(1) - smallest < top_p + 1e-5).all()


@pytest.mark.parametrize(
    ("option", "value"),
    [*(("temperature", value) for value in (0, math.nan, math.inf)), ("top_k", 0), ("top_p", 0), ("top_p", 2)],
)
def test_wrong_sampling_option_is_refused(option: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{option}={value}"):
        sample(ToyDecoder(random_tables(1)), torch.tensor([3]), generators(1), **{option: value})  # pyright: ignore[reportArgumentType]
