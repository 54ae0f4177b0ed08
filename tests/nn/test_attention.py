"""Attention equals torch's under every mask and kernel, and the KV cache equals one pass."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.nn import attention as module
from unifier.nn.attention import CACHE_STEP, Attention, AttentionMode, KVCache, attention, build_attention_mask
from unifier_tokenizers import InputError

B, H, N, D = 3, 2, 7, 10
LENGTHS = torch.tensor([7, 3, 5])
MASK = torch.arange(N) < LENGTHS[:, None]
UNPADDED = torch.ones(B, N, dtype=torch.bool)
PREFIXES = torch.tensor([2, 3, 1])
KINDS: dict[str, tuple[Tensor, AttentionMode]] = {
    "bidirectional": (MASK, "bidirectional"),
    "causal": (MASK, "causal"),
    "prefix": (MASK, PREFIXES),
    "unpadded": (UNPADDED, "causal"),
    "none": (UNPADDED, "bidirectional"),
}
MODES = ["bidirectional", "causal", "prefix"]


def may_attend(kind: str, b: int, query: int, key: int) -> bool:
    """Return True if a query may attend to a key, decided pair by pair."""
    if kind not in ("unpadded", "none") and key >= LENGTHS[b]:
        return False
    if kind == "prefix":
        return key < int(PREFIXES[b]) or key <= query
    return kind in ("bidirectional", "none") or key <= query


def mask_of_two(mode: str, length: int) -> Tensor | None:
    """Return the mask of two examples, the second of 4 tokens."""
    modes: dict[str, AttentionMode] = {"prefix": torch.tensor([3, 2]), "causal": "causal"}
    real = torch.arange(length) < torch.tensor([length, 4])[:, None]
    return None if mode == "no mask" else build_attention_mask(real, modes.get(mode, "bidirectional"))


def reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    scores = torch.einsum("bhnd,bhmd->bhnm", query, key) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    exponents = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("bhnm,bhmd->bhnd", exponents / exponents.sum(-1, keepdim=True), value)


@pytest.mark.parametrize("kind", KINDS)
def test_mask_and_attention_follow_the_rule_pair_by_pair(kind: str) -> None:
    mask = build_attention_mask(*KINDS[kind])
    rows = torch.ones(B, N, N, dtype=torch.bool) if mask is None else mask.expand(B, 1, N, N)[:, 0]
    expected = [[[may_attend(kind, b, n, m) for m in range(N)] for n in range(N)] for b in range(B)]
    assert rows.tolist() == expected
    query, key, value = torch.randn(3, B, H, N, 5)
    _, weights = module.plain_attention(query, key, value, mask)
    assert weights.shape == (B, H, N, N)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, N))
    allowed = torch.tensor(expected)[:, None]
    assert torch.equal(weights > 0, allowed.expand(B, H, N, N))
    output = attention(query, key, value, mask)
    torch.testing.assert_close(output, functional.scaled_dot_product_attention(query, key, value, attn_mask=mask))
    exact = reference(query.double(), key.double(), value.double(), allowed)
    torch.testing.assert_close(output.double(), exact, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [N, 300])
@pytest.mark.parametrize("mode", MODES)
def test_recorded_weights_change_no_output(length: int, mode: str) -> None:
    layer, x, weights = Attention(D, H), torch.randn(2, length, D), list[Tensor]()
    mask = mask_of_two(mode, length)
    torch.testing.assert_close(layer(x, mask=mask, weights=weights), layer(x, mask=mask))
    assert [part.shape for part in weights] == [(2, H, length, length)]


@pytest.mark.parametrize("kernel", ["plain", "fused"])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("mode", ["no mask", *MODES])
@pytest.mark.parametrize("length", [7, 130])
def test_kernels_and_gradients_near_float64(
    kernel: str, dtype: torch.dtype, near: float, mode: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.FUSED_MIN_KEYS, dtype, 10**9 if kernel == "plain" else 0)
    mask = mask_of_two(mode, length)
    drawn = torch.randn(4, 2, 3, length, 8)
    leaves = query, key, value = [part.to(dtype).requires_grad_() for part in drawn[:3]]
    exact_leaves = q, k, v = [leaf.detach().double().requires_grad_() for leaf in leaves]
    output, exact = attention(query, key, value, mask), reference(q, k, v, mask)
    (output * drawn[3].to(dtype)).sum().backward()
    (exact * drawn[3].to(dtype).double()).sum().backward()
    assert output.dtype == dtype
    pairs = [(output, exact), *((leaf.grad, peer.grad) for leaf, peer in zip(leaves, exact_leaves, strict=True))]
    for result, expected in pairs:
        assert result is not None
        assert expected is not None
        assert (result.double() - expected).norm() <= near * expected.norm()


def test_kernel_chosen_by_dtype_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fused = functional.scaled_dot_product_attention

    def recorded(*parts: Tensor, attn_mask: Tensor | None) -> Tensor:
        calls.append("fused")
        return fused(*parts, attn_mask=attn_mask)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recorded)
    monkeypatch.setitem(module.FUSED_MIN_KEYS, torch.bfloat16, 6)
    for dtype, keys in ((torch.bfloat16, 5), (torch.bfloat16, 6), (torch.float32, 5)):
        x = torch.randn(1, 1, keys, 4, dtype=dtype)
        attention(x, x, x, None)
        calls.append(f"{dtype} {keys}")
    assert calls == ["torch.bfloat16 5", "fused", "torch.bfloat16 6", "fused", "torch.float32 5"]


def test_no_kernel_plans_each_shape() -> None:
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("cross", [False, True])
def test_layer_is_torchs_with_same_weights(cross: bool) -> None:
    layer, peer = Attention(D, H), nn.MultiheadAttention(D, H, batch_first=True)
    state = {f"out_proj.{name}": part for name, part in layer.out.state_dict().items()}
    for name in ("weight", "bias"):
        state[f"in_proj_{name}"] = torch.cat([getattr(layer.query, name), getattr(layer.key_value, name)])
    peer.load_state_dict(state)
    keys, weights = torch.randn(B, N, D), list[Tensor]()
    x = torch.randn(B, 4, D) if cross else keys
    output = layer(x, keys if cross else None, mask=MASK[:, None, None], weights=weights)
    expected, expected_weights = peer(x, keys, keys, key_padding_mask=~MASK, average_attn_weights=False)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights[0], expected_weights)


@pytest.mark.parametrize(("qk_norm", "length"), [(False, 2 * CACHE_STEP + 3), (True, N)])
def test_cache_equals_one_pass(qk_norm: bool, length: int) -> None:
    layer, x, cache = Attention(D, H, qk_norm=qk_norm), torch.randn(B, length, D), KVCache(grows=True)
    expected = layer(x, mask=build_attention_mask(torch.ones(B, length, dtype=torch.bool), "causal"))
    steps = [layer(x[:, [n]], cache=cache) for n in range(length)]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-4, atol=1e-5)
    # A fixed cache keeps its first memory.
    cache = KVCache(grows=False)
    x, memory = torch.randn(B, 2, D), torch.randn(B, N, D)
    expected = layer(x, memory)
    assert torch.equal(layer(x, memory, cache=cache), expected)
    assert torch.equal(layer(x, torch.zeros_like(memory), cache=cache), expected)


@pytest.mark.parametrize("grows", [True, False])
def test_reordered_cache_continues_selected_rows(grows: bool) -> None:
    layer, rows = Attention(D, H), torch.tensor([2, 0, 2, 1])
    first, second, memory = torch.randn(B, 1, D), torch.randn(4, 1, D), None if grows else torch.randn(B, N, D)
    reordered, expected = KVCache(grows=grows), KVCache(grows=grows)
    reordered.reorder(rows)  # An empty cache has nothing to select.
    layer(first, memory, cache=reordered)
    reordered.reorder(rows)
    layer(first[rows], None if memory is None else memory[rows], cache=expected)
    torch.testing.assert_close(layer(second, cache=reordered), layer(second, cache=expected))


def test_qk_norm_bounds_scores() -> None:
    layer, weights = Attention(D, H, qk_norm=True), list[Tensor]()
    nn.init.zeros_(layer.query.bias)
    x = 1e3 * torch.randn(B, N, D)
    layer(x, weights=weights)
    odds = weights[0].amax(-1) / weights[0].amin(-1)
    assert odds.max() <= math.exp(2 * math.sqrt(D / H)) * 1.01  # A vector of variance 1 has length sqrt(D/H).
    torch.testing.assert_close(layer(2 * x, x), layer(x, x))


@pytest.mark.parametrize("heads", [3, 4, 0, -2])
def test_indivisible_heads_refused(heads: int) -> None:
    with pytest.raises(InputError, match=rf"{heads} heads .*D = {D}"):
        Attention(D, heads)


def test_attention_without_projections_is_plain() -> None:
    attention, x, memory = Attention(D, 1, projections=False), torch.randn(2, 4, D), torch.randn(2, 5, D)
    assert not list(attention.parameters())
    for values in (x, memory):
        expected = (x @ values.mT / D**0.5).softmax(-1) @ values
        torch.testing.assert_close(attention(x, None if values is x else memory), expected)
    # A memory in float32 is read in the type of the queries, and each gradient has the type of its tensor.
    x, memory = x.bfloat16().requires_grad_(), memory.requires_grad_()
    attention(x, memory).sum().backward()
    assert x.grad is not None
    assert memory.grad is not None
    assert (x.grad.dtype, memory.grad.dtype) == (torch.bfloat16, torch.float32)
