"""The tables of kernels compare functions that compute the same, in the types that the processor is fast in."""

import pytest
import torch

from benchmarks import attention, products
from benchmarks.runner import device


def test_attention_kernels_agree() -> None:
    query, key, value = torch.randn(3, 2, 4, 7, 8)
    mask = (torch.arange(7) < torch.tensor([[7], [3]]))[:, None, None]
    plain = attention.plain_attention(query, key, value, mask)
    torch.testing.assert_close(plain, attention.fused_attention(query, key, value, mask))


@pytest.mark.parametrize(("fast", "types"), [(True, 2), (False, 1)])
def test_tables_cover_fast_types(fast: bool, types: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda _: fast)
    monkeypatch.setattr(attention, "LENGTHS", (8,))
    monkeypatch.setattr(attention, "TOKENS_PER_BATCH", 8)
    monkeypatch.setattr(products, "ROW_COUNTS", (8,))
    monkeypatch.setattr(products, "LAYERS", ((4, 6),))
    for lines in (attention.attention_lines, products.product_lines):
        assert len("\n".join(lines()).splitlines()) == 2 + 2 * types


@pytest.mark.slow
def test_local_table_has_every_pattern_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LOCAL_LENGTHS", (600,))
    monkeypatch.setattr(attention, "fast_dtypes", lambda: (torch.float32,))
    assert len("\n".join(attention.local_lines()).splitlines()) == 2 + len(attention.PATTERNS)


def test_softmax_table_has_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROW_LENGTHS", (15,))
    monkeypatch.setattr(attention, "SCORES", 150)
    *_, forward, backward = attention.softmax_lines()
    assert ("forward" in forward, "backward" in backward) == (True, True)
