"""Mixed examples are the means that their targets say, and the generator alone decides."""

from typing import Any

import pytest
import torch
from scipy.stats import beta, kstest

from unifier.augmentation.mixup import Compose, Mixup, RandomChoice, draw_shares
from unifier.data.dataloader import Augmentation, Batch
from unifier.data.encoding import EncodedSplit
from unifier_tokenizers import NO_POSITION, InputError

B, F, N = 12, 5, 7


def batch(dtype: torch.dtype = torch.float32, target: torch.Tensor | None = None, lengths: Any = N) -> Batch:
    """B examples of random values; each one's label is its own place."""
    draw = torch.Generator().manual_seed(0)
    values = (torch.rand(B, F, N, generator=draw) * 255).to(dtype)
    mask = torch.arange(N) < torch.as_tensor(lengths).expand(B)[:, None]
    positions = torch.arange(N).expand(B, 1, N).masked_fill(~mask[:, None], NO_POSITION)
    places = torch.arange(B)
    return Batch(values * mask[:, None], positions, mask, places if target is None else target, places)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_values_are_mixed_as_targets_say(dtype: torch.dtype) -> None:
    one = batch(dtype)
    kept = one.values.clone()
    mixed = Mixup(B, 1.0)(one, seeded())
    assert torch.equal(one.values, kept)
    assert (mixed.values.dtype, mixed.target.shape) == (dtype, (B, B, 1))
    torch.testing.assert_close(mixed.target.sum(1), torch.ones(B, 1))
    expected = torch.einsum("bc,cfn->bfn", mixed.target[..., 0], one.values.float())
    torch.testing.assert_close(mixed.values.float(), expected, atol=1e-3 if dtype == torch.float32 else 0.501, rtol=0)
    assert (mixed.target > 0).sum(1).max() == 2
    assert len(mixed.target.amax(1).unique()) > B // 2  # each example has a share of its own


def test_examples_at_unlike_positions_are_not_mixed() -> None:
    lengths = torch.arange(B) % 3 + 3
    mixed = Mixup(B, 1.0)(batch(lengths=lengths), seeded())
    own, other = (mixed.target[..., 0] > 0).nonzero().T
    assert (own != other).sum() > B // 2, "most examples have a partner among their like"
    assert (lengths[own] == lengths[other]).all()
    lengths = torch.arange(B) % N + 1
    alone = batch(lengths=lengths[:N].repeat(2)[:B])
    first = Batch(*(part[:N] for part in alone))
    assert torch.equal(Mixup(B, 1.0)(first, seeded()).values, first.values)


def test_where_a_shorter_one_is_repeated_all_are_mixed_and_equal_ones_as_ever() -> None:
    lengths = torch.arange(B) % N + 1
    one = batch(lengths=lengths)
    mixed = Mixup(B, 1.0, repeat=True)(one, seeded())
    labels = mixed.target[..., 0]
    own = labels.diagonal()
    assert ((labels > 0).sum(1) == 2).sum() >= B - 3, "nearly every example has a partner"
    assert (labels.sum(1) - 1).abs().max() < 1e-6
    looped = [one.values[b, :, torch.arange(N) % lengths[b]] for b in range(B)]
    for b in range(B):
        heard = sum(labels[b, other] * looped[other] for other in range(B) if other != b)
        expected = (own[b] * one.values[b] + heard) * one.mask[b]
        torch.testing.assert_close(mixed.values[b], expected, atol=1e-3, rtol=0)
    assert torch.equal(mixed.mask, one.mask)
    assert torch.equal(mixed.positions, one.positions)
    for equal, same in zip(
        Mixup(B, 1.0, repeat=True)(batch(), seeded()), Mixup(B, 1.0)(batch(), seeded()), strict=True
    ):
        assert torch.equal(equal, same)


def test_tags_and_mixed_labels_are_mixed_again() -> None:
    tags = torch.eye(B) + torch.eye(B).roll(1, 0)
    mixed = Mixup(B, 1.0)(batch(target=tags), seeded())
    labels = Mixup(B, 1.0)(batch(), seeded()).target[..., 0]
    torch.testing.assert_close(mixed.target, labels @ tags)
    twice = Compose(Mixup(B, 1.0), Mixup(B, 1.0))(batch(), seeded())
    expected = torch.einsum("bc,cfn->bfn", twice.target[..., 0], batch().values)
    torch.testing.assert_close(twice.values, expected, atol=1e-3, rtol=0)


def test_a_text_cannot_be_mixed() -> None:
    with pytest.raises(InputError, match=r"only labels and tags can be mixed, and a target has the shape \(4,\)"):
        Mixup(B, 1.0)(batch(target=torch.zeros(B, 4).long()), seeded())


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_shares_have_their_distribution(alpha: float) -> None:
    many = Batch(*(part.repeat(200, *[1] * (part.ndim - 1)) for part in batch()))
    assert kstest(draw_shares(many, alpha, seeded()).double().numpy(), beta(alpha, alpha).cdf).pvalue > 0.01


def test_the_generator_decides() -> None:
    one, same, other = (Mixup(B, 1.0)(batch(), seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(one.values, same.values)
    assert torch.equal(one.target, same.target)
    assert not torch.equal(one.values, other.values)


class Add(Augmentation):
    def __init__(self, number: int, limit: int | None = None, growth: float = 1.0) -> None:
        self.number, self.limit, self.growth = number, limit, growth

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch._replace(example_indices=batch.example_indices + self.number)

    def max_length(self) -> int | None:
        return self.limit

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        return self.growth, 2 * self.growth


def test_one_of_several_changes_a_batch_each_as_often() -> None:
    draw = seeded()
    added = [int(RandomChoice(Add(0), Add(1), Add(2))(batch(), draw).example_indices[0]) for _ in range(600)]
    assert all(150 < added.count(what) < 250 for what in range(3))
    assert int(Compose(Add(1), Add(2))(batch(), draw).example_indices[0]) == 3


@pytest.mark.parametrize(
    ("limits", "composed", "chosen"), [((5, 3), 3, 5), ((None, 3), 3, None), ((None, None), None, None)]
)
def test_max_length_several(limits: tuple[int | None, ...], composed: int | None, chosen: int | None) -> None:
    augmentations = [Add(0, limit) for limit in limits]
    assert Compose(*augmentations).max_length() == composed
    assert RandomChoice(*augmentations).max_length() == chosen


def test_expected_growth_several() -> None:
    augmentations, split = [Add(0, growth=2.0), Add(0, growth=3.0)], EncodedSplit()
    assert Compose(*augmentations).expected_growth(split) == (6.0, 24.0)
    assert RandomChoice(*augmentations).expected_growth(split) == (2.5, 5.0)


def test_what_has_no_mean_is_refused() -> None:
    ids, packed = batch(), batch(torch.int32)
    ids = ids._replace(values=ids.example_indices[:, None].expand(B, N))
    for one in (ids, packed):
        with pytest.raises(InputError, match="only pixels and frames have a mean"):
            Mixup(B, 1.0)(one, seeded())
    with pytest.raises(InputError, match="only labels and tags can be mixed"):
        Mixup(B, 1.0)(batch(target=torch.rand(B)), seeded())


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf")])
def test_an_alpha_that_is_none(alpha: float) -> None:
    with pytest.raises(InputError, match=f"mixup={alpha}: a number above 0"):
        Mixup(B, alpha)
