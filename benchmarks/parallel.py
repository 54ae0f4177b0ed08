"""Compare two processes of one thread with one process of two threads: `python -m benchmarks.parallel`.

The programs are real runs on two cores, with the sizes of the cases `vit` and `translation`. They alternate.
"""

import argparse
import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from socket import socket
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks.cases.vit import SHAPE
from benchmarks.models.sequences import LABEL_SMOOTHING, SIZE
from benchmarks.runner.device import NO_ACCELERATOR, fast_dtypes
from benchmarks.runner.tables import publish_section, table_header, table_row
from unifier.data.source import Example, SplitName
from unifier.experiment import Experiment, Precision, Task, Training
from unifier.files import read_json
from unifier.heads.classification import ClassificationHead
from unifier.heads.transformer_decoder import TranslationHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer, SubwordTokenizer, Vocabulary

ROOT = Path(__file__).parents[1]

TIMES = "BENCHMARK_COMMUNICATION"
"""The variable with the file to which each process writes the seconds and the number of its reductions."""

STEPS, LARGE_BYTES = 60, 64 * 2**20

VARIANTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "1 process": ([], {"OMP_NUM_THREADS": "2"}),
    "2 processes": (["--devices", "2"], {"OMP_NUM_THREADS": "1"}),
}


class RandomExamples:
    """Random pictures with labels, or random texts with translations."""

    def __init__(self, examples: Sequence[Example], labels: Sequence[str] = ()) -> None:
        self.name, self.labels = "random_examples", tuple(labels)
        self._examples = examples

    def split(self, name: SplitName) -> Sequence[Example]:
        """Return all examples as train, and a few examples as val or test."""
        return self._examples if name == "train" else self._examples[:32]


def settings(steps: int, batch_tokens: int) -> Training:
    """Return the settings of both cases, with the fastest precision."""
    time_reductions()
    precision: Precision = "bf16" if torch.bfloat16 in fast_dtypes() else "float32"
    return Training(
        steps=steps, batch_tokens=batch_tokens, optimizer="adamw", precision=precision, num_validations=1, num_workers=0
    )


