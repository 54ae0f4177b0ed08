"""Real runs, from a function to the folder: files, costs, seeds, several modalities, failures and comparisons."""

import csv
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, final

import pytest
import torch
from torch import Tensor

from unifier import (
    ClassificationHead,
    Comparison,
    Example,
    Experiment,
    Head,
    Source,
    TaggingHead,
    Task,
    Training,
    Transformer,
    TranslationHead,
    run,
)
from unifier.data.dataset import open_split
from unifier.data.source import SplitName, name_of
from unifier.datasets import Digits, GrammarPairs, SyntheticMusic
from unifier.files import read_json
from unifier.training.result import RunFailed
from unifier_tokenizers import FrameTokenizer, InputError, PatchTokenizer, SubwordTokenizer, Tokens, Vocabulary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]

D = 16


@final
class Few:
    """The first examples of a source."""

    def __init__(self, source: Source, count: int = 40) -> None:
        self.source, self.count, self.name = source, count, name_of(source)

    def split(self, name: SplitName) -> list[Example]:
        return [open_split(self.source, name)[k] for k in range(min(self.count, len(open_split(self.source, name))))]


def digits(count: int = 40) -> Task:
    return Task(Few(Digits(), count), PatchTokenizer(D, patch=2, channels=1), ClassificationHead(Digits.labels, D))


def trunk(dropout: float = 0.1) -> Transformer:
    return Transformer(D, 1, 2, 16, dropout=dropout)


def pictures(*, steps: int = 8) -> Experiment:
    training = Training(steps=steps, batch_tokens=128, num_validations=2)
    return Experiment(trunk(), {"digits": digits()}, training, name="pictures")


def together(*, tokens: int = 3000) -> Experiment:
    """Return an experiment on text, pictures and sound."""
    pairs = GrammarPairs(train=30, val=3, test=3)
    vocabulary = Vocabulary.fit((text for pair in pairs.split("train") for text in pair), size=300)
    subwords = SubwordTokenizer(vocabulary, D)
    music = SyntheticMusic(train=6, val=6, test=6, seconds=1.0, target="tags")
    tasks = {
        "en-fr": Task(pairs, subwords, TranslationHead(vocabulary, D, depth=1, heads=2, ffn_dim=16)),
        "digits": digits(),
        "music": Task(music, FrameTokenizer(D, sample_rate=8000, stack=4), TaggingHead(music.labels, D)),
    }
    return Experiment(trunk(), tasks, Training(tokens=tokens, batch_tokens=128, num_validations=1), name="together")


