"""An experiment is shown as it would be used: without what only training does, and without training."""

from pathlib import Path

import pytest
from PIL import Image

from unifier.cli import main

EXPERIMENT = '''
"""A translation."""
from unifier import Task, Experiment, Training, Transformer
from unifier.data.embedded import GrammarPairs
from unifier.heads.transformer_decoder import TranslationHead
from unifier_tokenizers import SubwordTokenizer, Vocabulary

def shown(*, r_drop: float = 0.0, dropout: float = 0.0, frozen: tuple[str, ...] = ()) -> Experiment:
    """From English."""
    source = GrammarPairs(train=30, val=3, test=3)
    vocabulary = Vocabulary.fit((text for pair in source.split("train") for text in pair), size=300)
    head = TranslationHead(vocabulary, 8, depth=1, heads=2, ffn_dim=8, dropout=dropout, r_drop=r_drop)
    task = Task(source, SubwordTokenizer(vocabulary, 8, dropout=dropout), head)
    training = Training(steps=1, frozen=frozen)
    return Experiment(Transformer(8, 1, 2, 8, dropout=dropout), {"en-fr": task}, training, name="shown")
'''


VARIED = (
    EXPERIMENT
    + """
from unifier import Comparison

def several(*, rates: tuple[float, ...] = (0.0, 0.25)) -> Comparison:
    return Comparison("several", [shown], grid={"dropout": rates, "share": (0.5, 1.0)})
"""
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shown.py"
    path.write_text(EXPERIMENT)
    return path


def test_the_loss_is_that_of_use(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: set[str] = set()
    for settings in ([], ["r_drop=5"], ["dropout=0.5"]):
        assert main(["show", str(file), *settings]) == 0
        said.add(capsys.readouterr().out)
    (only,) = said
    assert "loss, untrained" in only


TORN = """
from unifier import Task, Experiment, Training, Transformer
from unifier.datasets.image_folder import ImageFolder
from unifier.data.source import BadExamples
from unifier.heads.classification import ClassificationHead
from unifier_tokenizers import PatchTokenizer

def torn(*, folder: str, bad_examples: BadExamples = "stop") -> Experiment:
    source = ImageFolder(folder)
    task = Task(source, PatchTokenizer(8, channels=3), ClassificationHead(source.labels, 8))
    return Experiment(Transformer(8, 1, 2, 8), {"own": task}, Training(steps=1, bad_examples=bad_examples), name="torn")
"""


def test_a_first_example_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "val", "test"):
        for label in ("left", "right"):
            (tmp_path / "set" / split / label).mkdir(parents=True)
            Image.new("L", (8, 8)).save(tmp_path / "set" / split / label / "1.png")
    (tmp_path / "set" / "train" / "left" / "0.png").write_text("torn")
    (tmp_path / "torn.py").write_text(TORN)
    asked = ["show", str(tmp_path / "torn.py"), f"folder={tmp_path / 'set'}"]
    assert main(asked) == 2
    assert "0.png" in capsys.readouterr().err
    assert main([*asked, "bad_examples=skip"]) == 0
    assert "matrix (B, D, N)" in capsys.readouterr().out


SERIES = """
import torch
from unifier import Task, ClassificationHead, Example, Experiment, Training, Transformer
from unifier_tokenizers import Tokenizer, Units

class Long:
    name = "long"
    def split(self, name):
        return [Example([0.25 * i for i in range(10_000)], "a")]

class Ends(Tokenizer):
    def encode(self, raw):
        return Units(torch.tensor([[raw[0], raw[-1]]]), torch.arange(2)[None])
    def embed(self, values, positions):
        return values.expand(-1, self.dim, -1)

def series() -> Experiment:
    task = Task(Long(), Ends(8), ClassificationHead(("a", "b"), 8))
    return Experiment(Transformer(8, 1, 2, 8), {"own": task}, Training(steps=1), name="series")
"""


def test_a_long_input_is_told_by_its_beginning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "series.py").write_text(SERIES)
    assert main(["show", str(tmp_path / "series.py")]) == 0
    out = capsys.readouterr().out
    assert "[0.0, 0.25, 0.5" in out
    assert max(map(len, out.splitlines())) < 120


def test_a_seed_that_is_none(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(file), "seed=-1"]) == 2
    assert capsys.readouterr().err == "unifier: seed=-1: a number from 0 to 4294967295 is expected\n"


def test_what_a_run_could_not_freeze_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(file), "frozen=positions"]) == 2
    assert 'frozen="positions": this model has no such part' in capsys.readouterr().err


def test_what_a_comparison_varies_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "several.py").write_text(VARIED)
    assert main(["show", str(tmp_path / "several.py")]) == 0
    said = capsys.readouterr().out
    assert "varies dropout (2): 0.0, 0.25; dropout=0.0 is shown" in said
    assert "varies share (2): 0.5, 1.0; share=0.5 is shown" in said
    assert said.count("experiment shown") == 1
