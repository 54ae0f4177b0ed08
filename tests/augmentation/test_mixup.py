"""Mixed values and targets agree, and the generator alone decides."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import beta, kstest

from unifier.augmentation.mixup import Compose, Mixup, RandomChoice, draw_weights
from unifier.data.dataloader import Augmentation, Batch
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Task
from unifier_tokenizers import NO_POSITION, InputError

B, F, N = 12, 5, 7

Seeded = Callable[..., torch.Generator]


def make_batch(dtype: torch.dtype = torch.float32, target: torch.Tensor | None = None, lengths: Any = N) -> Batch:
    """Return B examples of random values, labeled with their index."""
    values = (torch.rand(B, F, N, generator=torch.Generator().manual_seed(0)) * 255).to(dtype)
    mask = torch.arange(N) < torch.as_tensor(lengths).expand(B)[:, None]
    positions = torch.arange(N).expand(B, 1, N).masked_fill(~mask[:, None], NO_POSITION)
    indices = torch.arange(B)
    return Batch(values * mask[:, None], positions, mask, indices if target is None else target, indices)


class Add(Augmentation):
    """Adds a number to the example indices."""

    def __init__(self, number: int, limit: int | None = None, growth: float = 1.0) -> None:
        self.number, self.limit, self.growth = number, limit, growth

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch._replace(example_indices=batch.example_indices + self.number)

    def max_length(self) -> int | None:
        return self.limit

    def expected_growth(self, split: EncodedSplit) -> tuple[float, float]:
        return self.growth, 2 * self.growth


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_mixup_values_agree_with_targets(dtype: torch.dtype, seeded: Seeded) -> None:
    batch = make_batch(dtype)
    before = batch.values.clone()
    mixed = Mixup(B, 1.0)(batch, seeded())
    assert torch.equal(batch.values, before)
    assert (mixed.values.dtype, mixed.target.shape) == (dtype, (B, B, 1))
    torch.testing.assert_close(mixed.target.sum(1), torch.ones(B, 1))
    expected = torch.einsum("bc,cfn->bfn", mixed.target[..., 0], batch.values.float())
    torch.testing.assert_close(mixed.values.float(), expected, atol=1e-3 if dtype == torch.float32 else 0.501, rtol=0)
    assert (mixed.target > 0).sum(1).max() == 2
    assert len(mixed.target.amax(1).unique()) > B // 2, "each example has its own weight"


def test_mixup_pairs_equal_positions(seeded: Seeded) -> None:
    lengths = torch.arange(B) % 3 + 3
    mixed = Mixup(B, 1.0)(make_batch(lengths=lengths), seeded())
    example, partner = (mixed.target[..., 0] > 0).nonzero().T
    assert (example != partner).sum() > B // 2
    assert (lengths[example] == lengths[partner]).all()
    alone = Batch(*(part[:N] for part in make_batch(lengths=torch.arange(B) % N + 1)))
    assert torch.equal(Mixup(B, 1.0)(alone, seeded()).values, alone.values)


def test_mixup_repeat_mixes_unequal_lengths(seeded: Seeded) -> None:
    lengths = torch.arange(B) % N + 1
    batch = make_batch(lengths=lengths)
    mixed = Mixup(B, 1.0, repeat=True)(batch, seeded())
    weights = mixed.target[..., 0]
    assert ((weights > 0).sum(1) == 2).sum() >= B - 3, "nearly every example has a partner"
    torch.testing.assert_close(weights.sum(1), torch.ones(B))
    looped = [batch.values[b, :, torch.arange(N) % lengths[b]] for b in range(B)]
    for b in range(B):
        partners = sum(weights[b, other] * looped[other] for other in range(B) if other != b)
        expected = (weights[b, b] * batch.values[b] + partners) * batch.mask[b]
        torch.testing.assert_close(mixed.values[b], expected, atol=1e-3, rtol=0)
    assert torch.equal(mixed.mask, batch.mask)
    assert torch.equal(mixed.positions, batch.positions)
    equal_lengths = (Mixup(B, 1.0, repeat=repeat)(make_batch(), seeded()) for repeat in (True, False))
    assert all(map(torch.equal, *equal_lengths))


def test_mixup_mixes_tags_and_mixed_labels(seeded: Seeded) -> None:
    tags = torch.eye(B) + torch.eye(B).roll(1, 0)
    mixed = Mixup(B, 1.0)(make_batch(target=tags), seeded())
    labels = Mixup(B, 1.0)(make_batch(), seeded()).target[..., 0]
    torch.testing.assert_close(mixed.target, labels @ tags)
    twice = Compose(Mixup(B, 1.0), Mixup(B, 1.0))(make_batch(), seeded())
    expected = torch.einsum("bc,cfn->bfn", twice.target[..., 0], make_batch().values)
    torch.testing.assert_close(twice.values, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_draw_weights_follow_beta(alpha: float, seeded: Seeded) -> None:
    many = Batch(*(part.repeat(200, *[1] * (part.ndim - 1)) for part in make_batch()))
    assert kstest(draw_weights(many, alpha, seeded()).double().numpy(), beta(alpha, alpha).cdf).pvalue > 0.01


def test_mixup_generator_decides(seeded: Seeded) -> None:
    first, again, other = (Mixup(B, 1.0)(make_batch(), seeded(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.values, again.values)
    assert torch.equal(first.target, again.target)
    assert not torch.equal(first.values, other.values)


def test_mixup_refuses_text_targets_and_ids(seeded: Seeded) -> None:
    for target in (torch.zeros(B, 4).long(), torch.rand(B)):
        with pytest.raises(InputError, match="labels and tags"):
            Mixup(B, 1.0)(make_batch(target=target), seeded())
    ids = make_batch()._replace(values=torch.arange(B)[:, None].expand(B, N))
    for batch in (ids, make_batch(torch.int32)):
        with pytest.raises(InputError, match=r"mixup=1\.0.*torch\.int"):
            Mixup(B, 1.0)(batch, seeded())


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf")])
def test_mixup_refuses_alpha(alpha: float) -> None:
    with pytest.raises(InputError, match=f"mixup={alpha}"):
        Mixup(B, alpha)


def test_random_choice_is_uniform_compose_in_order(seeded: Seeded) -> None:
    generator, choice = seeded(), RandomChoice(Add(0), Add(1), Add(2))
    added = [int(choice(make_batch(), generator).example_indices[0]) for _ in range(600)]
    assert all(150 < added.count(number) < 250 for number in range(3))
    assert int(Compose(Add(1), Add(2))(make_batch(), generator).example_indices[0]) == 3


@pytest.mark.parametrize(
    ("limits", "composed", "chosen"), [((5, 3), 3, 5), ((None, 3), 3, None), ((None, None), None, None)]
)
def test_max_length_of_several(limits: tuple[int | None, ...], composed: int | None, chosen: int | None) -> None:
    augmentations = [Add(0, limit) for limit in limits]
    assert Compose(*augmentations).max_length() == composed
    assert RandomChoice(*augmentations).max_length() == chosen


def test_expected_growth_of_several() -> None:
    augmentations, split = [Add(0, growth=2.0), Add(0, growth=3.0)], EncodedSplit()
    assert Compose(*augmentations).expected_growth(split) == (6.0, 24.0)
    assert RandomChoice(*augmentations).expected_growth(split) == (2.5, 5.0)


def test_task_refuses_function_as_augmentation() -> None:
    def same(batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    with pytest.raises(InputError, match=r"augmentation=.*same.*Augmentation"):
        Task(*[None] * 3, augmentation=same)  # pyright: ignore