@final
class Breaks(Head):
    """A head whose loss raises in the third training step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.steps = ClassificationHead(Digits.labels, D), 0

    def encode(self, target: str) -> Tensor:
        return self.inner.encode(target)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        self.steps += len(target) > 1  # FLOPs are counted on single examples.
        if self.steps > 2:
            raise RuntimeError("the third step breaks\nfor a reason of two lines")
        return self.inner.loss(tokens, target)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        return self.inner.predict(tokens)

    def metrics(self, predictions: Any, targets: Any) -> dict[str, float]:
        return self.inner.metrics(predictions, targets)


def breaks(*, steps: int = 8) -> Experiment:
    task = digits()
    tasks = {"digits": replace(task, head=Breaks())}
    return Experiment(trunk(), tasks, Training(steps=steps, batch_tokens=128, num_validations=1), name="breaks")


def both(*, seeds: tuple[int, ...] = (0, 1)) -> Comparison:
    return Comparison("both", [breaks, pictures], settings={"steps": 4}, seeds=seeds, budget_unit="steps")


@final
class Torn(list[Example]):
    """A split whose second example cannot be read."""

    def __getitem__(self, index: Any) -> Any:
        if index == 1:
            raise InputError("torn")
        return super().__getitem__(index)


@final
class Album:
    """A source without a hash of its own."""

    name = "album"

    def split(self, name: SplitName) -> list[Example]:
        return Torn(Few(Digits(), 20).split(name))


def torn() -> Experiment:
    training = Training(steps=2, batch_tokens=128, num_validations=1, bad_examples="skip")
    return Experiment(trunk(), {"digits": replace(digits(), source=Album())}, training, name="torn")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(out: Path) -> Path:
    (result,) = run(pictures, out=out, track="off")
    return result.folder


def rows(folder: Path, name: str = "metrics.csv") -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def content(folder: Path, name: str = "result.json") -> dict[str, Any]:
    return read_json(folder / name)


def weights(folder: Path, name: str = "best") -> dict[str, Tensor]:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]


def test_run_leaves_its_files_only(finished: Path) -> None:
    assert finished.parent.name == "pictures"
    left = {path.relative_to(finished).as_posix() for path in finished.rglob("*") if path.is_file()}
    files = {f"{name}.json" for name in ("settings", "result", "samples", "attention", "confusions", "maps")}
    files |= {".lock", "metrics.csv", "hashes.json", "predictions.csv", "report.html", "representations.npz"}
    files |= {"experiment.py"}
    files |= {f"checkpoints/{name}.ckpt" for name in ("best", "last")}
    files |= {f"model/{name}" for name in ("config.json", "model.safetensors", "README.md")}
    names = "curves-digits-tokens", "loss", "confusions-digits"
    drawn = {f"figures/{name}.{kind}" for name in names for kind in ("svg", "csv")}
    drawn |= {f"figures/attention-digits-{name}.svg" for name in (0, 1, "heads")} | {"figures/tokenizer-digits-0.svg"}
    assert left == files | drawn
    assert all((finished / name).stat().st_mtime_ns <= (finished / "result.json").stat().st_mtime_ns for name in files)
    expected: dict[str, Any] = {"study": f"{Path(__file__).resolve()}:pictures", "comparison": None, "trial": {}}
    expected |= {"longest": {"digits": 16}, "read": {"digits": content(finished)["data"]["digits"]["sha256"]}}
    expected |= {"started_in": str(Path.cwd()), "data_folder": os.environ.get("UNIFIER_DATA")}
    copy = sha256((finished / "experiment.py").read_bytes()).hexdigest()
    expected |= {"fitted": {}, "lineage": {}, "experiment": {"experiment.py": copy}}
    assert content(finished, "settings.json") == {"name": "pictures", "seed": 0, "settings": {"steps": 8}, **expected}


SCHEMA: dict[str, Any] = {
    "name": str,
    "tasks": [str],
    "seed": int,
    "status": str,
    "metrics": {"test/digits/accuracy": float, "val/digits/accuracy": float},
    "parameters": {"tokenizer": int, "trunk": int, "head": int, "total": int},
    "budget": {"steps": int, "examples": int, "tokens": int, "flops": int, "seconds": float, "peak_memory_bytes": int},
    "settings": {"steps": int},
    "data": {"digits": {"name": str, "sha256": str, "train": int, "val": int, "test": int}},
    "versions": {"python": str, "torch": str, "unifier": str},
    "commit": str,
    "machine": str,
    "threads": int,
}


def check(schema: Any, value: Any, name: str = "result") -> None:
    if isinstance(schema, dict):
        for key, kind in schema.items():
            assert key in value, f"{name} lacks {key}"
            check(kind, value[key], f"{name}.{key}")
    elif isinstance(schema, list):
        for item in value:
            check(schema[0], item, name)
    else:
        assert type(value) is schema, f"{name} is {value!r}"


def test_result_has_costs_and_facts(finished: Path) -> None:
    result = content(finished)
    check(SCHEMA, result)
    assert set(result) - set(SCHEMA) <= {"signatures", "error", "speed", "task_budgets", "lineage"}
    speed, budget = result["speed"], result["budget"]
    for unit in ("tokens", "flops"):
        assert speed[f"{unit}_per_second"] == pytest.approx(budget[unit] / budget["seconds"])
    assert speed["test_seconds"] > 0
    assert speed["mfu"] == pytest.approx(speed["flops_per_second"] / speed["peak_flops_per_second"])
    assert 0 < speed["share_waiting_for_data"] < speed["share_outside_steps"] < 1
    assert speed["computed_per_real_column"] == 1  # All digits have one size.
    assert (result["status"], result["error"]) == ("finished", "")
    assert budget["steps"] == 8
    assert budget["tokens"] == 8 * 8 * 16  # Each batch has 8 digits of 16 tokens.
    assert budget["peak_memory_bytes"] > 10**6
    assert result["parameters"]["total"] == sum(result["parameters"][part] for part in ("tokenizer", "trunk", "head"))
    assert [result["data"]["digits"][split] for split in ("train", "val", "test")] == [40, 40, 40]
    assert len(result["data"]["digits"]["sha256"]) == 64


def test_metrics_have_the_budget_so_far(finished: Path) -> None:
    logged = rows(finished)
    for name in ("step", "budget/tokens", "budget/flops", "budget/seconds"):
        values = [float(row[name]) for row in logged]
        assert values == sorted(values)
    trained = [row for row in logged if row["train/digits/loss"]]
    assert [int(row["step"]) for row in trained] == list(range(1, 9))
    assert [int(row["budget/tokens"]) for row in trained] == [8 * 16 * step for step in range(1, 9)]
    assert [int(row["step"]) for row in logged if row["val/digits/accuracy"]] == [4, 8]
    assert sum(bool(row["test/digits/accuracy"]) for row in logged) == 1
    validated = [float(row["val/digits/accuracy"]) for row in logged if row["val/digits/accuracy"]]
    assert content(finished)["metrics"]["val/digits/accuracy"] == pytest.approx(max(validated)), "of the best weights"


def test_predictions_and_samples_are_written(finished: Path) -> None:
    samples = content(finished, "samples.json")["digits"]
    assert 0 < len(samples) <= 12
    assert all(set(sample) == {"input", "target", "prediction", "image"} for sample in samples)
    predictions = rows(finished, "predictions.csv")
    assert [int(row["index"]) for row in predictions] == list(range(40))
    assert {row["target"] for row in predictions} <= set(Digits.labels)
    accuracy = content(finished)["metrics"]["test/digits/accuracy"]
    assert fmean(float(row["score"]) for row in predictions) == pytest.approx(accuracy)


def test_seed_determines_the_run(finished: Path, out: Path) -> None:
    (again,) = run(pictures, out=out, track="off")
    assert again.folder != finished
    assert again.metrics == content(finished)["metrics"]
    first, second = weights(finished), weights(again.folder)
    assert all(torch.equal(first[name], second[name]) for name in first)
    clock = "budget/seconds"
    assert [{**row, clock: ""} for row in rows(again.folder)] == [{**row, clock: ""} for row in rows(finished)]
    (other,) = run(pictures, seed=1, out=out, track="off")
    assert other.seed == 1
    assert any(not torch.equal(first[name], part) for name, part in weights(other.folder).items())


def test_three_modalities_train_one_trunk(out: Path) -> None:
    (result,) = run(together, out=out, track="off")
    assert {task: data["max_score"] for task, data in result.data.items()} == {"en-fr": 100, "digits": 100, "music": 1}
    for name in ("en-fr/bleu", "en-fr/chrf", "digits/accuracy", "music/macro_auc"):
        assert f"test/{name}" in result.metrics
        assert f"val/{name}" in result.metrics
    assert 3000 <= result.budget["tokens"] <= 3000 + 128
    trained = [name for name in rows(result.folder)[0] if name.startswith("train/") and name.endswith("/loss")]
    assert sorted(trained) == ["train/digits/loss", "train/en-fr/loss", "train/music/loss"]
    assert "BLEU" in result.signatures["test/en-fr/bleu"] or "tok:13a" in result.signatures["test/en-fr/bleu"]


def test_skipped_examples_are_counted(out: Path) -> None:
    (result,) = run(torn, out=out, track="off")
    data = result.data["digits"]
    assert data["skipped"] == {"train": 1, "val": 1, "test": 1}
    assert (data["name"], data["train"], len(data["sha256"])) == ("album", 20, 64)


def test_failed_run_has_its_error(out: Path) -> None:
    with pytest.raises(RunFailed, match="the third step breaks") as failure:
        run(breaks, out=out, track="off")
    result = content(failure.value.result.folder)
    check({name: kind for name, kind in SCHEMA.items() if name != "metrics"}, result)
    assert result["status"] == "failed"
    assert result["error"].startswith("RuntimeError: the third step breaks")
    assert result["budget"]["steps"] == 2
    assert isinstance(failure.value.__cause__, RuntimeError)


def test_more_validations_read_no_more_examples(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    class Counted(list[Example]):
        def __getitem__(self, index: Any) -> Any:
            reads[-1] += 1
            return super().__getitem__(index)

    split = Few.split
    monkeypatch.setattr(Few, "split", lambda source, name: Counted(split(source, name)))
    for validations in (1, 4):
        reads.append(0)
        run(scored(validations), out=out, track="off")
    assert 0 < reads[0] == reads[1]


def scored(validations: int) -> Any:
    def often() -> Experiment:
        training = Training(steps=8, batch_tokens=128, num_validations=validations)
        return Experiment(trunk(), {"digits": digits()}, training, name="often")

    return often


def test_comparison_continues_after_a_failed_run(out: Path) -> None:
    results = run(both, out=out, track="off", devices=1)
    assert [result.status for result in results] == ["failed", "finished"] * 2
    (folder,) = (out / "both").iterdir()
    assert {path.name for path in folder.iterdir()} == {".lock", "comparison.json", "report.html", "figures", "trials"}
    written = content(folder, "comparison.json")
    assert written["status"] == "failed"
    assert written["settings"] == {"seeds": [0, 1]}
    assert [(row["experiment"], row["task"], row["seed"], row["mode"]) for row in written["rows"]] == [
        (name, "digits", seed, "solo") for seed in (0, 1) for name in ("breaks", "pictures")
    ]
    for row in written["rows"]:
        assert row["result"] == content(folder / row["folder"])
    assert "the third step breaks" in (folder / "report.html").read_text()


def wider() -> Experiment:
    return Experiment(Transformer(2 * D, 1, 2, 16), {"digits": digits()}, Training(steps=4), name="wider")


def test_comparison_that_cannot_begin_is_empty(out: Path) -> None:
    def cannot_begin() -> Comparison:
        return Comparison("cannot_begin", [wider])

    with pytest.raises(InputError, match=f"dim={2 * D}"):
        run(cannot_begin, out=out, track="off")
    assert not list((out / "cannot_begin").iterdir())
