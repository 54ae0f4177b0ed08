"""Batches: nothing is lost, little is padded, the seed decides, and tasks share the budget."""

import math
import pickle
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unifier.data.dataloader import (
    Augmentation,
    Batch,
    BudgetUnit,
    CostFn,
    EvalDataLoader,
    Lengths,
    TrainDataLoader,
    batch_by_tokens,
    collate,
    endless_epochs,
    epoch_batches,
)
from unifier.data.encoding import EncodedSplit
from unifier.heads.head import IGNORE_INDEX
from unifier_tokenizers import Units

COLUMNS = 512


def lengths_of(count: int, mean: float, seed: int = 0) -> list[int]:
    """Lengths as sentences have them: log-normal (Limpert et al. 2001)."""
    drawn = torch.empty(count).log_normal_(0, 0.5, generator=torch.Generator().manual_seed(seed))
    return (drawn * mean).round().clamp(1, 300).int().tolist()


def split_of(lengths: list[int], targets: list[int] | None = None) -> EncodedSplit:
    """Example k holds k in every column, and its target k too, as often as `targets` says or as a scalar."""
    units = [Units(torch.full((n,), k), torch.arange(n)[None]) for k, n in enumerate(lengths)]
    if targets is None:
        return EncodedSplit(units, [torch.tensor(k) for k in range(len(lengths))], range(len(lengths)))
    return EncodedSplit(units, [torch.full((n,), k) for k, n in enumerate(targets)], range(len(lengths)))


def both(count: int = 3000) -> Lengths:
    """Lengths of sentences and of their translations, which go together."""
    source = lengths_of(count, 14)
    pairs = [(n, max(1, n + extra % 5 - 2)) for n, extra in zip(source, lengths_of(count, 9, 1), strict=True)]
    return np.array(pairs, np.int32)


