"""Packed data give the batches of local data, an exact plan, and one line for each fault."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.conftest import refused
from unifier.data import packed, shard_folder
from unifier.data.dataloader import TrainDataLoader
from unifier.data.packing import PackOptions, PackOrigin, pack
from unifier.data.prepare import prepare_task
from unifier.data.source import Example
from unifier.heads.classification import ClassificationHead
from unifier_tokenizers import InputError, PatchTokenizer

SIZES = {"train": 100, "val": 12, "test": 5}
ORIGIN = PackOrigin("pictures", {"patch": 2}, {"pictures-patch": 2})


class Pictures:
    """Random pictures of different sizes."""

    name, labels, sha256 = "pictures", ("a", "b"), "0"

    def split(self, name: str) -> Sequence[Example]:
        rng = np.random.default_rng(SIZES[name])
        return [
            Example(rng.integers(0, 256, (4 + 2 * (k % 3), 6, 1), np.uint8), "ab"[k % 2]) for k in range(SIZES[name])
        ]


def parts(**given: Any) -> tuple[Any, Any]:
    settings: dict[str, Any] = {"patch": 2, "channels": 1}
    return PatchTokenizer(8, **settings | given), ClassificationHead(("a", "b"), 8)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIFIER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


def packed_at(address: Path | str, window: int = 2, shards: int = 10) -> str:
    """Pack the pictures into `shards` shards of train, and return the address."""
    tokenizer, head = parts()
    size = sum(4 * (2 + k % 3) * 3 + 16 * (2 + k % 3) * 3 + 8 for k in range(100))
    options = PackOptions(size / shards / 1e6 - 1e-6, window, num_workers=0)
    pack(
        Pictures(), tokenizer.fit(e.input for e in Pictures().split("train")), head, None, str(address), ORIGIN, options
    )
    return str(address)


def prepared(source: Any) -> Any:
    return prepare_task(source, *parts(), bad_examples="stop", num_workers=0).splits


def batches(splits: Any, steps: int, done: int = 0) -> list[list[bytes]]:
    loader = TrainDataLoader({"task": splits["train"]}, max_tokens=64, seed=3, budget={"steps": steps})
    loader.batches_done = done
    return [[part.numpy().tobytes() for part in batch] for _, batch in loader]


def room_for(address: str, shards: int, monkeypatch: pytest.MonkeyPatch) -> int:
    largest = max(path.stat().st_size for path in Path(address).glob("*.safetensors"))
    monkeypatch.setenv(shard_folder.ROOM_VARIABLE, str(shards * largest / 1e9 + 1e-9))
    return shards * largest + 1


def test_one_window_gives_the_batches_of_local_data(tmp_path: Path, cache: Path) -> None:
    source = packed.PackedSource(packed_at(tmp_path / "pack", window=100))
    local, shards = prepared(Pictures()), prepared(source)
    assert len(shards["train"].shards.files) >= 9
    assert batches(local, 60) == batches(shards, 60)
    assert list(source.split("val"))[3].input.tolist() == Pictures().split("val")[3].input.tolist()
    assert source.split("test").target(1) == "b"
    assert (source.labels, source.fitted, len(source.split("train"))) == (("a", "b"), {"pictures-patch": 2}, 100)
    fresh, fitted = parts()[0], parts()[0].fit(e.input for e in Pictures().split("train"))
    source.load_statistics(fresh)
    assert torch.equal(fresh.mean, fitted.mean)


def test_room_for_three_of_ten_shards(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = packed_at(tmp_path / "pack")
    expected = batches(prepared(packed.PackedSource(address)), 80)
    room = room_for(address, 3, monkeypatch)
    splits, sizes = prepared(packed.PackedSource(f"file://{address}")), list[int]()
    make_room = shard_folder._make_room  # pyright: ignore[reportPrivateUsage]

    def watched(folder: Path, size: int, *args: Any, **options: Any) -> bool:
        done = make_room(folder, size, *args, **options)
        sizes.append(sum(path.stat().st_size for path in folder.iterdir()) + size * done)
        return done

    monkeypatch.setattr(shard_folder, "_make_room", watched)
    assert batches(splits, 80) == expected
    assert batches(splits, 80, done=33) == expected[33:]
    assert len(sizes) > 10
    assert max(sizes) <= room


@pytest.mark.slow
@pytest.mark.parametrize("room", [2, 3])
def test_shard_is_copied_once_per_epoch(
    room: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a window of two shards. One shard more may be copied in advance for the next epoch."""
    address = packed_at(tmp_path / "pack")
    room_for(address, room, monkeypatch)
    splits, copied = prepared(packed.PackedSource(f"file://{address}")), list[str]()
    chunks = shard_folder.PackStore._chunks  # pyright: ignore[reportPrivateUsage]

    def watched(store: Any, name: str) -> Any:
        copied.append(name)
        return chunks(store, name)

    monkeypatch.setattr(shard_folder.PackStore, "_chunks", watched)
    epoch = len(TrainDataLoader({"task": splits["train"]}, max_tokens=64, seed=3, budget={"epochs": 1}))
    batches(splits, 3 * epoch)
    assert 20 < len(copied) <= 3 * 10 + 1


