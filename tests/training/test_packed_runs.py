"""Runs on packed data at a URL, with room for 3 of 10 shards: killed and resumed, and on two processes."""

import multiprocessing
import signal
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.two_processes import D, Few, Pair, Trained, stop, train
from unifier import ClassificationHead, PatchTokenizer
from unifier.data.packing import PackOptions, PackOrigin, pack
from unifier.data.shard_folder import ROOM_VARIABLE
from unifier.datasets import Digits

pytestmark = [pytest.mark.extras, pytest.mark.usefixtures("undrawn")]

PER_SHARD, BYTES = 120, 136
"""Number of train examples in a shard, and bytes of each encoded example."""

SETTINGS: dict[str, Any] = {"optimizer": "adamw", "steps": 20, "batch_tokens": 1200}
"""Settings of a run of 4 epochs, whose first checkpoint is written after 10 steps."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Pack digits into ten shards, and serve them by HTTP. Yield a run that reads the shards in place."""
    folder = tmp_path_factory.mktemp("packed")
    source, tokenizer = Few(Digits(), train=10 * PER_SHARD), PatchTokenizer(D, channels=1)
    tokenizer.fit(example.input for example in source.split("train"))
    options = PackOptions(PER_SHARD * BYTES / 1e6, window=2, num_workers=0)
    origin = PackOrigin("digits", {}, {})
    pack(source, tokenizer, ClassificationHead(Digits.labels, D), None, str(folder / "pack"), origin, options)
    sizes = [path.stat().st_size for path in (folder / "pack").glob("train-*")]
    assert len(sizes) == 10
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACKED_DIGITS", str(folder / "pack"))
        whole = train(folder, ["packed"], **SETTINGS)
        patch.setenv("PACKED_DIGITS", f"http://127.0.0.1:{server.server_port}/pack")
        patch.setenv("UNIFIER_CACHE", str(folder))
        patch.setenv(ROOM_VARIABLE, str((3 * max(sizes) + 1) / 1e9))
        yield whole
        copies = [path.stat().st_size for path in (folder / "shards").iterdir()]
        assert 0 < sum(copies) <= 3 * max(sizes) + 1
    server.shutdown()
    server.server_close()


def test_killed_run_resumes_bit_identically(local: Trained, tmp_path: Path) -> None:
    given: dict[str, Any] = {"rank": 0, "step": 14, "sent": signal.SIGKILL, **SETTINGS}
    killed = multiprocessing.get_context("spawn").Process(target=stop, args=(tmp_path, ["packed"]), kwargs=given)
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (settings,) = tmp_path.rglob("settings.json")
    resumed = train(tmp_path, ["packed"], resume=settings.parent, **SETTINGS)
    assert resumed.hashes == local.hashes
    assert resumed.indices == local.indices[-len(resumed.indices) :]
    assert 0 < len(resumed.indices) < len(local.indices)
    assert resumed.losses == local.losses
    assert resumed.predicted == local.predicted
    for unit in ("steps", "examples", "tokens", "flops"):
        assert resumed.result.budget[unit] == local.result.budget[unit]


def test_two_processes_read_the_shards_of_one_folder(local: Trained, tmp_path: Path) -> None:
    pair = Pair()
    first, second = pair(train, tmp_path, ["packed"], **SETTINGS)
    pair.close()
    assert first.losses == pytest.approx(local.losses, rel=1e-5)
    assert first.hashes == second.hashes
    assert (first.result.budget["tokens"], first.predicted) == (local.result.budget["tokens"], local.predicted)
    for mine, other, whole in zip(first.indices, second.indices, local.indices, strict=True):
        assert sorted(mine + other) == sorted(whole)
