"""Measure start-up time, tokenizing speed, and time outside training steps: `python -m benchmarks.overheads`."""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.runner.device import NO_ACCELERATOR
from benchmarks.runner.tables import publish_section, table_header, table_row
from benchmarks.runner.timing import median_seconds
from unifier.datasets.grammar import GrammarPairs
from unifier.files import read_json
from unifier_tokenizers import Audio, FrameTokenizer, PatchTokenizer, SubwordTokenizer, Vocabulary

ROOT = Path(__file__).parents[1]
PROGRAMS = {
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


def start_up_lines() -> Iterator[str]:
    """Yield table rows with the total run time of each program, in seconds."""
    yield table_header(["start", "seconds"])
    seconds = median_seconds([partial(_run_program, program) for program in PROGRAMS.values()])
    yield from (table_row([name, f"{taken:.2f}"]) for name, taken in zip(PROGRAMS, seconds, strict=True))


def _run_program(program: str) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, cwd=ROOT)


def tokenizing_lines() -> Iterator[str]:
    """Yield table rows with the tokenizing speed on one core, for each kind of input."""
    yield table_header(["tokenizing", "a second, on one core"])
    texts = [example.input for example in GrammarPairs().split("train")]
    subwords = SubwordTokenizer(Vocabulary.fit(texts, size=600), 64)
    count = sum(len(subwords.encode(text).values) for text in texts)
    pictures = list(torch.randint(256, (500, 32, 32, 3), dtype=torch.uint8).numpy())
    patches = PatchTokenizer(64, patch=4, channels=3)
    sound = Audio(torch.randn(30 * 22050) / 10, 22050)
    frames = FrameTokenizer(64, sample_rate=16000)
    works: dict[str, tuple[int, Callable[[], object]]] = {
        "subwords": (count, lambda: [subwords.encode(text) for text in texts]),
        "pictures of 32 x 32": (500, lambda: [patches.encode(picture) for picture in pictures]),
        "seconds of sound, resampled from 22,050 to 16,000 Hz": (30, lambda: frames.encode(sound)),
    }
    seconds = median_seconds([work for _, work in works.values()])
    for (name, (amount, _)), taken in zip(works.items(), seconds, strict=True):
        yield table_row([name, f"{amount / taken:,.0f}"])


def run_lines() -> Iterator[str]:
    """Yield table rows with three percentages: time spent waiting for data, time spent outside steps, and MFU."""
    yield table_header(["run", "waiting for data", "outside steps", "MFU"])
    for name, settings in RUNS.items():
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "unifier.cli", "run", *settings, "--track", "off", "--out", out]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
            (path,) = Path(out).glob("*/*/result.json")
            speed = read_json(path)["speed"]
        shares = [speed[key] for key in ("share_waiting_for_data", "share_outside_steps", "mfu")]
        yield table_row([name, *(f"{share:.1%}" for share in shares)])


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.overheads", description=__doc__).parse_args()
    os.environ.update(NO_ACCELERATOR)
    torch.set_num_threads(1)
    publish_section("overheads", "\n".join([*start_up_lines(), "", *tokenizing_lines(), "", *run_lines()]))
