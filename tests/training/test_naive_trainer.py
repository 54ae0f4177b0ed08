"""The known faults of distributed training, expected of a naive trainer. `test_parallel.py` has the same checks.

The numbers of rows are those of a list of eighteen public faults. In the variant "devices", Lightning's DDP gets the
loaders of one process. In the variant "sampler", a DistributedSampler divides the examples of each batch.

Three rows show another symptom than the public fault. Row 7 does not hang, because the sampler repeats a single
example on both processes. Row 9 does not leave processes behind, because Lightning's launcher ends all. Row 16 does
not hang, because the sampler repeats examples. Row 3 passes: with torch 2.11, DDP with `find_unused_parameters` also
reduces the accumulated gradients of weights that the last batch does not use. Row 18 has no naive variant, because it
needs the options of the command line.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.naive_trainer import compare_naively, fail, run_fast_clock, stop_naively, train_naively
from tests.training.test_processes import FILE
from tests.two_processes import TASKS, Pair, Trained, slow, train
from unifier.data.dataset import open_split
from unifier.data.source import target_of

pytestmark = [pytest.mark.extras, pytest.mark.usefixtures("undrawn")]

Runs = tuple[Trained, Trained, Trained]
SETTINGS: dict[str, Any] = {"steps": 4, "optimizer": "adamw"}


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def runs(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Runs]:
    """Return a function that trains a task with one process, and naively with two. Each pair of runs is made once."""
    made: dict[tuple[str, str], Runs] = {}

    def get(variant: str, task: str) -> Runs:
        if (variant, task) not in made:
            one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
            naive = pair(train_naively, two, [task], sampler=variant == "sampler", **SETTINGS)
            made[variant, task] = (train(one, [task], **SETTINGS), *naive)
        return made[variant, task]

    return get


def is_score_of_all(task: str, one: Trained, first: Trained, second: Trained) -> bool:
    """Return True if the mean of the scores of two processes is the score of all their predictions."""
    made = first.predictions[task] | second.predictions[task]
    parts = TASKS[task]()
    examples = open_split(parts.source, "test")
    targets = [target_of(examples, index) for index in made]
    whole = parts.head.checked_metrics([*made.values()], targets)
    means = [fmean(run.result.metrics[f"test/{task}/{name}"] for run in (first, second)) for name in whole]
    return means == pytest.approx([*whole.values()], rel=1e-6)


def count_examples(*runs: Trained) -> int:
    return sum(len(batch) for run in runs for batch in run.indices)


CHECKS: dict[str, tuple[str, str, Callable[[Trained, Trained, Trained], bool]]] = {
    "1": (
        "devices",
        "digits",
        lambda one, a, b: not any({*x} & {*y} for x, y in zip(a.indices, b.indices, strict=True)),
    ),
    "4": ("sampler", "digits", lambda one, a, b: not {*a.predicted["digits"]} & {*b.predicted["digits"]}),
    "5": ("sampler", "text", lambda one, a, b: is_score_of_all("text", one, a, b)),
    "7": ("sampler", "rare", lambda one, a, b: not {*a.predicted["rare"]} & {*b.predicted["rare"]}),
    "10": ("devices", "digits", lambda one, a, b: a.result.folder == b.result.folder),
    "11": ("devices", "digits", lambda one, a, b: len([*a.result.folder.parent.rglob("metrics.csv")]) == 1),
    "12": ("sampler", "digits", lambda one, a, b: not {*a.draws} & {*b.draws}),
    "13": ("sampler", "digits", lambda one, a, b: a.result.budget["tokens"] == one.result.budget["tokens"]),
    "16": ("sampler", "digits", lambda one, a, b: count_examples(a, b) == count_examples(one)),
    "17": ("sampler", "text", lambda one, a, b: a.losses == pytest.approx(one.losses, rel=1e-5)),
}


@pytest.mark.parametrize("row", CHECKS)
def test_naive_trainer_has_fault(row: str, runs: Callable[[str, str], Runs]) -> None:
    variant, task, check = CHECKS[row]
    assert not check(*runs(variant, task))


def test_unused_weights_are_refused(pair: Pair, tmp_path: Path) -> None:
    """Row 2."""
    with pytest.raises(Exception, match="were not used in producing"):
        pair(train_naively, tmp_path, ["digits", "text"], sampler=False, **SETTINGS)


def test_processes_disagree_on_the_score(pair: Pair, tmp_path: Path) -> None:
    """Row 6."""
    first, second = pair(train_naively, tmp_path, ["digits"], slow, sampler=False, **SETTINGS)
    assert first.result.metrics != second.result.metrics


def test_signal_to_one_process_leaves_the_other_waiting(pair: Pair, tmp_path: Path) -> None:
    """Row 8."""
    with pytest.raises(Exception, match=r"[Tt]imed out|closed"):
        pair(stop_naively, tmp_path, ["digits"], rank=1, step=2, **SETTINGS)


def test_error_of_one_process_is_unknown_to_the_other(pair: Pair, tmp_path: Path) -> None:
    """Row 9."""
    with pytest.raises(Exception, match=r"[Tt]imed out|closed") as caught:
        pair(train_naively, tmp_path, ["digits"], fail, sampler=False, **SETTINGS)
    assert "broken" not in str(caught.value)


def test_comparison_runs_on_every_process(pair: Pair, tmp_path: Path) -> None:
    """Row 14."""
    (tmp_path / "small.py").write_text(FILE)
    pair(compare_naively, tmp_path)
    assert len([*tmp_path.rglob("comparison.json")]) == 2


def test_processes_stop_at_different_steps(pair: Pair, tmp_path: Path) -> None:
    """Row 15."""
    with pytest.raises(Exception, match=r"[Tt]imed out|closed"):
        pair(train_naively, tmp_path, ["digits"], run_fast_clock, sampler=False, seconds=2)
