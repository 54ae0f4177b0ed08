"""`python -m benchmarks.alone`: what has no peer to race: starting, tokenizing, and a whole run's share of waiting."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.racing.device import HIDDEN
from benchmarks.racing.tables import head, keep, row
from benchmarks.racing.timing import in_turn
from unifier.datasets.grammar import GrammarPairs
from unifier.files import read_json
from unifier_tokenizers import Audio, FrameTokenizer, PatchTokenizer, SubwordTokenizer, Vocabulary

ROOT = Path(__file__).parents[1]
STARTS = {
    "`import unifier`": "import unifier",
    "`import unifier.inference.translate`, with torch": "import unifier.inference.translate",
    "`import unifier.training.lightning_module`, with torch and Lightning": "import unifier.training.lightning_module",
    "`import timm`": "import timm",
    "`import transformers`, and Marian's model": "from transformers import MarianMTModel",
    "`unifier --help`": "from unifier.cli import main; main(['--help'])",
}
RUNS = {
    "digits, float32": ["experiments/pictures.py", "tokens=600000", "precision=float32"],
    "grammar, bf16": ["experiments/translation.py", "tokens=300000", "r_drop=0", "beam_width=1", "precision=bf16"],
}


def start(program: str) -> None:
    """Run a program in a process of its own."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, cwd=ROOT)


def starts() -> Iterator[str]:
    """Seconds from nothing to ready."""
    yield head(["start", "seconds"])
    seconds = in_turn([partial(start, program) for program in STARTS.values()])
    yield from (row([name, f"{took:.2f}"]) for name, took in zip(STARTS, seconds, strict=True))


def tokenizing() -> Iterator[str]:
    """How much one core encodes in a second."""
    yield head(["tokenizing", "a second, on one core"])
    texts = [example.input for example in GrammarPairs().split("train")]
    subwords = SubwordTokenizer(Vocabulary.fit(texts, size=600), 64)
    count = sum(len(subwords.encode(text).values) for text in texts)
    pictures = list(torch.randint(256, (500, 32, 32, 3), dtype=torch.uint8).numpy())
    patches = PatchTokenizer(64, patch=4, channels=3)
    sound = Audio(torch.randn(30 * 22050) / 10, 22050)
    frames = FrameTokenizer(64, sample_rate=16000)
    works: dict[str, tuple[int, Callable[[], object]]] = {
        "subwords": (count, lambda: [subwords.encode(text) for text in texts]),
        "pictures of 32 x 32": (500, lambda: [patches.encode(one) for one in pictures]),
        "seconds of sound, resampled from 22,050 to 16,000 Hz": (30, lambda: frames.encode(sound)),
    }
    seconds = in_turn([work for _, work in works.values()])
    for (name, (amount, _)), took in zip(works.items(), seconds, strict=True):
        yield row([name, f"{amount / took:,.0f}"])


def shares() -> Iterator[str]:
    """Of whole runs: what share of training was spent waiting for data, and outside forward, backward and optimizer."""
    yield head(["run", "waiting for data", "outside steps", "share of the peak"])
    for name, asked in RUNS.items():
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "unifier.cli", "run", *asked, "--track", "off", "--out", out]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
            (result,) = Path(out).glob("*/*/result.json")
            speed = read_json(result)["speed"]
        found = [speed[key] for key in ("share_waiting_for_data", "share_outside_steps", "mfu")]
        yield row([name, *(f"{share:.1%}" for share in found)])


if __name__ == "__main__":
    os.environ.update(HIDDEN)
    torch.set_num_threads(1)
    keep("alone", "\n".join([*starts(), "", *tokenizing(), "", *shares()]))
