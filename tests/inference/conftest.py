"""A small translation run, whose data are gone."""

import io
import random
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from unifier.cli import main
from unifier.inference.translator import Translator

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SIZES = {"vocabulary": 300, "dim": 32, "depth": 1, "decoder_depth": 1, "heads": 2, "ffn_dim": 32}
TRAINING = {"dropout": 0, "r_drop": 0, "beam_width": 1, "tokens": 60_000, "batch_tokens": 256, "learning_rate": 0.01}
SETTINGS = {"target": "de", **SIZES, **TRAINING}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the run as slow."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "run" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def experiment_file() -> Path:
    return Path(__file__).parents[2] / "experiments" / "translation.py"


@pytest.fixture(scope="session")
def run(experiment_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run that translates numbers."""
    folder = tmp_path_factory.mktemp("translate")
    data, draw = folder / "pairs.tsv", random.Random(0)
    sentences = [draw.choices(list(WORDS), k=draw.randint(1, 6)) for _ in range(400)]
    data.write_text("".join(f"{' '.join(words)}\t{' '.join(WORDS[word] for word in words)}\n" for words in sentences))
    settings = [f"{name}={value}" for name, value in {"data": data, **SETTINGS}.items()]
    arguments = ["run", str(experiment_file), *settings, "--out", str(folder / "runs"), "--track", "off"]
    with redirect_stdout(io.StringIO()) as printed:
        assert main(arguments) == 0
    data.unlink()
    return Path(printed.getvalue().splitlines()[-1])


@pytest.fixture(scope="session")
def translator(run: Path) -> Translator:
    return Translator(run)
