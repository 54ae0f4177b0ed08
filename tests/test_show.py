"""An experiment is shown as it would be used: without what only training does, and without training."""

from pathlib import Path

import pytest

from unifier.cli import main

EXPERIMENT = '''
"""A translation."""
from unifier import Arm, Experiment, Training, Transformer
from unifier.data.embedded import GrammarPairs
from unifier.heads.translation import TranslationHead
from unifier_tokenizers import SubwordTokenizer, Vocabulary

def shown(*, r_drop: float = 0.0, dropout: float = 0.0) -> Experiment:
    """From English."""
    source = GrammarPairs(train=30, val=3, test=3)
    vocabulary = Vocabulary.fit((text for pair in source.split("train") for text in pair), size=300)
    head = TranslationHead(vocabulary, 8, depth=1, heads=2, hidden=8, dropout=dropout, r_drop=r_drop)
    arm = Arm(source, SubwordTokenizer(vocabulary, 8, dropout=dropout), head)
    return Experiment("shown", Transformer(8, 1, 2, 8, dropout=dropout), {"en-fr": arm}, Training(steps=1))
'''


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


def test_a_seed_that_is_none(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(file), "seed=-1"]) == 2
    assert capsys.readouterr().err == "unifier: seed=-1: a number from 0 to 4294967295 is expected\n"