def vit(*, steps: int = STEPS) -> Experiment:
    """Train the vision transformer of the case `vit`."""
    rng, labels = np.random.default_rng(0), [str(k) for k in range(SHAPE.classes)]
    pictures = rng.integers(0, 256, (4 * SHAPE.batch, SHAPE.height, SHAPE.width, 1), np.uint8)
    source = RandomExamples([Example(picture, labels[k % 10]) for k, picture in enumerate(pictures)], labels)
    side = SHAPE.patch[0]
    tokenizer = PatchTokenizer(SHAPE.dim, patch=side, channels=1, class_token=True, length=SHAPE.height // side)
    trunk = Transformer(SHAPE.dim, SHAPE.depth, SHAPE.heads, SHAPE.ffn_dim)
    task = Task(source, tokenizer, ClassificationHead(labels, SHAPE.dim, pooling="cls"))
    return Experiment(trunk, {"vit": task}, settings(steps, SHAPE.batch * ((SHAPE.height // side) ** 2 + 1)))


def translation(*, steps: int = STEPS) -> Experiment:
    """Train the translator of the case `translation` on random texts as long as captions."""
    rng, words = Random(0), [f"w{k}" for k in range(SIZE.vocabulary - 8)]

    def text() -> str:
        return " ".join(rng.choices(words, k=min(max(round(rng.gauss(14, 4.5)), 4), 40)))

    vocabulary = Vocabulary.fit([" ".join(words)], size=SIZE.vocabulary, level="word")
    tokenizer = SubwordTokenizer(vocabulary, SIZE.dim, dropout=SIZE.dropout)
    given: dict[str, Any] = {"norm": "post", "activation": "relu", "dropout": SIZE.dropout}
    trunk = Transformer(SIZE.dim, SIZE.depth, SIZE.heads, SIZE.ffn_dim, **given)
    head = TranslationHead(
        vocabulary,
        SIZE.dim,
        depth=SIZE.depth,
        heads=SIZE.heads,
        ffn_dim=SIZE.ffn_dim,
        label_smoothing=LABEL_SMOOTHING,
        embedding=tokenizer.embedding,
        **given,
    )
    source = RandomExamples([Example(text(), text()) for _ in range(4000)])
    return Experiment(trunk, {"translation": Task(source, tokenizer, head)}, settings(steps, 2048))


def time_reductions() -> None:
    """Write the times of the reductions at the end of this process. Waiting for the other process is included."""
    if (path := os.environ.get(TIMES)) is None:
        return
    reduce, seconds = dist.all_reduce, list[float]()

    def timed(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = reduce(*args, **options)
        seconds.append(time.perf_counter() - start)
        return result

    dist.all_reduce = timed
    atexit.register(
        lambda: Path(f"{path}.{os.environ.get('RANK', os.environ.get('LOCAL_RANK', '0'))}").write_text(
            json.dumps(seconds)
        )
    )


def measure(case: str, variant: str, steps: int) -> dict[str, float]:
    """Run a case, and return its speed, the seconds of a step, its share of reductions and its number of weights."""
    arguments, threads = VARIANTS[variant]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "unifier", "run", f"benchmarks/parallel.py:{case}", f"steps={steps}"]
        command += ["--track", "off", "--out", str(folder), *arguments]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tokenizers")])
        environment = {**os.environ, **threads, "PYTHONPATH": paths, TIMES: str(folder / "times"), **NO_ACCELERATOR}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
        (path,) = folder.glob("*/*/result.json")
        result = read_json(path)
        seconds = result["budget"]["seconds"]
        times = [sum(json.loads(file.read_text())[:steps]) for file in folder.glob("times.*")]
    return {
        "speed": result["speed"]["tokens_per_second"],
        "step": seconds / steps,
        "share": median(times) / seconds if times else 0.0,
        "parameters": result["parameters"]["total"],
    }


def reduction_seconds(rank: int, port: int, sizes: Sequence[int], results: Any) -> None:
    """Measure the reduction of messages of some sizes in bytes in one of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for size in sizes:
        tensor, seconds = torch.ones(size // 4), list[float]()
        for _ in range(12):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            seconds.append(time.perf_counter() - start)
        if not rank:
            results.put(median(seconds[2:]))
    dist.destroy_process_group()


def measure_reductions(sizes: Sequence[int]) -> list[float]:
    """Return the median seconds of a reduction between two processes of this machine for each size in bytes."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = [(rank, port, sizes, results) for rank in (0, 1)]
    processes = [context.Process(target=reduction_seconds, args=given) for given in arguments]
    for process in processes:
        process.start()
    found = [results.get(timeout=300) for _ in sizes]
    for process in processes:
        process.join()
    return found


def parallel_lines(rounds: int, steps: int) -> list[str]:
    """Return table rows with the speed of both variants, and the share of communication beside its lower bound."""
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    cases = ("vit", "translation")
    for _ in range(rounds):
        for case in cases:
            for variant in VARIANTS:
                found.setdefault((case, variant), []).append(measure(case, variant, steps))
    header = ["case", *(f"{variant}, tokens/s" for variant in VARIANTS), "ratio", "MB per step"]
    lines = [table_header([*header, "communication", "reduction alone", "by bytes"])]
    sizes = [4 * int(found[case, "2 processes"][0]["parameters"]) for case in cases]
    *alone, large = measure_reductions([*sizes, LARGE_BYTES])
    for case, size, own in zip(cases, sizes, alone, strict=True):
        speeds = [median(run["speed"] for run in found[case, variant]) for variant in VARIANTS]
        step, share = (median(run[key] for run in found[case, "2 processes"]) for key in ("step", "share"))
        shares = [share, own / step, size / LARGE_BYTES * large / step]
        cells = [f"{speeds[0]:,.0f}", f"{speeds[1]:,.0f}", f"{speeds[1] / speeds[0]:.2f}", f"{size / 1e6:.1f}"]
        lines.append(table_row([case, *cells, *(f"{each:.1%}" for each in shares)]))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of runs of each variant (default: 5)")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of steps of a run (default: %(default)s)")
    options = parser.parse_args()
    publish_section("parallel", "\n".join(parallel_lines(options.rounds, options.steps)))
