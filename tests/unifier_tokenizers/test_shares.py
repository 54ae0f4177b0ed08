"""Shares of a batch: disjoint rows, weights, and random numbers that do not depend on the number of processes."""

from typing import Any

import pytest
import torch

from unifier import create_trunk
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.shares import BatchShare, use_share

COUNTS = [3, 0, 1, 4, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_each_example_is_in_one_share(size: int) -> None:
    shares = [BatchShare.of(COUNTS, rank, size) for rank in range(size)]
    used = [row for share in shares if share.weight for row in range(share.start, share.stop)]
    assert {*used} | {1} == {*range(5)}, "example 1 has no target"
    assert len(used) == len({*used})
    assert sum(share.weight for share in shares) == pytest.approx(1)
    assert all(sum(COUNTS[share.start : share.stop]) for share in shares), "each process has a loss with a gradient"


def test_batch_without_targets_has_a_share_for_each_process() -> None:
    assert [BatchShare.of([0, 0], rank, 2) for rank in (0, 1)] == [BatchShare(0, 1, 2, 0.0)] * 2


@pytest.mark.parametrize("name", ["transformer", "experts", "mean_attention", "gru", "convolutional"])
def test_dropped_entries_do_not_depend_on_the_number_of_processes(name: str) -> None:
    options: dict[str, Any] = {"transformer": {"drop_path": 0.3}, "experts": {"experts": 3}}.get(name, {})
    trunk = create_trunk("transformer" if name == "experts" else name, 8, 2, 2, 16, dropout=0.4, **options)
    tokens = Tokens(torch.randn(5, 8, 6), torch.ones(5, 6, dtype=torch.bool), torch.arange(6).expand(5, 1, 6))

    def run(share: BatchShare) -> torch.Tensor:
        torch.manual_seed(1)
        with use_share(share):
            return trunk(Tokens(*map(share.rows, tokens))).matrix

    torch.manual_seed(1)
    whole = trunk(tokens).matrix
    torch.testing.assert_close(torch.cat([run(BatchShare.of([1] * 5, rank, 2)) for rank in (0, 1)]), whole)


def test_rows_of_copies_and_other_axes() -> None:
    share, dropout = BatchShare.of([1] * 5, 1, 2), Dropout(0.5)
    copies = torch.arange(10)
    assert share.rows(copies).tolist() == [2, 3, 4, 7, 8, 9]
    torch.manual_seed(0)
    whole = dropout(torch.ones(10, 3))
    torch.manual_seed(0)
    with use_share(share):
        assert torch.equal(dropout(torch.ones(6, 3)), share.rows(whole))
        with pytest.raises(InputError, match="use one process"):
            dropout(torch.ones(4, 3))
