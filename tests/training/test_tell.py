"""A run that has its scores keeps them, whatever becomes of the samples, observations and pages that tell of them."""

import errno
import json
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
from matplotlib.figure import Figure
from torch import Tensor

from unifier import Comparison, Experiment, run
from unifier.cli import main
from unifier.data.source import Example, SplitName
from unifier.datasets.digits import Digits
from unifier.experiment import Task, Training
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.head import Head
from unifier.report.conditions import group_conditions
from unifier.report.read_results import read_results
from unifier.report.tables import attention_table
from unifier.training import artifacts as tell
from unifier.training import fit
from unifier.training.result import Interrupted, RunFailed
from unifier.trials import runner as compare
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, PatchTokenizer, Tokens

pytestmark = pytest.mark.usefixtures("undrawn")

D = 8


def trained(name: str, task: Task) -> Experiment:
    training = Training(steps=2, batch_tokens=64, num_validations=1)
    return Experiment(Transformer(D, 1, 2, 8), {"digits": task}, training, name=name)


def pictures() -> Experiment:
    tokenizer = PatchTokenizer(D, channels=1)
    return trained("pictures", Task(Digits(val=100, test=100), tokenizer, ClassificationHead(Digits.labels, D)))


def alone() -> Comparison:
    return Comparison("alone", [pictures], budget_unit="steps", seeds=(0, 1))


def breaks(*_: Any) -> None:
    raise TypeError("nothing to draw,\nnot in two lines")


def content(folder: Path, name: str = "result.json") -> dict[str, Any]:
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize(
    ("part", "lacks"),
    [
        ("samples", "samples.json"),
        ("confusions", "confusions.json"),
        ("by_length", "lengths.json"),
        ("observe", "its representations and attention"),
        ("write_report", "report.html"),
    ],
)
def test_a_part_that_fails_is_a_warning_and_the_others_are_written(
    part: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tell, part, breaks)
    with pytest.warns(UserWarning, match=rf"writing {lacks} failed \(TypeError: nothing .* two lines\)$") as said:
        (result,) = run(pictures, out=tmp_path, track="off")
    assert len([one for one in said if "has its scores" in str(one.message)]) == 1
    assert result.status == "finished"
    found = content(result.folder)
    assert (found["status"], found["metrics"]) == ("finished", result.metrics)
    assert "test/digits/accuracy" in found["metrics"]
    written = {
        "samples": "samples.json",
        "confusions": "confusions.json",
        "observe": "attention.json",
        "write_report": "report.html",
    }
    assert {name for name, file in written.items() if not (result.folder / file).exists()} == {part} & set(written)


