"""Batches contain every example with little padding, depend on the seed only, and share the budget among tasks."""

import math
import pickle
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from types import SimpleNamespace
from typing import Any, final, get_args

import numpy as np
import pytest
import torch

from unifier.data import dataloader
from unifier.data.dataloader import Augmentation, Batch, BudgetUnit, CostFn, TrainDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import Units

MAX_TOKENS = 512


def draw_lengths(count: int, mean: float, seed: int = 0) -> list[int]:
    """Draw lengths with the log-normal distribution of sentences (Limpert et al. 2001)."""
    drawn = torch.empty(count).log_normal_(0, 0.5, generator=torch.Generator().manual_seed(seed))
    return (drawn * mean).round().clamp(1, 300).int().tolist()


def draw_pairs(count: int = 3000) -> dataloader.Lengths:
    """Draw lengths of sentences and of their translations, which are correlated."""
    source = draw_lengths(count, 14)
    pairs = [(n, max(1, n + extra % 5 - 2)) for n, extra in zip(source, draw_lengths(count, 9, 1), strict=True)]
    return np.array(pairs, np.int32)


def draw_batches(seed: int = 0) -> list[list[int]]:
    """Draw the batches of one epoch of `draw_pairs`."""
    generator = torch.Generator().manual_seed(seed)
    return [batch.tolist() for batch in dataloader.epoch_batches(draw_pairs(), MAX_TOKENS, generator)]


def split_of(lengths: list[int], targets: list[int] | None = None) -> EncodedSplit:
    """Return a split whose example k has the value k in every token.

    Its target is k as a scalar, or repeated to the lengths in `targets`.
    """
    units = [Units(torch.full((n,), k), torch.arange(n)[None]) for k, n in enumerate(lengths)]
    if targets is None:
        return EncodedSplit(units, [torch.tensor(k) for k in range(len(lengths))], range(len(lengths)))
    return EncodedSplit(units, [torch.full((n,), k) for k, n in enumerate(targets)], range(len(lengths)))


def test_batch_has_examples_and_mask() -> None:
    batch = dataloader.collate(split_of([3, 1, 5], [2, 4, 1]), [2, 0])
    assert batch.example_indices.tolist() == [2, 0]
    assert batch.values.tolist() == [[2, 2, 2, 2, 2], [0, 0, 0, 0, 0]]
    assert (batch.mask.tolist(), batch.positions.shape) == ([[True] * 5, [True] * 3 + [False] * 2], (2, 1, 5))
    assert batch.target.tolist() == [[2, IGNORE_INDEX], [0, 0]]
    assert [part.tolist() for part in batch.lengths()] == [[5, 3], [1, 2]]
    assert [part.tolist() for part in dataloader.collate(split_of([3, 1, 5]), [1, 2]).lengths()] == [[1, 5], [1, 1]]
    wide = EncodedSplit(
        [Units(torch.zeros(2), torch.arange(2)[None])] * 2, [torch.ones(3, 2), torch.ones(3, 4)], [0, 1]
    )
    target = dataloader.collate(wide, [0, 1]).target
    assert target.tolist() == [[[1, 1, IGNORE_INDEX, IGNORE_INDEX]] * 3, [[1] * 4] * 3]


def test_batch_without_split_is_numbered() -> None:
    collated = dataloader.collate(split_of([3, 1, 5]), [2, 0])
    batch = Batch(collated.values, collated.positions, collated.mask, collated.target)
    moved, changed = batch.to(torch.device("cpu")), batch._replace(values=collated.values + 1)
    for copy in (batch, moved, changed, pickle.loads(pickle.dumps(batch))):
        assert isinstance(copy, Batch)
        assert copy.example_indices.tolist() == [0, 1]
    assert Batch(*(part.to("meta") for part in batch[:4])).example_indices.device.type == "meta"


@pytest.mark.parametrize("max_tokens", [1, 20, MAX_TOKENS, 10**6])
def test_batches_are_full(max_tokens: int) -> None:
    lengths = draw_pairs(500)
    order = torch.randperm(len(lengths)).numpy()
    batches = [batch.tolist() for batch in dataloader.batch_by_tokens(order, lengths, max_tokens)]
    assert [row for batch in batches for row in batch] == order.tolist()
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        assert len(batch) * lengths[batch].max() <= max_tokens or len(batch) == 1
        if following:  # One more example would exceed the bound.
            assert (len(batch) + 1) * lengths[[*batch, following[0]]].max() > max_tokens


def test_epoch_has_every_example_once_with_little_padding() -> None:
    lengths, batches = draw_pairs(), draw_batches()
    assert batches == draw_batches() != draw_batches(seed=1)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    padded = sum(len(batch) * lengths[batch].max(0) for batch in batches)
    assert (padded / lengths.sum(0) < 1.1).all()  # This holds for N and for L.
    longest = [float(lengths[batch, 0].max()) for batch in batches]
    assert abs(np.corrcoef(range(len(longest)), longest)[0, 1]) < 0.2


