import pytest
import torch

from unifier_tokenizers.tokens import NO_POSITION, Units, has_no_padding, is_batch_constant, pad_columns

LENGTHS = (3, 1, 6)


@pytest.mark.parametrize("rows", [(), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("axes", [1, 2])
def test_pad_columns_keeps_examples_under_mask(rows: tuple[int, ...], dtype: torch.dtype, axes: int) -> None:
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
        assert not mask[b, len(units.positions[0]) :].any(), "padding must be on the right"


def test_constant_known_by_values_or_strides() -> None:
    row, meta = torch.arange(4), torch.empty(4, device="meta")
    assert is_batch_constant(row.repeat(3, 1))
    assert not is_batch_constant(torch.stack([row, row + 1]))
    assert is_batch_constant(meta.expand(3, 4))
    assert not is_batch_constant(torch.empty(3, 4, device="meta"))
    assert has_no_padding(torch.ones(3, 4, dtype=torch.bool))
    assert not has_no_padding(row.repeat(3, 1) < 3)
    assert has_no_padding(torch.ones((), device="meta", dtype=torch.bool).expand(3, 4))
    assert not has_no_padding(torch.ones(3, 4, device="meta", dtype=torch.bool))
