"""How wide attention looks, how far, and whether heads agree: against scipy, and where the answer is known."""

import math

import pytest
import torch
from scipy.spatial.distance import cdist, jensenshannon
from scipy.stats import entropy
from torch import Tensor

from unifier.analysis.attention import ATTENTION_STATISTICS, attention_received, attention_statistics
from unifier.nn.attention import AttentionMode, build_attention_mask
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import AttentiveTrunk
from unifier_tokenizers import Tokens

B, H, N = 3, 2, 6
LENGTHS = torch.tensor([N, 3, 4])
MASK = torch.arange(N) < LENGTHS[:, None]
VISIBLE: list[AttentionMode] = ["bidirectional", "causal", torch.tensor([2, 0, 4])]


def weights_of(mode: AttentionMode, heads: int = H, loud: float = 3.0, mask: Tensor = MASK) -> Tensor:
    """Attention drawn at random over what may be seen: (B, H, N, N)."""
    scores = loud * torch.randn(B, heads, N, N)
    seen = build_attention_mask(mask, mode)
    return (scores if seen is None else scores.masked_fill(~seen, -math.inf)).softmax(-1)


def line() -> Tensor:
    return torch.arange(N).float().expand(B, 1, N)


@pytest.mark.parametrize("mode", VISIBLE, ids=["bidirectional", "causal", "prefix"])
def test_each_column_has_what_scipy_finds_for_it(mode: AttentionMode) -> None:
    weights, coordinates = weights_of(mode), torch.rand(B, 2, N) * 9
    found = attention_statistics(weights, MASK, mode, coordinates, MASK)
    seen = build_attention_mask(MASK, mode)
    assert seen is not None
    wanted: dict[str, list[float]] = {name: [] for name in ATTENTION_STATISTICS}
    for b, n in MASK.nonzero().tolist():
        real = seen[b, 0].expand(N, N)[n].numpy()
        rows = weights[b, :, n].numpy()[:, real]
        distances = cdist(coordinates[b, :, n][None], coordinates[b].T.numpy()[real])[0]
        alone = real.sum() == 1
        wanted["entropy"].append(math.nan if alone else float(entropy(rows, axis=1).sum()) / H / math.log(real.sum()))
        wanted["distance"].append((rows.mean(0) * distances).sum())
        wanted["uniform_distance"].append(distances.mean())
        wanted["agreement"].append(1 - jensenshannon(*rows, base=2) ** 2)
    for name, values in wanted.items():
        torch.testing.assert_close(
            found[name].double(), torch.tensor(values).double(), equal_nan=True, atol=1e-5, rtol=1e-4
        )


def test_even_attention_is_as_wide_and_as_far_as_can_be() -> None:
    weights = weights_of("bidirectional", loud=0)
    found = attention_statistics(weights, MASK, "bidirectional", line(), MASK)
    torch.testing.assert_close(found["entropy"], torch.ones(int(LENGTHS.sum())))
    torch.testing.assert_close(found["distance"], found["uniform_distance"])
    torch.testing.assert_close(found["agreement"], torch.ones(int(LENGTHS.sum())))


def test_heads_that_share_nothing_do_not_agree() -> None:
    weights = torch.eye(N)[torch.tensor([[0], [3]])].expand(1, 2, N, N)
    found = attention_statistics(weights, MASK[:1], "bidirectional", line()[:1], MASK[:1])
    assert found["agreement"].abs().max() < 1e-6
    assert found["entropy"].abs().max() < 1e-6
    assert found["distance"].tolist() == [(abs(n) + abs(n - 3)) / 2 for n in range(N)]


def test_padding_changes_nothing() -> None:
    weights, n = weights_of("bidirectional"), int(LENGTHS[1])
    together = attention_statistics(weights, MASK, "bidirectional", line(), MASK)
    alone = attention_statistics(
        weights[1:2, :, :n, :n], MASK[1:2, :n], "bidirectional", line()[1:2, :, :n], MASK[1:2, :n]
    )
    for name in ATTENTION_STATISTICS:
        torch.testing.assert_close(together[name].split(LENGTHS.tolist())[1], alone[name])


def test_columns_that_stand_nowhere_have_no_distance_and_are_none() -> None:
    weights, placed = weights_of("bidirectional"), MASK.clone()
    placed[:, 0] = False
    far = line().clone()
    far[:, :, 0] = math.nan
    found = attention_statistics(weights, MASK, "bidirectional", far.nan_to_num(1e6), placed)
    rest = weights[0, :, 1:, 1:].mean(0)
    wanted = (rest * (torch.arange(1, N)[:, None] - torch.arange(1, N)).abs()).sum(1) / rest.sum(1)
    first = found["distance"].split(LENGTHS.tolist())[0]
    assert first[0].isnan()
    torch.testing.assert_close(first[1:], wanted)
    assert found["entropy"].isfinite().all()


def test_a_lone_head_agrees_with_nobody() -> None:
    found = attention_statistics(weights_of("bidirectional", heads=1), MASK, "bidirectional", line(), MASK)
    assert found["agreement"].isnan().all()
    assert found["entropy"].isfinite().all()


def test_attention_received_is_one_where_it_is_even_and_counts_who_asks() -> None:
    weights = weights_of("bidirectional", mask=torch.ones(B, N, dtype=torch.bool))[0]
    everyone, first = torch.ones(N, dtype=torch.bool), torch.arange(N) == 0
    assert attention_received(weights, everyone).mean() == pytest.approx(1)
    torch.testing.assert_close(attention_received(weights, first), weights[:, 0].mean(0) * N)
    torch.testing.assert_close(attention_received(torch.full((H, N, N), 1 / N), everyone), torch.ones(N))


def test_a_transformer_shows_its_attention_and_a_bag_has_none() -> None:
    trunk: object = Transformer(8, 2, H, 12)
    assert isinstance(trunk, AttentiveTrunk)
    assert not isinstance(MeanAttentionTrunk(8, 2, 12), AttentiveTrunk)
    tokens = Tokens(torch.randn(B, 8, N), MASK, torch.arange(N).expand(B, 1, N))
    found = attention_statistics(trunk.attention(tokens)[1][0].detach(), MASK, "bidirectional", line(), MASK)
    assert all(0 < float(found[name].min()) <= float(found[name].max()) <= 1 for name in ("entropy", "agreement"))
