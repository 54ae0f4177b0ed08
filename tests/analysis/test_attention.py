"""Attention statistics against scipy and known cases, and word alignment."""

import math

import pytest
import torch
from scipy.spatial.distance import cdist, jensenshannon
from scipy.stats import entropy
from torch import Tensor

from unifier.analysis.attention import (
    ATTENTION_STATISTICS,
    AlignedSentence,
    alignment_error_rate,
    attention_received,
    attention_statistics,
    chance_error_rate,
    word_attention,
)
from unifier.nn.attention import AttentionMode, build_attention_mask

B, H, N = 3, 2, 6
LENGTHS = torch.tensor([N, 3, 4])
MASK = torch.arange(N) < LENGTHS[:, None]
LINE = torch.arange(N).float().expand(B, 1, N)
MODES: list[AttentionMode] = ["bidirectional", "causal", torch.tensor([2, 0, 4])]


def random_weights(mode: AttentionMode = "bidirectional", heads: int = H, mask: Tensor = MASK) -> Tensor:
    """Return random attention (B, H, N, N) over the visible tokens."""
    scores, visible = 3 * torch.randn(B, heads, N, N), build_attention_mask(mask, mode)
    return (scores if visible is None else scores.masked_fill(~visible, -math.inf)).softmax(-1)


@pytest.mark.parametrize("mode", MODES, ids=["bidirectional", "causal", "prefix"])
def test_statistics_equal_scipy(mode: AttentionMode) -> None:
    weights, coordinates = random_weights(mode), torch.rand(B, 2, N) * 9
    statistics = attention_statistics(weights, MASK, mode, coordinates, MASK)
    visible = build_attention_mask(MASK, mode)
    assert visible is not None
    expected: dict[str, list[float]] = {name: [] for name in ATTENTION_STATISTICS}
    for b, n in MASK.nonzero().tolist():
        seen = visible[b, 0].expand(N, N)[n].numpy()
        rows = weights[b, :, n].numpy()[:, seen]
        distances = cdist(coordinates[b, :, n][None], coordinates[b].T.numpy()[seen])[0]
        nats = math.nan if seen.sum() == 1 else float(entropy(rows, axis=1).sum())
        expected["entropy"].append(nats if math.isnan(nats) else nats / H / math.log(seen.sum()))
        expected["distance"].append((rows.mean(0) * distances).sum())
        expected["uniform_distance"].append(distances.mean())
        expected["agreement"].append(1 - jensenshannon(*rows, base=2) ** 2)
    for name, values in expected.items():
        reference = torch.tensor(values).float()
        torch.testing.assert_close(statistics[name], reference, equal_nan=True, atol=1e-5, rtol=1e-4)


def test_tokens_without_position_or_second_head_lack_a_statistic() -> None:
    weights, has_position, coordinates = random_weights(), MASK.clone(), LINE.clone()
    has_position[:, 0] = False
    coordinates[:, :, 0] = 1e6
    statistics = attention_statistics(weights, MASK, "bidirectional", coordinates, has_position)
    rest = weights[0, :, 1:, 1:].mean(0)
    expected = (rest * (torch.arange(1, N)[:, None] - torch.arange(1, N)).abs()).sum(1) / rest.sum(1)
    distance = statistics["distance"].split(LENGTHS.tolist())[0]
    assert distance[0].isnan()
    torch.testing.assert_close(distance[1:], expected)
    assert statistics["entropy"].isfinite().all()
    # A single head has no agreement.
    statistics = attention_statistics(random_weights(heads=1), MASK, "bidirectional", LINE, MASK)
    assert statistics["agreement"].isnan().all()
    assert statistics["entropy"].isfinite().all()


def test_attention_received_is_1_if_uniform() -> None:
    weights = random_weights(mask=torch.ones(B, N, dtype=torch.bool))[0]
    every, first = torch.ones(N, dtype=torch.bool), torch.arange(N) == 0
    assert attention_received(weights, every).mean() == pytest.approx(1)
    torch.testing.assert_close(attention_received(weights, first), weights[:, 0].mean(0) * N)
    torch.testing.assert_close(attention_received(torch.full((H, N, N), 1 / N), every), torch.ones(N))


def sentence(sources: list[int], gold: set[tuple[int, int]]) -> AlignedSentence:
    """Return a sentence of four source words, whose target words attend to the given source words."""
    return AlignedSentence(["s"] * 4, ["t"] * len(sources), torch.eye(4)[sources], gold)


def test_words_sum_sources_and_average_targets() -> None:
    attention = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.5, 0.5], [0.25] * 4])
    by_word = word_attention(attention, [0, 0, 1, 2], [0, 0, 1, 2])  # The last token of each is the end token.
    torch.testing.assert_close(by_word, torch.tensor([[(0.7 + 0.3) / 2, (0.2 + 0.3) / 2], [0.0, 0.5]]))


def test_alignment_error_rate_equals_the_formula() -> None:
    sentences = [sentence([0, 2, 0], {(0, 0), (1, 1), (2, 1), (3, 2)}), sentence([1], {(1, 0)})]
    num_links, num_gold, num_correct = 3 + 1, 4 + 1, 2 + 1
    expected = 1 - (num_correct + num_correct) / (num_links + num_gold)
    assert alignment_error_rate(sentences) == pytest.approx(expected)
    assert alignment_error_rate([sentence([2, 0, 1], {(2, 0), (0, 1), (1, 2)})]) == 0
    assert alignment_error_rate([sentence([2, 0, 1], {(0, 0), (3, 1), (0, 2)})]) == 1


def test_chance_error_rate_is_of_random_links() -> None:
    golds = [{(0, 0), (1, 1), (2, 1)}, {(3, 0), (0, 2)}]
    links = torch.randint(4, (3000, 2, 3)).tolist()
    rates = [alignment_error_rate(list(map(sentence, drawn, golds))) for drawn in links]
    chance = chance_error_rate([sentence([0, 0, 0], gold) for gold in golds])
    assert chance == pytest.approx(sum(rates) / len(rates), abs=0.01)
