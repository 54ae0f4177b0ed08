"""Measure the constants that limit runs on many devices: `python -m benchmarks.limits`.

The guide's page `scaling.md` has the formulas of the constants.
"""

import argparse
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.parallel import measure_reductions
from benchmarks.runner.tables import publish_section, table_header, table_row
from unifier.data.dataloader import epoch_batches
from unifier.datasets.grammar import GrammarPairs
from unifier.distributed import to_bytes
from unifier.heads.text_metrics import text_scores
from unifier.training.memory import peak_memory, reset_peak_memory
from unifier_tokenizers import Audio, FrameTokenizer, PatchTokenizer

ROOT = Path(__file__).parents[1]
EXAMPLES, PREDICTIONS, TEXTS = 2_000_000, 100_000, 1000
SMALL_BYTES, LARGE_BYTES = 1024, 64 * 2**20


def reduction_lines() -> Iterator[str]:
    """Yield the latency and the bandwidth of a reduction between two processes of this machine."""
    small, large = measure_reductions([SMALL_BYTES, LARGE_BYTES])
    yield table_row(["latency of a reduction, two processes", f"{small * 1e3:.2f} ms"])
    yield table_row(["bandwidth of a reduction of 64 MB, two processes", f"{LARGE_BYTES / large / 1e9:.2f} GB/s"])


def plan_epoch() -> None:
    """Print the peak memory and the seconds of the plan of one epoch, per example, in this process."""
    lengths = np.random.default_rng(0).integers(10, 60, (EXAMPLES, 2)).astype(np.int32)
    reset_peak_memory("cpu")
    before = peak_memory("cpu") - lengths.nbytes
    start = time.perf_counter()
    for _ in epoch_batches(lengths, 4096, torch.Generator().manual_seed(0)):
        pass
    seconds = time.perf_counter() - start
    print((peak_memory("cpu") - before) / EXAMPLES, seconds / EXAMPLES)


def plan_lines() -> Iterator[str]:
    """Yield the memory and the time of the plan, measured in an own process."""
    program = "from benchmarks.limits import plan_epoch; plan_epoch()"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    size, seconds = map(float, output.stdout.split())
    yield table_row(["peak memory of the plan, per example and process", f"{size:.0f} bytes"])
    yield table_row(["time of the plan, per example and epoch", f"{seconds * 1e6:.2f} µs"])


def encoding_lines() -> Iterator[str]:
    """Yield the time of encoding on one core, per example."""
    pictures = list(torch.randint(256, (300, 32, 32, 3), dtype=torch.uint8).numpy())
    patches = PatchTokenizer(64, patch=4, channels=3)
    start = time.perf_counter()
    for picture in pictures:
        patches.encode(picture)
    yield table_row(["encoding of a picture of 32 x 32", f"{(time.perf_counter() - start) / 300 * 1e6:,.0f} µs"])
    frames, sound = FrameTokenizer(64, sample_rate=16000), Audio(torch.randn(30 * 16000) / 10, 16000)
    start = time.perf_counter()
    frames.encode(sound)
    yield table_row(["encoding of a second of sound", f"{(time.perf_counter() - start) / 30 * 1e3:.1f} ms"])


def scoring_lines() -> Iterator[str]:
    """Yield the size and the time of the predictions that rank 0 gathers, and the time of BLEU."""
    probabilities = dict(enumerate(torch.rand(PREDICTIONS, 10)))
    start = time.perf_counter()
    content = to_bytes(probabilities)
    pickle.loads(content)
    seconds = (time.perf_counter() - start) / PREDICTIONS
    yield table_row(["gathered prediction of 10 classes", f"{len(content) / PREDICTIONS:.0f} bytes"])
    yield table_row(["packing and unpacking of a prediction", f"{seconds * 1e6:.1f} µs"])
    targets = [example.target for example in GrammarPairs().split("train")]
    texts = (targets * (TEXTS // len(targets) + 1))[:TEXTS]
    start = time.perf_counter()
    text_scores(texts, texts, "fr")
    yield table_row(["BLEU and chrF on rank 0, per text", f"{(time.perf_counter() - start) / TEXTS * 1e6:.0f} µs"])


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__).parse_args()
    torch.set_num_threads(1)
    lines = [*reduction_lines(), *plan_lines(), *encoding_lines(), *scoring_lines()]
    publish_section("limits", "\n".join([table_header(["constant", "value"]), *lines]))
