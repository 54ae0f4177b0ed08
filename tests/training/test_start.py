"""Start of a run from a trained model: its trunk and tokenizers, what is trained, and the lineage."""

from pathlib import Path
from typing import Any

import pytest
import torch

from unifier import ClassificationHead, Comparison, Experiment, PatchTokenizer, Task, Training, Transformer, load, run
from unifier.config import load_experiment
from unifier.datasets import Digits
from unifier.experiment import Trainable
from unifier.models import folder
from unifier_tokenizers import InputError, SubwordTokenizer

D = 16


def digits(
    *,
    start: str = "",
    tokenizers: bool = True,
    trainable: Trainable = "all",
    depth: int = 1,
    rank: int = 2,
    patch: int = 4,
) -> Experiment:
    """Classify digits with a small model."""
    source = Digits()
    task = Task(source, PatchTokenizer(D, patch=patch, channels=1), ClassificationHead(source.labels, D))
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
def test_frozen_trunk_is_the_trained_models(
    trained: Path, tokenizers: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"start": str(trained), "trainable": "none", "tokenizers": tokenizers}
    [result] = run(digits, out=tmp_path, track="off", **settings)
    before, after = weights(trained), weights(result.folder)
    assert not any(line.endswith(": digits") for line in capsys.readouterr().out.splitlines())
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("trunk."))
    assert result.lineage["tokenizers"] == (["digits"] if tokenizers else [])
    assert result.lineage["pretraining"]["tokens"] == load(trained).facts["budget"]["tokens"]
    [name] = [name for name, weight in before.items() if "digits.project" in name and weight.ndim == 2]
    assert ((before[name] - after[name]).abs().max() < 0.05) == tokenizers
    # A second start adds up the cost of both earlier runs.
    [third] = run(digits, out=tmp_path, track="off", start=str(result.folder / "model"))
    assert third.lineage["pretraining"]["tokens"] == result.lineage["pretraining"]["tokens"] + result.budget["tokens"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_model_on_the_hub_is_looked_up_once_per_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def download(source: str) -> Path:
        calls.append(source)
        return trained / "model"

    monkeypatch.setattr(folder, "download_model", download)
    run(digits, out=tmp_path, track="off", start="hub:me/digits")
    assert calls == ["hub:me/digits"]
    folder.forget_downloads()  # As at the start of the next run.
    folder.find_earlier_model("hub:me/digits")
    assert calls == ["hub:me/digits"] * 2
    folder.forget_downloads()


@pytest.mark.slow
def test_tokenizer_that_is_not_taken_over_is_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [result] = run(digits, out=tmp_path, track="off", start=str(trained), patch=2)
    assert result.lineage["tokenizers"] == []
    assert any(line.endswith(": digits") for line in capsys.readouterr().out.splitlines())


@pytest.mark.slow
def test_low_rank_updates_change_matrices_alone(trained: Path, tmp_path: Path) -> None:
    [result] = run(digits, out=tmp_path, track="off", start=str(trained), trainable="lora")
    before, after = weights(trained), weights(result.folder)
    changed = {name for name in before if name.startswith("trunk.") and not torch.equal(before[name], after[name])}
    matrices = {name for name in before if name.startswith("trunk.blocks") and before[name].ndim == 2}
    assert changed == matrices
    model, parameters = load(result.folder).network, result.parameters
    assert parameters["total"] == sum(weight.numel() for weight in model.parameters())
    updates = sum(2 * sum(before[name].shape) for name in matrices)
    assert parameters["trained"] == parameters["tokenizer"] + parameters["head"] + updates
    [frozen] = run(digits, out=tmp_path, track="off", start=str(trained), trainable="lora", rank=0)
    assert all(torch.equal(before[name], weights(frozen.folder)[name]) for name in before if name.startswith("trunk."))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_text_classifier_takes_over_vocabulary_and_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(f"note {k} of {k % 7} dogs and {k % 5} cats" for k in range(200)))
    rows = [f"{'dogs' if k % 2 else 'cats'} are no. {k},{k % 2}" for k in range(60)]
    (tmp_path / "labels.csv").write_text("\n".join(["text,label", *rows]))
    small: dict[str, Any] = {"vocabulary": 290, "dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16}
    options: dict[str, Any] = {"steps": 2, "num_validations": 1, "out": tmp_path, "track": "off"}
    recipes = [load_experiment(name) for name in ("pretrain", "text_classification")]
    [pretrained] = run(recipes[0], data=str(tmp_path / "notes.txt"), piece_words=8, **small, **options)
    given: dict[str, Any] = {
        "data": str(tmp_path / "labels.csv"),
        "start": str(pretrained.folder),
        "frozen": ("tokenizer",),
    }
    [result] = run(recipes[1], **given, **small, **options)
    before, after = (tokenizer_of(folder) for folder in (pretrained.folder, result.folder))
    assert torch.equal(before.embedding.weight, after.embedding.weight)
    assert before.vocabulary.codec.to_str() == after.vocabulary.codec.to_str()
    assert result.lineage["tokenizers"] == ["labels"]
    [alone] = run(recipes[1], **given | {"start_tokenizers": False, "trainable": "none"}, **small, **options)
    assert alone.lineage["tokenizers"] == []
    assert "<mask>" not in tokenizer_of(alone.folder).vocabulary.extra
    trained, own = (load(folder).network.trunk.state_dict() for folder in (pretrained.folder, alone.folder))
    assert all(torch.equal(weight, own[name]) for name, weight in trained.items())
    learned: dict[str, Any] = {"data": str(tmp_path / "notes.txt"), "teacher": str(pretrained.folder)}
    costs = {cost: pretrained.budget[cost] for cost in ("tokens", "flops", "seconds")}
    for start in ({}, {"start": str(pretrained.folder)}):  # A teacher that is also the start counts once.
        [student] = run(recipes[0], piece_words=8, **learned, **start, **small, **options)
        assert student.lineage["teachers"] == ["pretrain"]
        assert student.lineage["pretraining"] == pytest.approx(costs)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_writer_takes_over_an_equal_decoder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(f"note {k} of {k % 7} dogs and {k % 5} cats" for k in range(200)))
    (tmp_path / "pairs.tsv").write_text("".join(f"note {k} of dogs.\tdogs {k}\n" for k in range(60)))
    options: dict[str, Any] = {"steps": 1, "num_validations": 1, "out": tmp_path, "track": "off", "depth": 2, "dim": 16}
    options |= {"vocabulary": 290, "heads": 2, "ffn_dim": 16}
    spans = {"data": str(tmp_path / "notes.txt"), "objective": "spans", "piece_words": 8}
    [pretrained] = run(load_experiment("pretrain"), **spans, **options)
    given: dict[str, Any] = {"data": str(tmp_path / "pairs.tsv"), "how": "title", "start": str(pretrained.folder)}
    summarization, frozen = load_experiment("summarization"), {"frozen": ("tokenizer", "head"), "trainable": "norms"}
    [result] = run(summarization, **given, **frozen, **options)
    assert (result.lineage["tokenizers"], result.lineage["heads"]) == (["pairs"], ["pairs"])
    before, after = (weights(folder) for folder in (pretrained.folder, result.folder))
    decoder = {name.replace(".notes", ".pairs"): weight for name, weight in before.items() if "heads." in name}
    assert decoder
    assert all(torch.equal(weight, after[name]) for name, weight in decoder.items())
    [other] = run(summarization, **given, **options, decoder_depth=1)
    assert "heads" not in other.lineage


def tokenizer_of(folder: Path) -> SubwordTokenizer:
    """Return the tokenizer of a model with one task."""
    (task,) = load(folder).tasks.values()
    assert isinstance(task.tokenizer, SubwordTokenizer)
    return task.tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "named"), [({"depth": 2}, r"blocks\.1"), ({"start": "gone"}, "gone")])
def test_model_that_does_not_fit_is_refused(
    trained: Path, settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"start": str(trained), **settings}
    with pytest.raises(InputError, match=named):
        run(digits, out=tmp_path / "runs", track="off", **given)
    assert not (tmp_path / "runs").exists()


def low_rank() -> Experiment:
    return digits(trainable="lora")


def transfer() -> Comparison:
    return Comparison(
        "low",
        [low_rank, digits],
        modes=("transfer",),
        trainable=("none",),
        controls=(),
        transfers=[(low_rank, digits)],
        budget_unit="steps",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_transfer_loads_the_merged_weights_of_low_rank_updates(tmp_path: Path) -> None:
    start, _, frozen = run(transfer, out=tmp_path, track="off")
    before, after = weights(start.folder), weights(frozen.folder)
    assert (start.name, frozen.name) == ("low_rank", "digits")
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("trunk."))
