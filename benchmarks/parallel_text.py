"""Measure the time and memory for loading text pairs from a file: `python -m benchmarks.parallel_text [PAIRS ...]`.

For each number of pairs, the program runs four stages:

- Find and clean the lines of the file.
- Read 20,000 pairs at random.
- Encode all pairs and plan the batches of a run.
- Collate 100 batches.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.runner.tables import publish_section, table_header, table_row
from unifier.data.dataloader import TrainDataLoader
from unifier.data.encoding import encode_split
from unifier.data.source import readable_examples
from unifier.datasets.parallel_text import ParallelText
from unifier.heads.transformer_decoder import TranslationHead
from unifier.training.memory import peak_memory, reset_peak_memory
from unifier_tokenizers import SubwordTokenizer, Vocabulary

SIZES = [100_000, 1_000_000]
WORDS = 20_000
"""The number of different words in the generated texts."""
SHARE_REPEATED = 0.05
SAMPLE = 20_000
"""The number of pairs for learning the vocabulary, and the number of pairs that are read at random."""


def generate_pairs(path: Path, count: int) -> None:
    """Write a table of text pairs with 3 to 20 words. 5 % of the texts repeat the previous text."""
    rng = np.random.RandomState(0)
    words = np.array([f"w{k:x}" for k in range(WORDS)])
    with path.open("w", encoding="utf-8") as file:
        for _ in range(0, count, 1000):
            ends = rng.randint(3, 21, 1000).cumsum()
            # The exponent makes some words much more frequent than other words, as in real text.
            drawn = words[(WORDS * rng.rand(ends[-1]) ** 3).astype(int)]
            texts = [" ".join(part) for part in np.split(drawn, ends[:-1])]
            repeated = rng.rand(1000) < SHARE_REPEATED
            texts = [texts[max(k - 1, 0)] if repeated[k] else text for k, text in enumerate(texts)]
            file.writelines(f"{text}\t{text.upper()}\n" for text in texts)


def stages(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name and the function of each stage, in execution order."""
    source = ParallelText(path, length_ratio=3, duplicates="drop")
    yield "found and cleaned", lambda: source.split("train")
    train = source.split("train")
    indices = np.random.RandomState(0).randint(len(train), size=SAMPLE).tolist()
    yield f"{SAMPLE:,} read at random", lambda: [train[index] for index in indices]
    texts = (text for pair in readable_examples(train, max_examples=SAMPLE) for text in pair)
    vocabulary = Vocabulary.fit(texts, size=8000)
    tokenizer = SubwordTokenizer(vocabulary, 16)
    head = TranslationHead(vocabulary, 16, depth=1, heads=1, ffn_dim=16)
    loaders = list[TrainDataLoader]()

    def encode() -> None:
        split, _ = encode_split(train, tokenizer, head, num_workers=0)
        loaders.append(TrainDataLoader({"a": split}, max_tokens=4096, seed=0, budget={"steps": 100}))

    yield "encoded, and batches planned", encode
    yield "100 batches collated", lambda: list(loaders[0])


def measure_stages(path: Path, count: int) -> None:
    """Print a table row for each stage."""
    for name, work in stages(path):
        reset_peak_memory("cpu")
        before, start = peak_memory("cpu"), time.perf_counter()
        work()
        seconds, growth = time.perf_counter() - start, (peak_memory("cpu") - before) / 2**20
        file_size = path.stat().st_size / 2**20
        print(table_row([f"{count:,}", name, f"{seconds:,.1f}", f"{growth:,.0f}", f"{file_size:,.0f}"]))


def parallel_text_lines(sizes: list[int]) -> Iterator[str]:
    """Yield the table rows for each number of pairs. Each number of pairs is measured in a separate process."""
    yield table_header(["pairs", "stage", "seconds", "memory, MB", "the file, MB"], (1,))
    for count in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pairs.tsv"
            generate_pairs(path, count)
            command = [sys.executable, "-m", "benchmarks.parallel_text", str(count), "--file", str(path)]
            yield subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel_text", description=__doc__)
    parser.add_argument("pairs", type=int, nargs="*", default=SIZES, help="numbers of pairs (default: %(default)s)")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.file:
        measure_stages(options.file, *options.pairs)
    else:
        publish_section("parallel text", "\n".join(parallel_text_lines(options.pairs)))