def test_every_example_once_per_epoch(tmp_path: Path) -> None:
    splits = prepared(packed.PackedSource(packed_at(tmp_path / "pack")))
    loader = TrainDataLoader({"task": splits["train"]}, max_tokens=64, seed=3, budget={"epochs": 2})
    seen = [index for _, batch in loader for index in batch.example_indices.tolist()]
    first, second = seen[:100], seen[100:200]
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second


def test_other_file_systems(cache: Path) -> None:
    splits = prepared(packed.PackedSource(packed_at("memory://pack")))
    assert len(batches(splits, 20)) == 20


def test_damaged_copy_is_replaced(tmp_path: Path, cache: Path) -> None:
    address = packed_at(tmp_path / "pack")
    expected = batches(prepared(packed.PackedSource(f"file://{address}")), 30)
    shard_folder.OPENED.clear()
    for copy in cache.iterdir():
        copy.write_bytes(b"torn")
    assert batches(prepared(packed.PackedSource(f"file://{address}")), 30) == expected


@pytest.mark.parametrize("remote", ["", "file://"])
def test_changed_and_missing_files_are_refused(remote: str, tmp_path: Path, cache: Path) -> None:
    address = packed_at(tmp_path / "pack")
    shard = tmp_path / "pack" / "train-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with refused("train-00003.safetensors", "hash", "data again"):
        batches(prepared(packed.PackedSource(remote + address)), 80)
    shard.unlink()
    with refused("train-00003.safetensors", "no such file"):
        batches(prepared(packed.PackedSource(remote + address)), 80)
    index = tmp_path / "pack" / "index.json"
    index.write_text(index.read_text().replace('"window": 2', '"window": 3'))
    with refused("index.json", "broken"):
        packed.PackedSource(remote + address)


def test_unfit_use_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = packed_at(tmp_path / "pack")
    source = packed.PackedSource(address)
    with refused("packed by `pictures patch=2`", "values"):
        prepare_task(source, *parts(patch=3), bad_examples="stop", num_workers=0)
    with refused("target"):
        prepare_task(source, parts()[0], ClassificationHead(("b", "a"), 8), bad_examples="stop", num_workers=0)
    with refused("train-00000.safetensors, example 2", "raw"):
        source.split("train")[1]
    with refused("not empty"):
        packed_at(address)
    with refused("is packed already"):
        pack(source, *parts(), None, str(tmp_path / "new"), ORIGIN)
    room_for(address, 1, monkeypatch)
    monkeypatch.setenv(shard_folder.ROOM_VARIABLE, "1e-9")
    with refused("UNIFIER_SHARDS_GB", "more room"):
        packed.PackedSource(f"file://{address}")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/pack", "nonsense://pack", "missing"])
def test_unreachable_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_folder, "ATTEMPTS", 1)
    with refused(address):
        packed.PackedSource(address)


def test_unwritable_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be"):
        packed_at(tmp_path / "file" / "pack")
