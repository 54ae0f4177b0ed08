"""Start of a run from a trained model: its trunk and tokenizers, what is trained, and the lineage."""

from pathlib import Path
from typing import Any

import pytest
import torch

from unifier import ClassificationHead, Experiment, PatchTokenizer, Task, Training, Transformer, load, run
from unifier.datasets import Digits
from unifier.experiment import Trainable
from unifier_tokenizers import InputError

D = 16


def digits(
    *, start: str = "", tokenizers: bool = True, trainable: Trainable = "all", depth: int = 1, rank: int = 2
) -> Experiment:
    """Classify digits with a small model."""
    source = Digits()
    task = Task(source, PatchTokenizer(D, channels=1), ClassificationHead(source.labels, D))
    training = Training(
        steps=2,
        batch_tokens=128,
        num_validations=1,
        start=start or None,
        start_tokenizers=tokenizers,
        trainable=trainable,
        lora_rank=rank,
        learning_rate=0.01,
    )
    return Experiment(Transformer(D, depth, 2, D), {"digits": task}, training)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load(folder).network.state_dict()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(digits, out=tmp_path_factory.mktemp("start"), track="off", seed=1)[0].folder


@pytest.mark.slow
@pytest.mark.parametrize("tokenizers", [True, False])
def test_frozen_trunk_is_the_trained_models(trained: Path, tokenizers: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"start": str(trained), "trainable": "none", "tokenizers": tokenizers}
    [result] = run(digits, out=tmp_path, track="off", **settings)
    before, after = weights(trained), weights(result.folder)
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("trunk."))
    assert result.lineage["tokenizers"] == (["digits"] if tokenizers else [])
    assert result.lineage["pretraining"]["tokens"] == load(trained).facts["budget"]["tokens"]
    [name] = [name for name, weight in before.items() if "digits.project" in name and weight.ndim == 2]
    assert ((before[name] - after[name]).abs().max() < 0.05) == tokenizers
    # A second start adds up the cost of both earlier runs.
    [third] = run(digits, out=tmp_path, track="off", start=str(result.folder / "model"))
    assert third.lineage["pretraining"]["tokens"] == result.lineage["pretraining"]["tokens"] + result.budget["tokens"]


@pytest.mark.slow
def test_low_rank_updates_change_matrices_alone(trained: Path, tmp_path: Path) -> None:
    [result] = run(digits, out=tmp_path, track="off", start=str(trained), trainable="lora")
    before, after = weights(trained), weights(result.folder)
    changed = {name for name in before if name.startswith("trunk.") and not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith("trunk.blocks") and before[name].ndim == 2}
    [frozen] = run(digits, out=tmp_path, track="off", start=str(trained), trainable="lora", rank=0)
    assert all(torch.equal(before[name], weights(frozen.folder)[name]) for name in before if name.startswith("trunk."))


@pytest.mark.parametrize(("settings", "named"), [({"depth": 2}, r"blocks\.1"), ({"start": "gone"}, "gone")])
def test_model_that_does_not_fit_is_refused(
    trained: Path, settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"start": str(trained), **settings}
    with pytest.raises(InputError, match=named):
        run(digits, out=tmp_path / "runs", track="off", **given)
    assert not (tmp_path / "runs").exists()
