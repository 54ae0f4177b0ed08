"""Measure how many pictures `Model.predictions` reads: `python -m benchmarks.prediction`.

Other processes change the wall time, so the table has the processor time of one thread.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

import unifier as uf
from benchmarks.runner.device import NO_ACCELERATOR
from benchmarks.runner.tables import publish_section, table_header, table_row
from unifier.data.dataloader import EvalDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.data.inputs import reader_of
from unifier.inference.model import INFERENCE_FACTOR, Model, load
from unifier.models.folder import ModelTask, StoredModel, write_model

COUNT, ROUNDS = 1000, 7
"""Number of pictures of 28 x 28 pixels, and number of rounds, in which all ways are measured in turn."""


def prediction_lines(folder: Path) -> Iterator[str]:
    """Yield table rows with the pictures per second of processor time, for encoded pictures, arrays and files."""
    pictures = [*np.random.default_rng(0).integers(0, 256, (COUNT, 28, 28), np.uint8)]
    paths = [folder / f"{k}.png" for k in range(COUNT)]
    for path, picture in zip(paths, pictures, strict=True):
        Image.fromarray(picture).save(path)
    model = write_small_model(folder / "model")
    (task,) = model.tasks.values()
    units = [task.tokenizer.encode(picture) for picture in pictures]
    split = EncodedSplit(units, [torch.tensor(0)] * COUNT, range(COUNT))
    loader = EvalDataLoader({"a": split}, max_tokens=INFERENCE_FACTOR * model.batch_tokens)

    def validate() -> None:
        with model.inference_mode():
            for _, batch in loader:
                model.network.predict_batch("a", batch)

    ways: dict[str, Callable[[], object]] = {
        "validation, of encoded pictures": validate,
        "`Model.predictions`, of arrays": lambda: [*model.predictions(pictures)],
        "`Model.predictions`, of PNG files": lambda: [*model.predictions(paths)],
        "decoding of PNG files": lambda: [task.reader.prepare(path) for path in paths],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS + 1):
        for name, work in ways.items():
            start = time.process_time()
            work()
            seconds[name].append(time.process_time() - start)
    yield table_header(["pictures of 28 x 28, D = 64, 2 blocks", "a second of one core"])
    yield from (table_row([name, f"{COUNT / median(taken[1:]):,.0f}"]) for name, taken in seconds.items())


def write_small_model(folder: Path) -> Model:
    """Write a model with random weights, and read the model again."""
    tokenizer = uf.PatchTokenizer(64, patch=4, channels=1)
    head = uf.ClassificationHead([str(k) for k in range(10)], 64)
    task = ModelTask(tokenizer, head, reader_of(None, tokenizer), longest=49)
    write_model(folder, StoredModel("digits", uf.Transformer(64, 2, 4, 256), {"a": task}, 4096, {}), "card")
    return load(folder)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__).parse_args()
    os.environ.update(NO_ACCELERATOR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        publish_section("prediction", "\n".join(prediction_lines(Path(temporary))))
