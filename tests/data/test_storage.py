"""Ragged arrays return what was appended, padded into batches, and take little memory."""

import gc
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from unifier.data.storage import Crop, MemmapArray, RaggedArray
from unifier.training.memory import peak_memory, reset_peak_memory
from unifier_tokenizers import InputError


def ragged_of(tensors: list[Tensor]) -> RaggedArray:
    ragged = RaggedArray()
    for tensor in tensors:
        ragged.append(tensor)
    return ragged


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_tensors_and_padded_batches(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensors = [torch.randint(1, 9, (*shape, n)).to(dtype) for n in (4, 1, 6, 2)]
    ragged = ragged_of(tensors)
    assert ragged.lengths().tolist() == [4, 1, 6, 2]
    batch, mask = ragged.padded([3, 0, 1], 7)
    assert mask.tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    for row, i in enumerate((3, 0, 1)):
        n = tensors[i].shape[-1]
        assert torch.equal(batch[row, ..., :n], tensors[i])
        assert (batch[row, ..., n:] == 7).all()
    for i, tensor in enumerate(tensors):
        assert torch.equal(ragged[i], tensor), "padding does not change what is stored"


def test_crop_of_a_batch() -> None:
    ragged = ragged_of([torch.arange(n) + 10 * n for n in (9, 2, 4)])
    batch, mask = ragged.padded([2, 1, 0], -1, Crop(torch.tensor([1, 0, 6]), 3))
    assert (batch.tolist(), mask.sum(1).tolist()) == ([[41, 42, 43], [20, 21, -1], [96, 97, 98]], [3, 2, 3])


@pytest.mark.parametrize("other", [torch.zeros(3, 4), torch.zeros(2, 4, dtype=torch.uint8)])
def test_append_of_another_layout_is_refused(other: Tensor) -> None:
    with pytest.raises(InputError, match=r"float32 \(2, n\)"):
        ragged_of([torch.zeros(2, 5), other])
    assert MemmapArray(np.float32, (2, 3)).read().shape == (0, 2, 3)


@pytest.mark.slow
def test_unread_tensors_take_no_memory() -> None:
    tensor, ragged = torch.ones(512, 1024), RaggedArray()  # 2 MiB
    reset_peak_memory("cpu")
    before = peak_memory("cpu")
    for _ in range(100):
        ragged.append(tensor)
    batch, _ = ragged.padded([3, 90], 0)
    assert torch.equal(batch[1], tensor)
    assert peak_memory("cpu") - before < 60 * 2**20


@pytest.mark.slow
def test_full_disk_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored, limits = list[Any](), resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr("sys.unraisablehook", ignored.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    array = MemmapArray(np.uint8)
    array.append(np.zeros(100, np.uint8))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match=str(tmp_path)):
            array.read()
        del array
        gc.collect()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ignored == []


@pytest.mark.slow
def test_view_opens_no_file_and_deleted_array_closes_its_files() -> None:
    ragged = ragged_of([torch.arange(4), torch.arange(2)])
    ragged.lengths()
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    views = [ragged.select([k % 2]) for k in range(20)]
    assert [len(view[0]) for view in views] == 10 * [4, 2]
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open
    files = [part._file for part in ragged._written or ()]  # pyright: ignore[reportPrivateUsage]
    del ragged, views
    gc.collect()
    assert [file.closed for file in files] == [True, True]


LARGE = """
import resource
import sys
from pathlib import Path

import numpy as np
import torch

from unifier.data.cache import load_or_encode
from unifier.data.dataloader import TrainDataLoader
from unifier.datasets.audio_folder import AudioFolder
from unifier_tokenizers import FrameTokenizer


class IndexHead:
    def encode(self, target):
        return torch.tensor("ab".index(target))

    def check_target(self, units, target):
        pass


source = AudioFolder(sys.argv[1])
tokenizer = FrameTokenizer(8, sample_rate=16000, hop_length=0.0005, win_length=0.008, n_mels=64)
size = 180 * tokenizer.encode(source.split("train")[0].input).values.nbytes
status = Path("/proc/self/status").read_text()
used = 1024 * int(status.partition("VmData:")[2].split()[0])
resource.setrlimit(resource.RLIMIT_DATA, (used + 2 * size // 3, -1))
try:
    np.ones(size, np.uint8)
except MemoryError:
    print("too large")
for _ in range(2):  # encoded, and then loaded from the cache
    cached = load_or_encode(source, tokenizer, num_workers=0)
    train, _ = cached.split(source.split("train"), IndexHead())
    batches = TrainDataLoader({"sounds": train}, max_tokens=9000, seed=0, budget={"steps": 40})
    print(cached.is_new, sum(int(batch.values.isfinite().all()) for _, batch in batches))
"""


@pytest.mark.slow
def test_set_larger_than_memory_is_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "cache"))
    lines = ["file,label,fold"]
    for k in range(180):
        soundfile.write(tmp_path / f"{k}.wav", np.random.default_rng(k).uniform(-1, 1, 16000), 16000)
        lines.append(f"{k}.wav,{'ab'[k % 2]},{2 if k < 170 else k // 175}")  # Fold 2 is train.
    (tmp_path / "sounds.csv").write_text("\n".join(lines))
    command = [sys.executable, "-c", LARGE, str(tmp_path / "sounds.csv")]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert [line for line in output if str(tmp_path) not in line] == ["too large", "True 40", "False 40"]
