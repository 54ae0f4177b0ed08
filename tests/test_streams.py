"""Who reads what is printed may go away, or have other letters; who runs a program may end it anywhere."""

import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from unifier.cli import main
from unifier.files import read_json

pytestmark = pytest.mark.usefixtures("undrawn")

STUDY = """
import signal
from unifier import Task, ClassificationHead, Comparison, Experiment, Training, Transformer
from unifier.data.embedded import Digits
from unifier_tokenizers import PatchTokenizer


def digits(*, dim: int = 8) -> Experiment:
    source = Digits(val=10, test=10)
    task = Task(source, PatchTokenizer(dim, channels=1), ClassificationHead(source.labels, dim))
    return Experiment(Transformer(dim, 1, 2, 8), {"digits": task}, Training(steps=4, num_workers=0), name="digits")


def again(*, dim: int = 8) -> Experiment:
    return digits(dim=dim)


def both(*, steps: int = 4) -> Comparison:
    return Comparison("both", [digits, again], seeds=(0, 1), match="steps", budget=steps)


def ended(*, dim: int = 8) -> Experiment:
    signal.raise_signal(signal.SIGTERM)
    return digits(dim=dim)
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(STUDY)
    return tmp_path / "own.py"


def command(study: Path, name: str) -> list[str]:
    return [sys.executable, "-m", "unifier.cli", "run", f"{study}:{name}", "--track", "off", "--out", str(study.parent)]


def test_a_reader_that_goes_away_ends_no_training(study: Path) -> None:
    with subprocess.Popen(command(study, "digits"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        said = run.stderr.read()
    assert run.returncode == 1
    assert "Traceback" not in said
    (result,) = study.parent.rglob("result.json")
    assert read_json(result)["status"] == "finished"


def test_a_console_without_our_letters_shows_them_by_number(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", console)
    assert main(command(study, "both")[3:]) == 0
    console.seek(0)
    assert "\\xb1" in console.read()


def test_sigterm_is_ctrl_c_wherever_it_comes(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["show", f"{study}:ended"]) == 1
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
