"""What the runs of one comparison share of their data."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from unifier import Comparison, Experiment, run
from unifier.data import prepare as encoded
from unifier.data.source import Example, SplitName
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")


def pictures(name: str, patch: int) -> Experiment:
    source = Digits(val=20, test=20)
    task = Task(source, PatchTokenizer(8, patch=patch, channels=1), ClassificationHead(source.labels, 8))
    training = Training(steps=2, batch_tokens=128, num_validations=1, num_workers=0)
    return Experiment(Transformer(8, 1, 2, 8), {name: task}, training, name=name)


def fine(*, patch: int = 2) -> Experiment:
    return pictures("fine", patch)


def coarse() -> Experiment:
    return pictures("coarse", 4)


def alone() -> Comparison:
    return Comparison("alone", [fine, coarse], seeds=(0, 1), budget_unit="steps")


def joint() -> Comparison:
    return Comparison("joint", [fine, coarse], seeds=(0, 1), modes=("joint",), budget_unit="steps")


def both() -> Comparison:
    return Comparison("both", [fine, coarse], seeds=(0, 1), modes=("solo", "joint"), budget_unit="steps")


@pytest.mark.parametrize("study", [alone, joint, both])
def test_each_task_of_a_comparison_is_encoded_once(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_tasks: list[str] = []
    describe = encoded.describe_data

    def counted(source: Any, skipped: Any) -> dict[str, Any]:
        of_tasks.append(source.name)
        return describe(source, skipped)

    monkeypatch.setattr(encoded, "describe_data", counted)
    run(study, out=tmp_path, track="off")
    assert len(of_tasks) == 2


class Drawn:
    """Every row of some pictures, in an order that each call draws."""

    name = "drawn"

    def __init__(self) -> None:
        self.whole = Digits(val=20, test=20)

    def split(self, name: SplitName) -> Sequence[Example]:
        found = list(self.whole.split(name))
        return Random().sample(found, len(found))


def test_a_source_that_draws_its_splits_at_each_call_is_refused(tmp_path: Path) -> None:
    def drawn() -> Experiment:
        source = Drawn()
        task = Task(source, PatchTokenizer(8, patch=4, channels=1), ClassificationHead(source.whole.labels, 8))
        return Experiment(Transformer(8, 1, 2, 8), {"drawn": task}, Training(steps=1, num_workers=0), name="drawn")

    with pytest.raises(InputError, match=r'drawn: split\("train"\) gives other examples when it is asked again'):
        run(drawn, out=tmp_path, track="off")


def varied() -> Comparison:
    return Comparison("varied", [fine, coarse], modes=("joint",), budget_unit="steps", grid={"patch": (2, 4)})


def test_what_a_setting_changes_is_encoded_again(tmp_path: Path) -> None:
    first, second = run(varied, out=tmp_path, track="off")
    columns = [
        result.task_budgets["fine"]["tokens"] / result.task_budgets["fine"]["examples"] for result in (first, second)
    ]
    assert columns == [16, 4]
