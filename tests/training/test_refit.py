"""A refit trains on the validation split too, chooses nothing by it, and claims no score on it."""

from itertools import count
from pathlib import Path

import pytest
import torch

from unifier import Comparison, Experiment, run
from unifier.data.source import Example, SplitName
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

D = 16
SIZES: dict[SplitName, int] = {"train": 20, "val": 12, "test": 10}


class Few:
    """Some digits; those of training are all of one class."""

    name, labels = "few", Digits.labels

    def split(self, name: SplitName) -> list[Example]:
        some = Digits().split(name)
        return [Example(one.input, "0") if name == "train" else one for one in some[: SIZES[name]]]


def few(*, refit: bool = True, epochs: float = 6.0) -> Experiment:
    tokenizer = PatchTokenizer(D, patch=2, channels=1).fit(one.input for one in Few().split("train"))
    task = Task(Few(), tokenizer, ClassificationHead(Few.labels, D))
    training = Training(epochs=epochs, batch_tokens=128, num_validations=3, refit=refit, learning_rate=3e-3)
    return Experiment(Transformer(D, 1, 2, 16, dropout=0.0), {"few": task}, training, name="few")


@pytest.mark.parametrize("refit", [False, True])
def test_it_reads_both_splits_and_tests_its_last_weights(
    refit: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falling = count(90, -1)
    monkeypatch.setattr(ClassificationHead, "metrics", lambda *_: {"accuracy": float(next(falling))})
    (result,) = run(few, refit=refit, out=tmp_path, track="off")
    assert result.budget["examples"] / 6 == pytest.approx(SIZES["train"] + refit * SIZES["val"], abs=2)
    assert {name.split("/")[0] for name in result.metrics} == ({"train", "test"} if refit else {"val", "test"})
    best, last = (
        torch.load(result.folder / "checkpoints" / f"{name}.ckpt", weights_only=True)["global_step"]
        for name in ("best", "last")
    )
    assert (best == last) is refit  # the first weights are the best here
    assert (result.folder / "report.html").exists()
    assert ("val/" in (result.folder / "metrics.csv").read_text()) is not refit


def test_what_it_learns_from_the_validation_split_counts(tmp_path: Path) -> None:
    """Training says of every picture that it is a nought."""
    (alone,) = run(few, refit=False, epochs=60.0, out=tmp_path, track="off")
    (both,) = run(few, refit=True, epochs=60.0, out=tmp_path, track="off")
    assert both.metrics["train/few/accuracy"] > alone.metrics["val/few/accuracy"] + 30


def test_a_search_refuses_it_for_it_leaves_nothing_to_choose_by(tmp_path: Path) -> None:
    study = Comparison("study", [few], search=1, budget_unit="epochs", grid={"epochs": (1.0, 2.0)})

    def searched() -> Comparison:
        return study

    with pytest.raises(InputError, match="refit=true no validation"):
        run(searched, out=tmp_path, track="off")
    assert not list(tmp_path.rglob("result.json"))