@pytest.mark.filterwarnings("default")
def test_the_command_line_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tell, "write_report", breaks)
    assert main(["run", f"{__file__}:pictures", "--track", "off", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    folder = printed.out.splitlines()[-1]
    (line,) = [line for line in printed.err.splitlines() if "nothing to draw" in line]
    assert line.startswith(f"warning: {folder} has its scores, but writing report.html failed")


def told(folder: Path) -> list[str]:
    """The files that tell of a run."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def heard() -> Generator[None]:
    """Ctrl-C is, though a shell that starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("signal_of", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_while_it_is_told_scores_and_tells_again(
    signal_of: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["run", f"{__file__}:pictures", "--track", "off"]
    assert main([*asked, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(tell, "samples", lambda *_: signal.raise_signal(signal_of))
        assert main([*asked, "--out", str(tmp_path / "stopped")]) == 1
    (whole,), (folder,) = ((tmp_path / name / "pictures").iterdir() for name in ("whole", "stopped"))
    assert content(folder)["status"] == "interrupted"
    assert told(folder) != told(whole)
    assert main([*asked, "--resume", str(folder)]) == 0
    assert (content(folder)["status"], content(folder)["metrics"]) == ("finished", content(whole)["metrics"])
    assert told(folder) == told(whole)


def test_ctrl_c_while_it_is_told_keeps_the_row_and_closes_the_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tell, "observe", stop)
        patch.setattr(fit.RunLoggers, "close", lambda _, *, failed: closed.append(failed))
        with pytest.raises(Interrupted) as stopped:
            run(alone, out=tmp_path, track="off")
    assert closed == [True]
    folder = Path(str(stopped.value))
    before = content(folder, "comparison.json")
    assert before["status"] == "interrupted"
    assert [row["result"]["status"] for row in before["rows"]] == ["interrupted"]
    assert content(Path(before["rows"][0]["folder"])) == before["rows"][0]["result"]
    run(alone, out=tmp_path, track="off", resume=folder)
    after = content(folder, "comparison.json")
    assert (after["status"], len(after["rows"])) == ("finished", 2)
    told_before, row = before["rows"][0], after["rows"][0]
    assert (row["folder"], row["result"]["status"]) == (told_before["folder"], "finished")
    assert row["result"]["metrics"] == told_before["result"]["metrics"]


def test_result_json_is_written_when_the_trackers_have_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[tuple[bool, bool]] = []

    def close(tracking: fit.RunLoggers, *, failed: bool) -> None:
        closed.append((failed, (tracking.folder / "result.json").exists()))

    monkeypatch.setattr(fit.RunLoggers, "close", close)
    (result,) = run(pictures, out=tmp_path, track="off")
    assert content(result.folder)["status"] == "finished"
    monkeypatch.setattr(fit, "train_and_test", breaks)
    with pytest.raises(RunFailed) as failure:
        run(pictures, out=tmp_path, track="off")
    assert content(failure.value.result.folder)["status"] == "failed"
    assert closed == [(False, False), (True, False)]


def test_a_run_stopped_while_a_tracker_closes_has_its_scores_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(_: fit.RunLoggers, *, failed: bool) -> None:
        if not failed:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fit.RunLoggers, "close", slow)
        with pytest.raises(Interrupted) as stopped:
            run(pictures, out=tmp_path, track="off")
    folder = Path(str(stopped.value))
    scores = content(folder)["metrics"]
    assert content(folder)["status"] == "interrupted"
    assert "test/digits/accuracy" in scores
    for _ in range(2):
        (result,) = run(pictures, out=tmp_path, track="off", resume=folder)
        assert (result.status, content(folder)["metrics"]) == ("finished", scores)
        (folder / "result.json").unlink()  # as after a kill instead


@pytest.mark.parametrize("part", ["compare_representations", "write_report"])
def test_a_comparison_keeps_its_rows_too(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, part, breaks)
    with pytest.warns(UserWarning, match="nothing to draw"):
        run(alone, out=tmp_path, track="off")
    (folder,) = (tmp_path / "alone").iterdir()
    found = content(folder, "comparison.json")
    assert (found["status"], len(found["rows"])) == ("finished", 2)


@final
class Counted:
    """Dark and bright squares; the target is a list of numbers."""

    name = "counted"

    def split(self, name: SplitName) -> list[Example]:
        return [Example(np.full((8, 8), 255 * (k % 2), np.uint8), [k % 2, 2]) for k in range(12)]


@final
class Numbers(Head):
    """Tags that are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TaggingHead(("0", "1", "2"), D)

    def encode(self, target: list[int]) -> Tensor:
        return self.inner.encode(map(str, target))

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return self.inner.loss(tokens, target)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        return self.inner.predict(tokens)

    def metrics(self, predictions: Any, targets: Any) -> dict[str, float]:
        return self.inner.metrics(predictions, [list(map(str, target)) for target in targets])


def counted(*, patch: int = 4) -> Experiment:
    return trained("counted", Task(Counted(), PatchTokenizer(D, patch=patch, channels=1), Numbers()))


def test_targets_may_be_numbers_and_a_picture_one_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: Callable[..., None]
) -> None:
    monkeypatch.setattr(Figure, "savefig", undrawn)
    for patch in (4, 8):
        (result,) = run(counted, out=tmp_path, track="off", patch=patch)
        (line,) = attention_table(group_conditions(read_results(result.folder).rows))
        assert (line["entropy / log N"] == "–") == (patch == 8), "one column sees itself alone"
        assert line["mean distance"].endswith(" pixels")
    drawn = (result.folder / "figures" / "attention-digits-0.svg").read_text()
    assert "0, 2" in drawn


def test_where_no_tag_tells_examples_apart_nothing_is_trained(tmp_path: Path) -> None:
    def tagged() -> Experiment:
        return trained("tagged", Task(Tagged(), PatchTokenizer(D, channels=1), TaggingHead(("even", "odd"), D)))

    with pytest.raises(InputError, match="digits, test: of its 1 examples none has a tag that another lacks"):
        run(tagged, out=tmp_path, track="off")
    assert not list(tmp_path.rglob("result.json"))


@final
class Tagged:
    """Digits that are even or odd, of which one is tested on."""

    name = "digits"

    def split(self, name: SplitName) -> list[Example]:
        digits = Digits(val=100, test=100).split(name)
        some = [digits[k] for k in range(1 if name == "test" else 100)]
        return [Example(one.input, ("odd" if int(one.target) % 2 else "even",)) for one in some]


def test_on_a_disk_that_is_full_at_the_end_no_file_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "npz" in path.name or "result.json" in path.name:
            written(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["run", f"{__file__}:pictures", "--out", str(tmp_path / "runs"), "--track", "off"]) == 2
    (folder,) = (tmp_path / "runs" / "pictures").iterdir()
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    assert not [path for path in folder.iterdir() if path.suffix in (".npz", ".part")]
    monkeypatch.undo()
    assert main(["run", f"{__file__}:pictures", "--resume", str(folder), "--track", "off"]) == 0
    assert content(folder)["status"] == "finished"
