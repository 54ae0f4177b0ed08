"""A function and a class of a notebook's cell train, resume and load, although no file has their code."""

from pathlib import Path
from signal import SIGINT, raise_signal
from typing import Any

import numpy as np
import pytest
import torch

import unifier as uf
from unifier.datasets import Digits
from unifier.training.result import Interrupted
from unifier_tokenizers import InputError

CELL = '''
class Rows(uf.Tokenizer):
    """One token per row of a digit."""

    def __init__(self, dim: int, scale: float = 16.0) -> None:
        super().__init__(dim)
        self.scale, self.project = scale, torch.nn.Linear(8, dim)

    def encode(self, raw):
        return uf.Units(torch.tensor(raw).float().reshape(8, 8).T.contiguous(), torch.arange(8)[None])

    def embed(self, values, positions):
        on_embed()
        return self.project(values.mT / self.scale).mT


def rows(*, dim: int = 8) -> uf.Experiment:
    """Classify digits."""
    source = Digits()
    task = uf.Task(source, Rows(dim), uf.ClassificationHead(source.labels, dim))
    training = uf.Training(steps=6, batch_tokens=256, num_validations=3, num_workers=0)
    return uf.Experiment(uf.Transformer(dim, 1, 2, dim), {"digits": task}, training)
'''


@pytest.mark.slow
def test_cell_trains_resumes_and_loads(tmp_path: Path) -> None:
    calls, stop = list[int](), list[int]()

    def press_ctrl_c() -> None:
        calls.append(1)
        if len(calls) in stop:
            raise_signal(SIGINT)

    cell: dict[str, Any] = {
        "__name__": "__main__",
        "uf": uf,
        "Digits": Digits,
        "torch": torch,
        "on_embed": press_ctrl_c,
    }
    exec(compile(CELL, "/tmp/ipykernel_1/2.py", "exec"), cell)
    [whole] = uf.run(cell["rows"], out=tmp_path / "whole", track="off")
    stop[:] = [len(calls) + len(calls) // 3]  # A third of the calls is in the middle of training.
    with pytest.raises(Interrupted):
        uf.run(cell["rows"], out=tmp_path / "stopped", track="off")
    [folder] = (tmp_path / "stopped" / "rows").iterdir()
    [resumed] = uf.run(cell["rows"], resume=folder, track="off")
    picture = [np.arange(64, dtype=np.uint8).reshape(8, 8) % 17]
    models = [uf.load(result.folder, classes=[cell["Rows"]]) for result in (whole, resumed)]
    answers = [next(iter(model.predictions(picture))) for model in models]
    torch.testing.assert_close(*answers, rtol=0, atol=0)
    with pytest.raises(InputError, match=r"classes=\[Rows\]"):
        uf.load(whole.folder)
