"""`unifier show`: the stages of an experiment, without training."""

from pathlib import Path

import pytest
from PIL import Image

from unifier.cli import main
from unifier.inference import inspect

RECIPES = '''
"""A translation."""
import torch
from unifier import ClassificationHead, Comparison, Example, Experiment, Task, Training, Transformer, TranslationHead
from unifier.data.source import BadExamples
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.image_folder import ImageFolder
from unifier_tokenizers import PatchTokenizer, SubwordTokenizer, Tokenizer, Units, Vocabulary

def shown(*, r_drop: float = 0.0, dropout: float = 0.0, frozen: tuple[str, ...] = ()) -> Experiment:
    """From English."""
    source = GrammarPairs(train=30, val=3, test=3)
    vocabulary = Vocabulary.fit((text for pair in source.split("train") for text in pair), size=300)
    head = TranslationHead(vocabulary, 8, depth=1, heads=2, ffn_dim=8, dropout=dropout, r_drop=r_drop)
    task = Task(source, SubwordTokenizer(vocabulary, 8, dropout=dropout), head)
    return Experiment(Transformer(8, 1, 2, 8, dropout=dropout), {"en-fr": task}, Training(steps=1, frozen=frozen))

def several(*, rates: tuple[float, ...] = (0.0, 0.25)) -> Comparison:
    return Comparison("several", [shown], grid={"dropout": rates, "share": (0.5, 1.0)})

def torn(*, folder: str, bad_examples: BadExamples = "stop") -> Experiment:
    source = ImageFolder(folder)
    task = Task(source, PatchTokenizer(8, channels=3), ClassificationHead(source.labels, 8))
    return Experiment(Transformer(8, 1, 2, 8), {"own": task}, Training(steps=1, bad_examples=bad_examples))

class Long:
    name = "long"
    def split(self, name):
        return [Example([0.25 * i for i in range(10_000)], "a")]

class Ends(Tokenizer):
    def encode(self, raw):
        return Units(torch.tensor([[raw[0], raw[-1]]]), torch.arange(2)[None])
    def embed(self, values, positions):
        return values.expand(-1, self.dim, -1)

def series(*, seconds: float = 7200) -> Experiment:
    task = Task(Long(), Ends(8), ClassificationHead(("a", "b"), 8))
    return Experiment(Transformer(8, 1, 2, 8), {"own": task}, Training(seconds=seconds))
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shown.py"
    path.write_text(RECIPES)
    return path


@pytest.mark.slow
def test_loss_is_that_of_inference(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses: set[str] = set()
    for settings in ([], ["r_drop=5"], ["dropout=0.5"]):
        assert main(["show", str(file), *settings]) == 0
        losses |= {line for line in capsys.readouterr().out.splitlines() if "loss, untrained" in line}
    assert len(losses) == 1


def test_unreadable_first_example_may_be_skipped(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val", "test"):
        for label in ("left", "right"):
            (tmp_path / "set" / split / label).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / "set" / split / label / "1.png")
    (tmp_path / "set" / "train" / "left" / "0.png").write_text("torn")
    arguments = ["show", f"{file}:torn", f"folder={tmp_path / 'set'}"]
    assert main(arguments) == 2
    assert "0.png" in capsys.readouterr().err
    assert main([*arguments, "bad_examples=skip"]) == 0
    assert "matrix (B, D, N)" in capsys.readouterr().out


def test_long_input_is_abbreviated(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{file}:series"]) == 0
    printed = capsys.readouterr().out
    assert "[0.0, 0.25, 0.5" in printed
    assert max(len(line) for line in printed.partition("setting")[0].splitlines()) < 120
    assert "2 h 00 min" in printed


@pytest.mark.parametrize(("setting", "message"), [("seed=-1", "seed=-1"), ("frozen=positions", 'frozen="positions"')])
def test_settings_that_a_run_refuses_are_refused(
    file: Path, setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(file), setting]) == 2
    assert message in capsys.readouterr().err


def test_varied_settings_are_listed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{file}:several"]) == 0
    printed = capsys.readouterr().out
    assert "dropout (2): 0.0, 0.25; dropout=0.0" in printed
    assert "share (2): 0.5, 1.0; share=0.5" in printed
    assert printed.count("experiment shown") == 1


@pytest.mark.slow
def test_time_is_estimated_unless_it_takes_long(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "MAX_MEASURE_SECONDS", float("inf"))
    assert main(["show", str(file)]) == 0
    assert "1 steps of" in capsys.readouterr().out
    monkeypatch.setattr(inspect, "MAX_MEASURE_SECONDS", 0.0)
    assert main(["show", str(file)]) == 0
    assert "steps of" not in capsys.readouterr().out