def told(batches: Iterable[NDArray[np.int64]]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def test_a_batch_holds_each_example_and_marks_its_padding() -> None:
    split = split_of([3, 1, 5], [2, 4, 1])
    batch = collate(split, [2, 0])
    assert batch.example_indices.tolist() == [2, 0]
    assert batch.values.tolist() == [[2, 2, 2, 2, 2], [0, 0, 0, 0, 0]]
    assert batch.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert batch.positions.shape == (2, 1, 5)
    assert batch.target.tolist() == [[2, IGNORE_INDEX], [0, 0]]
    assert [part.tolist() for part in batch.lengths()] == [[5, 3], [1, 2]]
    assert [part.tolist() for part in collate(split_of([3, 1, 5]), [1, 2]).lengths()] == [[1, 5], [1, 1]]


def test_a_batch_of_no_split_has_its_own_places_whatever_becomes_of_it() -> None:
    whole = collate(split_of([3, 1, 5]), [2, 0])
    batch = Batch(whole.values, whole.positions, whole.mask, whole.target)
    assert batch.example_indices.tolist() == [0, 1]
    sent, changed = batch.to(torch.device("cpu")), batch._replace(values=whole.values + 1)
    for again in (sent, changed, pickle.loads(pickle.dumps(batch))):
        assert isinstance(again, Batch)
        assert again.example_indices.tolist() == [0, 1]
    meta = Batch(*(part.to("meta") for part in batch[:4]))
    assert meta.example_indices.device.type == "meta"


def test_targets_of_two_axes_are_padded_along_their_last() -> None:
    units = [Units(torch.zeros(2), torch.arange(2)[None])] * 2
    split = EncodedSplit(units, [torch.ones(3, 2), torch.ones(3, 4)], [0, 1])
    target = collate(split, [0, 1]).target
    assert target.shape == (2, 3, 4)
    assert (target[0, :, 2:] == IGNORE_INDEX).all()
    assert (target[0, :, :2] == 1).all()
    assert (target[1] == 1).all()


@pytest.mark.parametrize("columns", [1, 20, COLUMNS, 10**6])
def test_batches_are_full_and_hold_no_more_than_they_may(columns: int) -> None:
    lengths = both(500)
    order = torch.randperm(len(lengths)).numpy()
    batches = [batch.tolist() for batch in batch_by_tokens(order, lengths, columns)]
    assert [row for batch in batches for row in batch] == order.tolist()
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        area = len(batch) * max(max(lengths[row]) for row in batch)
        assert area <= columns or len(batch) == 1
        if following:  # one more would not have fitted
            assert (len(batch) + 1) * max(max(lengths[row]) for row in [*batch, following[0]]) > columns


def test_an_epoch_holds_every_example_once_in_an_order_the_seed_decides() -> None:
    lengths = both()
    one, again, other = (
        told(epoch_batches(lengths, COLUMNS, torch.Generator().manual_seed(seed))) for seed in (0, 0, 1)
    )
    assert one == again != other
    assert sorted(row for batch in one for row in batch) == list(range(len(lengths)))


def test_little_is_padded() -> None:
    lengths = both()
    for side in (0, 1):  # columns, and targets beside them
        batches = told(epoch_batches(lengths, COLUMNS, torch.Generator().manual_seed(0)))
        padded = sum(len(batch) * max(lengths[row][side] for row in batch) for batch in batches)
        assert padded / sum(pair[side] for pair in lengths) < 1.1


def test_batches_of_an_epoch_come_in_no_order_of_length() -> None:
    lengths = both()
    batches = told(epoch_batches(lengths, COLUMNS, torch.Generator().manual_seed(0)))
    longest = torch.tensor([float(max(lengths[row][0] for row in batch)) for batch in batches])
    rank = torch.stack([torch.arange(len(longest)).float(), longest])
    assert torch.corrcoef(rank)[0, 1].abs() < 0.2


def test_epochs_follow_each_other_each_in_another_order() -> None:
    lengths = both(40)
    size = len(told(epoch_batches(lengths, 100, torch.Generator().manual_seed(3))))
    rows = [int(row) for batch in islice(endless_epochs(lengths, 100, seed=3), 4 * size) for row in batch]
    seen = Counter(rows[: 3 * len(lengths)])
    assert set(seen.values()) == {3}
    assert rows[: len(lengths)] != rows[len(lengths) : 2 * len(lengths)]


def batches(
    splits: dict[str, EncodedSplit], seed: int = 0, temperature: float = math.inf, **budget: float
) -> TrainDataLoader:
    costs: dict[str, CostFn] = {task: lambda n, _: 2.0 * np.asarray(n) for task in splits}
    asked: dict[BudgetUnit, float] = {unit: budget[unit] for unit in get_args(BudgetUnit) if unit in budget}
    return TrainDataLoader(splits, max_tokens=100, seed=seed, budget=asked, costs=costs, temperature=temperature)


@pytest.mark.parametrize("steps", [1, 7, 500])
def test_a_budget_in_steps(steps: int) -> None:
    run = batches({"a": split_of(lengths_of(30, 10))}, steps=steps)
    assert len(run) == len(list(run)) == steps


def test_a_budget_in_tokens_is_reached_and_passed_by_less_than_a_batch() -> None:
    run = batches({"a": split_of(lengths_of(30, 10)), "b": split_of(lengths_of(50, 30))}, tokens=5000)
    read = [int(batch.mask.sum()) for _, batch in run]
    assert len(run) == len(read)
    assert sum(read[:-1]) < 5000 <= sum(read)


def test_a_budget_in_operations_is_reached_and_shared_by_them() -> None:
    run = batches({"a": split_of(lengths_of(30, 10)), "b": split_of(lengths_of(50, 30))}, flops=9000)
    spent: Counter[str] = Counter()
    for task, batch in run:
        spent[task] += 2 * int(batch.mask.sum())
    assert 9000 <= spent.total() < 9000 + 2 * 300
    assert abs(spent["a"] - spent["b"]) <= 2 * 300  # one batch, of the longest example here


def test_a_budget_in_seconds_which_has_no_plan_is_shared_by_operations() -> None:
    splits = {"cheap": split_of([10] * 20), "dear": split_of([10] * 20)}
    costs: dict[str, CostFn] = {"cheap": lambda n, _: 1.0 * np.asarray(n), "dear": lambda n, _: 3.0 * np.asarray(n)}
    run = TrainDataLoader(splits, max_tokens=100, seed=0, budget={}, costs=costs)
    assert Counter(task for task, _ in islice(run, 40)) == {"cheap": 30, "dear": 10}


def test_a_budget_in_steps_is_shared_by_steps() -> None:
    run = batches({"long": split_of(lengths_of(200, 60)), "short": split_of([1] * 17)}, steps=20)
    assert Counter(task for task, _ in run) == {"long": 10, "short": 10}


def test_padding_is_counted_in_columns_and_target_tokens() -> None:
    run = TrainDataLoader({"a": split_of([1, 2, 3], targets=[4, 1, 1])}, max_tokens=12, seed=0, budget={"epochs": 1})
    assert len(list(run)) == 1
    assert (run.num_tokens, run.num_padded_tokens) == (6 + 6, 9 + 12)


@pytest.mark.parametrize("epochs", [1, 2.5, 3])
def test_a_budget_in_epochs_reads_each_example_so_often(epochs: float) -> None:
    run = batches({"a": split_of([3, 4, 5, 6, 30, 40, 50])}, epochs=epochs)
    read = Counter(place for _, batch in run for place in batch.example_indices.tolist())
    assert min(read.values()) >= math.floor(epochs)
    assert max(read.values()) <= math.ceil(epochs)
    assert read.total() >= 7 * epochs


def test_a_budget_in_epochs_is_shared_by_epochs() -> None:
    run = batches({"long": split_of(lengths_of(60, 30)), "short": split_of([1] * 250)}, epochs=4)
    read = Counter((task, place) for task, batch in run for place in batch.example_indices.tolist())
    assert set(read.values()) == {2}


def test_without_a_budget_there_is_no_end() -> None:
    run = batches({"a": split_of(lengths_of(30, 10))})
    assert len(list(islice(run, 500))) == 500
    with pytest.raises(TypeError, match="no length"):
        len(run)


@pytest.mark.parametrize(("temperature", "share"), [(math.inf, 1.0), (1.0, 9.0), (2.0, 3.0)])
def test_a_temperature_leans_the_shares_towards_large_sets(temperature: float, share: float) -> None:
    splits = {"large": split_of(lengths_of(900, 10)), "small": split_of(lengths_of(100, 10, seed=1))}
    had: Counter[str] = Counter()
    for task, batch in batches(splits, temperature=temperature, tokens=60_000):
        had[task] += int(batch.mask.sum())
    assert had["large"] / had["small"] == pytest.approx(share, rel=0.05)


def test_a_temperature_near_0_leaves_all_but_the_largest_set_their_first_batch() -> None:
    splits = {"large": split_of(lengths_of(900, 10)), "small": split_of(lengths_of(100, 10, seed=1))}
    assert Counter(task for task, _ in batches(splits, temperature=1e-4, steps=50)) == {"large": 49, "small": 1}


def test_the_budget_reached_first_ends_it() -> None:
    splits = {"a": split_of(lengths_of(30, 10))}
    assert len(batches(splits, steps=3, tokens=10**6)) == 3
    assert len(batches(splits, steps=10**6, tokens=1)) == 1


def test_tasks_get_equal_shares_however_unlike_their_examples() -> None:
    splits = {"long": split_of(lengths_of(200, 60)), "short": split_of([1] * 17), "other": split_of(lengths_of(90, 8))}
    had: Counter[str] = Counter()
    for task, batch in batches(splits, tokens=30_000):
        had[task] += int(batch.mask.sum())
        assert all(
            (batch.values[b][batch.mask[b]] == place).all() for b, place in enumerate(batch.example_indices.tolist())
        )
    assert max(had.values()) - min(had[task] for task in splits) <= 300  # one batch, of the longest example here


def test_the_seed_decides_the_run_and_a_resumed_one_goes_on_as_it_would_have() -> None:
    splits = {"a": split_of(lengths_of(30, 10)), "b": split_of(lengths_of(20, 30))}

    def told(run: TrainDataLoader) -> list[tuple[str, list[int]]]:
        return [(task, batch.example_indices.tolist()) for task, batch in run]

    whole = told(batches(splits, steps=40))
    assert whole == told(batches(splits, steps=40))
    assert whole != told(batches(splits, steps=40, seed=1))
    assert whole[:25] == told(batches(splits, steps=25))
    for done in (0, 1, 17, 40):
        rest = batches(splits, steps=40)
        rest.batches_done = done
        assert told(rest) == whole[done:]
        assert len(rest) == 40  # of the whole run, which is what the learning rate's schedule goes by


def test_evaluation_covers_every_example_of_every_task_once() -> None:
    splits = {"a": split_of(lengths_of(77, 10)), "b": split_of([*lengths_of(20, 30), 1000])}
    evaluation = EvalDataLoader(splits, max_tokens=100)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    for task, batch in evaluation:
        seen[task] += batch.example_indices.tolist()
        assert batch.mask.numel() <= 100 or len(batch.mask) == 1
    assert {task: sorted(places) for task, places in seen.items()} == {"a": list(range(77)), "b": list(range(21))}
    assert len(evaluation) == len(list(evaluation))
    widths = [batch.mask.shape[1] for task, batch in evaluation if task == "b"]
    assert widths == sorted(widths, reverse=True)  # the batch that needs most memory comes first


def test_augmented_batches_depend_on_the_seed_and_the_step_alone() -> None:
    class Noise(Augmentation):
        def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
            return batch._replace(values=torch.rand(batch.values.shape, generator=generator))

    def drawn(done: int = 0, seed: int = 0) -> list[torch.Tensor]:
        splits = {"a": split_of([3, 4, 5]), "b": split_of([2, 2, 2])}
        batches = TrainDataLoader(splits, max_tokens=6, seed=seed, budget={"steps": 12}, augment={"a": Noise()})
        batches.batches_done = done
        return [batch.values for task, batch in batches if task == "a"]

    whole = drawn()
    assert all(torch.equal(one, same) for one, same in zip(whole, drawn(), strict=True))
    resumed = drawn(done=5)
    assert all(torch.equal(one, same) for one, same in zip(whole[-len(resumed) :], resumed, strict=True))
    assert len({tuple(one.flatten().tolist()) for one in whole}) == len(whole)
    assert not torch.equal(whole[0].flatten()[:2], drawn(seed=1)[0].flatten()[:2])


@pytest.mark.parametrize(("between", "least", "most"), [(0.0, 0.1, 0.3), (0.06, 0.02, 0.05)])
def test_training_waits_for_a_batch_no_longer_than_it_takes_beyond_the_step_before(
    between: float, least: float, most: float
) -> None:
    class Slow(Augmentation):
        def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
            time.sleep(0.02)
            return batch

    split = split_of([3, 4, 5])
    batches = TrainDataLoader({"a": split}, max_tokens=6, seed=0, budget={"steps": 5}, augment={"a": Slow()})
    for _ in batches:
        time.sleep(between)
    assert least <= batches.wait_seconds < most


def test_what_fails_in_a_batch_made_ahead_fails_where_its_turn_comes_and_takes_no_thread_from_torch() -> None:
    class Failing(Augmentation):
        def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
            raise ValueError(f"made with {torch.get_num_threads()} thread")

    threads = torch.get_num_threads()
    made = TrainDataLoader({"a": split_of([1])}, max_tokens=6, seed=0, budget={"steps": 5}, augment={"a": Failing()})
    with pytest.raises(ValueError, match="made with 1 thread"):
        next(iter(made))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("together", [1, 4, 7])
def test_batches_come_in_whole_steps(together: int) -> None:
    split = split_of(lengths_of(200, 14))
    given: Mapping[BudgetUnit, float] = {"tokens": 1000}
    alone = TrainDataLoader({"a": split}, max_tokens=100, seed=0, budget=given)
    batches = TrainDataLoader({"a": split}, max_tokens=100, seed=0, budget=given, grad_accumulation=together)
    assert len(batches) == math.ceil(len(alone) / together) * together
    for (_, one), (_, other) in zip(alone, batches, strict=False):
        assert torch.equal(one.example_indices, other.example_indices)
