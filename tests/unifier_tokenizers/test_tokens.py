"""Padding lays examples side by side, loses nothing, and marks what it adds."""

import pytest
import torch

from unifier_tokenizers.tokens import NO_POSITION, Units, pad_columns

LENGTHS = (3, 1, 6)


@pytest.mark.parametrize("rows", [(), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("axes", [1, 2])
def test_every_example_is_found_again_under_its_mask(rows: tuple[int, ...], dtype: torch.dtype, axes: int) -> None:
    examples = [
        Units(torch.randint(1, 9, (*rows, n)).to(dtype), torch.randint(NO_POSITION, 9, (axes, n))) for n in LENGTHS
    ]
    values, positions, mask = pad_columns(examples)
    assert values.shape == (len(LENGTHS), *rows, max(LENGTHS))
    assert positions.shape == (len(LENGTHS), axes, max(LENGTHS))
    assert (values.dtype, positions.dtype, mask.dtype) == (dtype, torch.int64, torch.bool)
    assert mask.sum(1).tolist() == list(LENGTHS)
    for b, units in enumerate(examples):
        assert torch.equal(values[b][..., mask[b]], units.values)
        assert torch.equal(positions[b][:, mask[b]], units.positions)
        assert not values[b][..., ~mask[b]].any()
        assert (positions[b][:, ~mask[b]] == NO_POSITION).all()
        assert not mask[b, len(units.positions[0]) :].any(), "padding stands on the right"


def test_one_example_alone_is_not_padded() -> None:
    units = Units(torch.rand(2, 4), torch.arange(4)[None])
    values, positions, mask = pad_columns([units])
    assert torch.equal(values[0], units.values)
    assert torch.equal(positions[0], units.positions)
    assert mask.all()