def test_every_epoch_has_another_order() -> None:
    lengths = draw_pairs(40)
    size = len([*dataloader.epoch_batches(lengths, 100, torch.Generator().manual_seed(3))])
    rows = [int(row) for batch in islice(dataloader.endless_epochs(lengths, 100, seed=3), 4 * size) for row in batch]
    assert set(Counter(rows[: 3 * len(lengths)]).values()) == {3}
    assert rows[: len(lengths)] != rows[len(lengths) : 2 * len(lengths)]


def loader(
    splits: dict[str, EncodedSplit], seed: int = 0, temperature: float = math.inf, **budget: float
) -> TrainDataLoader:
    costs: dict[str, CostFn] = {task: lambda n, _: 2.0 * np.asarray(n) for task in splits}
    limits: dict[BudgetUnit, float] = {unit: budget[unit] for unit in get_args(BudgetUnit) if unit in budget}
    return TrainDataLoader(splits, max_tokens=100, seed=seed, budget=limits, costs=costs, temperature=temperature)


def two_tasks() -> dict[str, EncodedSplit]:
    return {"a": split_of(draw_lengths(30, 10)), "b": split_of(draw_lengths(50, 30))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "steps"),
    [({"steps": 1}, 1), ({"steps": 500}, 500), ({"steps": 3, "tokens": 1e6}, 3), ({"steps": 1e6, "tokens": 1}, 1)],
)
def test_first_budget_ends_the_run(budget: dict[str, Any], steps: int) -> None:
    batches = loader({"a": split_of(draw_lengths(30, 10))}, **budget)
    assert len(batches) == len(list(batches)) == steps


def test_budget_in_tokens_ends_after_one_batch() -> None:
    batches = loader(two_tasks(), tokens=5000)
    tokens = [int(batch.mask.sum()) for _, batch in batches]
    assert len(batches) == len(tokens)
    assert sum(tokens[:-1]) < 5000 <= sum(tokens)


def test_budget_in_flops_or_seconds_is_shared_by_flops() -> None:
    used: Counter[str] = Counter()
    for task, batch in loader(two_tasks(), flops=9000):
        used[task] += 2 * int(batch.mask.sum())
    assert 9000 <= used.total() < 9000 + 2 * 300
    assert abs(used["a"] - used["b"]) <= 2 * 300  # The bound is one batch of the longest example.
    splits = {"cheap": split_of([10] * 20), "dear": split_of([10] * 20)}
    costs: dict[str, CostFn] = {"cheap": lambda n, _: 1.0 * np.asarray(n), "dear": lambda n, _: 3.0 * np.asarray(n)}
    batches = TrainDataLoader(splits, max_tokens=100, seed=0, budget={}, costs=costs)
    assert Counter(task for task, _ in islice(batches, 40)) == {"cheap": 30, "dear": 10}


@pytest.mark.parametrize("epochs", [1, 2.5, 3])
def test_budget_in_epochs_repeats_each_example(epochs: float) -> None:
    batches = loader({"a": split_of([3, 4, 5, 6, 30, 40, 50])}, epochs=epochs)
    counts = Counter(index for _, batch in batches for index in batch.example_indices.tolist())
    assert min(counts.values()) >= math.floor(epochs)
    assert max(counts.values()) <= math.ceil(epochs)
    assert counts.total() >= 7 * epochs


def test_budget_in_steps_or_epochs_is_shared_by_that_unit() -> None:
    batches = loader({"long": split_of(draw_lengths(200, 60)), "short": split_of([1] * 17)}, steps=20)
    assert Counter(task for task, _ in batches) == {"long": 10, "short": 10}
    batches = loader({"long": split_of(draw_lengths(60, 30)), "short": split_of([1] * 250)}, epochs=4)
    counts = Counter((task, index) for task, batch in batches for index in batch.example_indices.tolist())
    assert set(counts.values()) == {2}


@pytest.mark.slow
def test_loader_without_budget_has_no_end() -> None:
    batches = loader({"a": split_of(draw_lengths(30, 10))})
    assert len(list(islice(batches, 500))) == 500
    with pytest.raises(TypeError, match="no length"):
        len(batches)


def test_padding_is_counted() -> None:
    splits = {"a": split_of([1, 2, 3], targets=[4, 1, 1])}
    batches = TrainDataLoader(splits, max_tokens=12, seed=0, budget={"epochs": 1})
    assert (len(list(batches)), (batches.num_tokens, batches.num_padded_tokens)) == (1, (6 + 6, 9 + 12))


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "ratio"), [(math.inf, 1.0), (1.0, 9.0), (2.0, 3.0)])
def test_temperature_sets_the_shares(temperature: float, ratio: float) -> None:
    splits = {"large": split_of(draw_lengths(900, 10)), "small": split_of(draw_lengths(100, 10, seed=1))}
    used: Counter[str] = Counter()
    for task, batch in loader(splits, temperature=temperature, tokens=60_000):
        used[task] += int(batch.mask.sum())
    assert used["large"] / used["small"] == pytest.approx(ratio, rel=0.05)
    assert Counter(task for task, _ in loader(splits, temperature=1e-4, steps=50)) == {"large": 49, "small": 1}


