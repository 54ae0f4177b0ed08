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
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import AttentiveTrunk
from unifier_tokenizers import Tokens

B, H, N = 3, 2, 6
LENGTHS = torch.tensor([N, 3, 4])
MASK = torch.arange(N) < LENGTHS[:, None]
LINE = torch.arange(N).float().expand(B, 1, N)
MODES: list[AttentionMode] = ["bidirectional", "causal", torch.tensor([2, 0, 4])]


def random_weights(
    mode: AttentionMode = "bidirectional", heads: int = H, scale: float = 3.0, mask: Tensor = MASK
) -> Tensor:
    """Return random attention (B, H, N, N) over the visible tokens."""
    scores, visible = scale * torch.randn(B, heads, N, N), build_attention_mask(mask, mode)
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


def test_uniform_attention_has_the_maxima() -> None:
    statistics = attention_statistics(random_weights(scale=0), MASK, "bidirectional", LINE, MASK)
    torch.testing.assert_close(statistics["entropy"], torch.ones(int(LENGTHS.sum())))
    torch.testing.assert_close(statistics["distance"], statistics["uniform_distance"])
    torch.testing.assert_close(statistics["agreement"], torch.ones(int(LENGTHS.sum())))


def test_disjoint_heads_do_not_agree() -> None:
    weights = torch.eye(N)[torch.tensor([[0], [3]])].expand(1, 2, N, N)
    statistics = attention_statistics(weights, MASK[:1], "bidirectional", LINE[:1], MASK[:1])
    assert statistics["agreement"].abs().max() < 1e-6
    assert statistics["entropy"].abs().max() < 1e-6
    assert statistics["distance"].tolist() == [(abs(n) + abs(n - 3)) / 2 for n in range(N)]


def test_padding_changes_no_statistic() -> None:
    weights, n = random_weights(), int(LENGTHS[1])
    batch = attention_statistics(weights, MASK, "bidirectional", LINE, MASK)
    mask = MASK[1:2, :n]
    single = attention_statistics(weights[1:2, :, :n, :n], mask, "bidirectional", LINE[1:2, :, :n], mask)
    for name in ATTENTION_STATISTICS:
        torch.testing.assert_close(batch[name].split(LENGTHS.tolist())[1], single[name])


def test_tokens_without_position_have_no_distance() -> None:
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


def test_a_single_head_has_no_agreement() -> None:
    statistics = attention_statistics(random_weights(heads=1), MASK, "bidirectional", LINE, MASK)
    assert statistics["agreement"].isnan().all()
    assert statistics["entropy"].isfinite().all()


def test_attention_received_is_1_if_uniform() -> None:
    weights = random_weights(mask=torch.ones(B, N, dtype=torch.bool))[0]
    every, first = torch.ones(N, dtype=torch.bool), torch.arange(N) == 0
    assert attention_received(weights, every).mean() == pytest.approx(1)
    torch.testing.assert_close(attention_received(weights, first), weights[:, 0].mean(0) * N)
    torch.testing.assert_close(attention_received(torch.full((H, N, N), 1 / N), every), torch.ones(N))


def test_transformer_is_attentive() -> None:
    trunk: object = Transformer(8, 2, H, 12)
    assert isinstance(trunk, AttentiveTrunk)
    assert not isinstance(MeanAttentionTrunk(8, 2, 12), AttentiveTrunk)
    tokens = Tokens(torch.randn(B, 8, N), MASK, torch.arange(N).expand(B, 1, N))
    statistics = attention_statistics(trunk.attention(tokens)[1][0].detach(), MASK, "bidirectional", LINE, MASK)
    assert all(0 < statistics[name].min() <= statistics[name].max() <= 1 for name in ("entropy", "agreement"))


def sentence(sources: list[int], gold: set[tuple[int, int]]) -> AlignedSentence:
    """Return a sentence of four source words, whose target words attend to the given source words."""
    return AlignedSentence(["s"] * 4, ["t"] * len(sources), torch.eye(4)[sources], gold)


def test_word_attention_adds_sources_and_averages_targets() -> None:
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


def test_chance_error_rate_is_the_mean_of_random_links() -> None:
    golds = [{(0, 0), (1, 1), (2, 1)}, {(3, 0), (0, 2)}]
    rates = [
        alignment_error_rate([sentence(torch.randint(4, (3,)).tolist(), gold) for gold in golds]) for _ in range(3000)
    ]
    chance = chance_error_rate([sentence([0, 0, 0], gold) for gold in golds])
    assert chance == pytest.approx(sum(rates) / len(rates), abs=0.01)
