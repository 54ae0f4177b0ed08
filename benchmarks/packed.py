"""Measure training on packed shards with little room on the local disk: `python -m benchmarks.packed`.

Runs on ten shards in a folder alternate with runs on the same shards at a URL, with room for three of the ten shards.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.runner.device import NO_ACCELERATOR
from benchmarks.runner.tables import publish_section, table_header, table_row
from unifier.data.packed import PackedSource
from unifier.data.packing import PackOptions, PackOrigin, pack
from unifier.data.shard_folder import ROOM_VARIABLE
from unifier.data.source import Example, SplitName
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.launch import run
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PatchTokenizer

SHARDS, PER_SHARD, ROOM, WINDOW, EPOCHS = 10, 2048, 3, 2, 2
SIDE, PATCH, DIM = 28, 4, 64
LABELS = tuple("0123456789")
SHARD_FILES = "train-*.safetensors"


class RandomPictures:
    """Random pictures with random labels."""

    name, labels = "random_pictures", LABELS

    def split(self, name: SplitName) -> Sequence[Example]:
        """Return enough pictures for `SHARDS` shards of train, or a few pictures of val or test."""
        rng, count = np.random.default_rng(0), SHARDS * PER_SHARD if name == "train" else 200
        pictures = rng.integers(0, 256, (count, SIDE, SIDE, 1), np.uint8)
        return [Example(picture, LABELS[k % len(LABELS)]) for k, picture in enumerate(pictures)]


def on_shards(*, address: str) -> Experiment:
    """Train a small classifier on packed pictures. A small model reads the data faster than a large model."""
    tokenizer = PatchTokenizer(DIM, patch=PATCH, channels=1)
    task = Task(PackedSource(address), tokenizer, ClassificationHead(LABELS, DIM))
    training = Training(epochs=EPOCHS, batch_tokens=4096, num_validations=1, num_workers=0)
    return Experiment(Transformer(DIM, 2, 2, 128), {"pictures": task}, training)


def pack_pictures(folder: Path) -> int:
    """Pack the pictures into `SHARDS` shards, and return the size of the largest shard in bytes."""
    tokenizer = PatchTokenizer(DIM, patch=PATCH, channels=1)
    pictures = RandomPictures()
    tokenizer.fit(example.input for example in pictures.split("train"))
    units = tokenizer.encode(pictures.split("val")[0].input)
    size = PER_SHARD * (units.values.nbytes + units.positions.nbytes + 8)
    options = PackOptions(size / 1e6, WINDOW, num_workers=0)
    pack(pictures, tokenizer, ClassificationHead(LABELS, DIM), None, str(folder), PackOrigin("", {}, {}), options)
    sizes = [path.stat().st_size for path in folder.glob(SHARD_FILES)]
    assert len(sizes) == SHARDS
    return max(sizes)


def packed_lines(rounds: int) -> list[str]:
    """Return table rows with the speed of both kinds of runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        largest = pack_pictures(folder / "pack")
        os.environ[ROOM_VARIABLE] = str((ROOM * largest + 1) / 1e9)
        kinds = {"in a folder, read in place": "", f"at a URL, with room for {ROOM} of {SHARDS} shards": "file://"}
        speeds, waits = ({kind: list[float]() for kind in kinds} for _ in range(2))
        for number in range(rounds + 1):
            for kind, protocol in kinds.items():
                os.environ["UNIFIER_CACHE"] = str(folder / f"cache {number}")
                out = folder / "runs"
                (result,) = run(on_shards, out=out, track="off", address=f"{protocol}{folder / 'pack'}")
                if number:  # The first round warms up.
                    speeds[kind].append(result.speed["tokens_per_second"])
                    waits[kind].append(result.speed["share_waiting_for_data"])
    lines = [table_header(["shards", "tokens a second", "from", "to", "waiting for data", "speed"])]
    local = median(next(iter(speeds.values())))
    for kind, measured in speeds.items():
        cells = [f"{value:,.0f}" for value in (median(measured), min(measured), max(measured))]
        lines.append(table_row([kind, *cells, f"{median(waits[kind]):.1%}", f"{median(measured) / local:.2f}"]))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of measured runs of each kind (default: 5)")
    options = parser.parse_args()
    os.environ.update(NO_ACCELERATOR)
    torch.set_num_threads(1)
    publish_section("packed", "\n".join(packed_lines(options.rounds)))