@pytest.mark.slow
def test_shares_are_equal_for_different_lengths() -> None:
    splits = {"long": draw_lengths(200, 60), "short": [1] * 17, "other": draw_lengths(90, 8)}
    used: Counter[str] = Counter()
    for task, batch in loader({task: split_of(lengths) for task, lengths in splits.items()}, tokens=30_000):
        used[task] += int(batch.mask.sum())
        for row, index in enumerate(batch.example_indices.tolist()):
            assert (batch.values[row][batch.mask[row]] == index).all()
    # The bound is one batch of the longest example.
    assert max(used.values()) - min(used[task] for task in splits) <= 300


def indices_of(batches: TrainDataLoader) -> list[tuple[str, list[int]]]:
    return [(task, batch.example_indices.tolist()) for task, batch in batches]


def test_resumed_loader_continues_the_run() -> None:
    splits = two_tasks()
    expected = indices_of(loader(splits, steps=40))
    assert expected == indices_of(loader(splits, steps=40))
    assert expected != indices_of(loader(splits, steps=40, seed=1))
    assert expected[:25] == indices_of(loader(splits, steps=25))
    for done in (0, 1, 17, 40):
        resumed = loader(splits, steps=40)
        resumed.batches_done = done
        assert indices_of(resumed) == expected[done:]
        assert len(resumed) == 40  # The learning rate schedule needs the length of the complete run.


def test_evaluation_has_every_example_once() -> None:
    splits = {"a": split_of(draw_lengths(77, 10)), "b": split_of([*draw_lengths(20, 30), 1000])}
    evaluation = dataloader.EvalDataLoader(splits, max_tokens=100)
    indices: dict[str, list[int]] = {"a": [], "b": []}
    for task, batch in evaluation:
        indices[task] += batch.example_indices.tolist()
        assert batch.mask.numel() <= 100 or len(batch.mask) == 1
    assert {task: sorted(rows) for task, rows in indices.items()} == {"a": list(range(77)), "b": list(range(21))}
    assert len(evaluation) == len(list(evaluation))
    widths = [batch.mask.shape[1] for task, batch in evaluation if task == "b"]
    assert widths == sorted(widths, reverse=True)  # The batch that needs most memory comes first.


@final
class Noise(Augmentation):
    """Replace all values by random numbers."""

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch._replace(values=torch.rand(batch.values.shape, generator=generator))


def test_augmentation_depends_on_seed_and_step() -> None:
    def draw(done: int = 0, seed: int = 0) -> list[torch.Tensor]:
        splits = {"a": split_of([3, 4, 5]), "b": split_of([2, 2, 2])}
        batches = TrainDataLoader(splits, max_tokens=6, seed=seed, budget={"steps": 12}, augment={"a": Noise()})
        batches.batches_done = done
        return [batch.values for task, batch in batches if task == "a"]

    values = draw()
    assert all(torch.equal(one, other) for one, other in zip(values, draw(), strict=True))
    resumed = draw(done=5)
    assert all(torch.equal(one, other) for one, other in zip(values[-len(resumed) :], resumed, strict=True))
    assert len({tuple(one.flatten().tolist()) for one in values}) == len(values)
    assert not torch.equal(values[0].flatten()[:2], draw(seed=1)[0].flatten()[:2])


def test_prefetch_computes_the_next_item() -> None:
    started = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for k, event in enumerate(started):
            event.set()
            yield k

    for k in dataloader.prefetch(items()):
        assert started[min(k + 1, 2)].wait(timeout=60)


def test_wait_time_excludes_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock is read before and after each wait: 3 s for the first batch, 2 s for the second.
    clock: Any = iter([0.0, 3.0, 10.0, 12.0, 20.0])
    monkeypatch.setattr(dataloader, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    batches = loader({"a": split_of([3, 4, 5])}, steps=2)
    assert (len(list(batches)), batches.wait_seconds) == (2, 5)


@final
class Failing(Augmentation):
    """Raise an error with the number of threads."""

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        raise ValueError(f"made with {torch.get_num_threads()} thread")


def test_error_in_prefetched_batch_is_raised() -> None:
    threads = torch.get_num_threads()
    splits = {"a": split_of([1])}
    batches = TrainDataLoader(splits, max_tokens=6, seed=0, budget={"steps": 5}, augment={"a": Failing()})
    with pytest.raises(ValueError, match="made with 1 thread"):
        next(iter(batches))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("grad_accumulation", [1, 4, 7])
def test_batches_fill_every_optimizer_step(grad_accumulation: int) -> None:
    splits: Mapping[str, EncodedSplit] = {"a": split_of(draw_lengths(200, 14))}
    options: Any = {"max_tokens": 100, "seed": 0, "budget": {"tokens": 1000}}
    single, batches = (TrainDataLoader(splits, grad_accumulation=k, **options) for k in (1, grad_accumulation))
    assert len(batches) == math.ceil(len(single) / grad_accumulation) * grad_accumulation
    for (_, one), (_, other) in zip(single, batches, strict=False):
        assert torch.equal(one.example_indices, other.example_indices)
