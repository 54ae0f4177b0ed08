"""Values that processes send to each other."""

import pickle

import pytest
import torch

from unifier.distributed import to_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_of_a_batch_is_sent_without_the_batch(dtype: torch.dtype) -> None:
    """Send the predictions of a batch, which are rows of one tensor."""
    rows = dict(enumerate(torch.rand(500, 10).to(dtype)))
    content = to_bytes((rows, True))
    assert len(content) < 500 * 1000
    received, stop = pickle.loads(content)
    assert stop
    assert all(torch.equal(received[index], row) for index, row in rows.items())
