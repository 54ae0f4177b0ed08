"""`python -m benchmarks.parallel_text [PAIRS ...]`: seconds and memory from files of so many pairs to batches.

Each size goes the whole way: the file's lines found and cleaned, some read at random, all encoded, the batches of a run
planned and the first put together.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.racing.tables import head, keep, row
from unifier.data.dataloader import TrainDataLoader
from unifier.data.encoding import encode_split
from unifier.data.source import readable_examples
from unifier.datasets.parallel_text import ParallelText
from unifier.heads.transformer_decoder import TranslationHead
from unifier.training.memory import peak_memory, reset_peak_memory
from unifier_tokenizers import SubwordTokenizer, Vocabulary

SIZES = (100_000, 1_000_000)
WORDS = 20_000
SHARE_REPEATED = 0.05
READ = 20_000
"""Pairs that a vocabulary is learned from, and that are read at random."""


def generate(path: Path, count: int) -> None:
    """A table of pairs of 3 to 20 words, of which some repeat the one before."""
    draw = np.random.RandomState(0)
    words = np.array([f"w{k:x}" for k in range(WORDS)])
    with path.open("w", encoding="utf-8") as file:
        for _ in range(0, count, 1000):
            ends = draw.randint(3, 21, 1000).cumsum()
            drawn = words[(WORDS * draw.rand(ends[-1]) ** 3).astype(int)]  # some words far oftener than others
            texts = [" ".join(part) for part in np.split(drawn, ends[:-1])]
            again = draw.rand(1000) < SHARE_REPEATED
            texts = [texts[max(k - 1, 0)] if again[k] else text for k, text in enumerate(texts)]
            file.writelines(f"{text}\t{text.upper()}\n" for text in texts)


def stages(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is done one after the other, by name."""
    source = ParallelText(path, length_ratio=3, duplicates="drop")
    yield "found and cleaned", lambda: source.split("train")
    train = source.split("train")
    some = np.random.RandomState(0).randint(len(train), size=READ).tolist()
    yield f"{READ:,} read at random", lambda: [train[k] for k in some]
    texts = (text for pair in readable_examples(train, max_examples=READ) for text in pair)
    vocabulary = Vocabulary.fit(texts, size=8000)
    road = SubwordTokenizer(vocabulary, 16), TranslationHead(vocabulary, 16, depth=1, heads=1, ffn_dim=16)
    found = list[TrainDataLoader]()

    def encode() -> None:
        split, _ = encode_split(train, *road, num_workers=0)
        found.append(TrainDataLoader({"a": split}, max_tokens=4096, seed=0, budget={"steps": 100}))

    yield "encoded, and batches planned", encode
    yield "100 batches put together", lambda: list(found[0])


def measure(path: Path, count: int) -> None:
    """Print a line of the table for each stage."""
    for name, work in stages(path):
        reset_peak_memory("cpu")
        before, start = peak_memory("cpu"), time.perf_counter()
        work()
        seconds, grown = time.perf_counter() - start, (peak_memory("cpu") - before) / 2**20
        print(row([f"{count:,}", name, f"{seconds:,.1f}", f"{grown:,.0f}", f"{path.stat().st_size / 2**20:,.0f}"]))


def table(sizes: list[int]) -> Iterator[str]:
    """Each size in a process of its own."""
    yield head(["pairs", "stage", "seconds", "memory, MB", "the file, MB"], (1,))
    for count in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pairs.tsv"
            generate(path, count)
            command = [sys.executable, "-m", "benchmarks.parallel_text", "--one", str(path), str(count)]
            yield subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--one" in sys.argv:
        measure(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        keep("parallel text", "\n".join(table([int(count) for count in sys.argv[1:]] or list(SIZES))))
