"""Values that processes send to each other, and the errors that end all of them."""

import pickle

import pytest
import torch
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from unifier import distributed
from unifier.distributed import FAILURE_KEY, PeerError, World, failing_together, to_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_of_a_batch_is_sent_without_the_batch(dtype: torch.dtype) -> None:
    """Send the predictions of a batch, which are rows of one tensor."""
    rows = dict(enumerate(torch.rand(500, 10).to(dtype)))
    content = to_bytes((rows, True))
    assert len(content) < 500 * 1000
    received, stop = pickle.loads(content)
    assert stop
    assert all(torch.equal(received[index], row) for index, row in rows.items())


@pytest.mark.parametrize(
    ("stored", "raised", "first"),
    [
        ("process 1: no space left", PeerError, "process 1: no space left"),
        ("process 1: interrupted", KeyboardInterrupt, "process 0: interrupted"),
        ("", KeyboardInterrupt, "process 0: interrupted"),
    ],
)
def test_interrupt_after_a_failure_keeps_the_failure(
    stored: str, raised: type[BaseException], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HashStore()
    if stored:
        store.set(FAILURE_KEY, stored)
    for name, value in {"_store": store, "_world": World(0, 2), "_has_failed": False, "_is_ending": False}.items():
        monkeypatch.setattr(distributed, name, value)
    with pytest.raises(raised), failing_together():
        raise KeyboardInterrupt
    assert store.get(FAILURE_KEY).decode() == first
