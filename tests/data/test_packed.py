import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from unifier.data.storage import MemmapArray, RaggedArray
from unifier.training.memory import peak_memory, reset_peak_memory
from unifier_tokenizers import InputError

SIDES: list[tuple[int, ...]] = [(), (3,), (2, 3)]


def packed_of(parts: list[Tensor]) -> RaggedArray:
    packed = RaggedArray()
    for part in parts:
        packed.append(part)
    return packed


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_each_tensor_comes_back_and_so_does_a_padded_batch(sides: tuple[int, ...], dtype: torch.dtype) -> None:
    parts = [torch.randint(1, 9, (*sides, n)).to(dtype) for n in (4, 1, 6, 2)]
    packed = packed_of(parts)
    assert packed.lengths().tolist() == [4, 1, 6, 2]
    for i, part in enumerate(parts):
        assert torch.equal(packed[i], part)
    found, real = packed.padded([3, 0, 1], 7)
    assert real.tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    for row, i in enumerate((3, 0, 1)):
        n = parts[i].shape[-1]
        assert torch.equal(found[row, ..., :n], parts[i])
        assert (found[row, ..., n:] == 7).all()


def test_padding_a_batch_leaves_what_is_stored() -> None:
    packed = packed_of([torch.ones(2), torch.ones(3)])
    packed.padded([0, 1], -5)
    assert torch.equal(packed[1], torch.ones(3))


def test_nothing_can_be_mapped() -> None:
    assert MemmapArray(np.float32, (2, 3)).read().shape == (0, 2, 3)


@pytest.mark.parametrize("other", [torch.zeros(3, 4), torch.zeros(2, 4, dtype=torch.uint8)])
def test_one_that_is_not_as_the_first_is_refused(other: Tensor) -> None:
    packed = packed_of([torch.zeros(2, 5)])
    with pytest.raises(InputError, match=r"stands beside one of float32 \(2, n\): encode all alike"):
        packed.append(other)


def test_more_than_is_read_takes_no_memory() -> None:
    part, packed = torch.ones(512, 1024), RaggedArray()  # 2 MiB
    reset_peak_memory("cpu")
    before = peak_memory("cpu")
    for _ in range(100):
        packed.append(part)
    found, _ = packed.padded([3, 90], 0)
    assert torch.equal(found[1], part)
    assert peak_memory("cpu") - before < 60 * 2**20


def test_a_view_opens_no_file() -> None:
    packed = packed_of([torch.arange(4), torch.arange(2)])
    packed.lengths()
    opened = len(list(Path("/proc/self/fd").iterdir()))
    views = [packed.select([k % 2]) for k in range(20)]
    assert [len(view[0]) for view in views] == 10 * [4, 2]
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_one_that_is_dropped_unread_leaves_no_file_open() -> None:
    packed = packed_of([torch.zeros(4, 10)])
    files = [part._file for part in packed._written or ()]  # pyright: ignore[reportPrivateUsage]
    del packed
    gc.collect()
    assert [file.closed for file in files] == [True, True]


LARGE = """
import resource
import sys
from pathlib import Path

import numpy as np
import torch

from unifier.data.cache import keep_units
from unifier.data.dataloader import TrainingBatches
from unifier.datasets.audio_folder import AudioFolder
from unifier_tokenizers import FrameTokenizer


class Place:
    def encode(self, target):
        return torch.tensor("ab".index(target))


source = AudioFolder(sys.argv[1])
tokenizer = FrameTokenizer(8, rate=16000, hop=0.0005, window=0.008, bands=64)
size = 180 * tokenizer.encode(source.split("train")[0].input).values.nbytes
status = Path("/proc/self/status").read_text()
taken = 1024 * int(status.partition("VmData:")[2].split()[0])
resource.setrlimit(resource.RLIMIT_DATA, (taken + 2 * size // 3, -1))
try:
    np.ones(size, np.uint8)
except MemoryError:
    print(f"{size} bytes are too many")
for _ in range(2):  # as it is encoded, and as it was kept
    kept = keep_units(source, tokenizer, num_workers=0)
    train, _ = kept.split(source.split("train"), Place())
    batches = TrainingBatches({"sounds": train}, columns=9000, seed=0, budget={"steps": 40})
    print(sum(int(batch.values.isfinite().all()) for _, batch in batches), "steps")
"""


def test_more_sound_than_memory_is_encoded_kept_and_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "cache"))
    lines = ["file,label,fold"]
    for k in range(180):
        soundfile.write(tmp_path / f"{k}.wav", np.random.default_rng(k).uniform(-1, 1, 16000), 16000)
        lines.append(f"{k}.wav,{'ab'[k % 2]},{2 if k < 170 else k // 175}")  # the third fold trains
    (tmp_path / "sounds.csv").write_text("\n".join(lines))
    command = [sys.executable, "-c", LARGE, str(tmp_path / "sounds.csv")]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert [line.split(" ", 1)[1] for line in said.splitlines() if line[0].isdigit()] == [
        "bytes are too many",
        *["steps"] * 2,
    ]
    assert "already encoded" in said
