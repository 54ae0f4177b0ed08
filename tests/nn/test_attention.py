"""Attention is torch's under every mask, on every path, and sees what it may see and nothing else."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.nn import attention as module
from unifier.nn.attention import CACHE_STEP, Attention, KVCache, attention, build_attention_mask, plain_attention
from unifier_tokenizers import InputError

B, H, N, D = 3, 2, 7, 10
LENGTHS = torch.tensor([7, 3, 5])
MASK = torch.arange(N) < LENGTHS[:, None]
PREFIXES = torch.tensor([2, 3, 1])
KINDS = ["bidirectional", "causal", "prefix", "unpadded", "none"]


def mask_of(kind: str) -> Tensor | None:
    if kind == "none":
        return build_attention_mask(torch.ones(B, N, dtype=torch.bool), "bidirectional")
    if kind == "unpadded":
        return build_attention_mask(torch.ones(B, N, dtype=torch.bool), "causal")
    if kind == "prefix":
        return build_attention_mask(MASK, PREFIXES)
    return build_attention_mask(MASK, "causal" if kind == "causal" else "bidirectional")


def may_see(kind: str, b: int, query: int, key: int) -> bool:
    """The rule, said column by column."""
    if kind not in ("unpadded", "none") and key >= LENGTHS[b]:
        return False
    if kind == "prefix":
        return key < int(PREFIXES[b]) or key <= query
    return kind in ("bidirectional", "none") or key <= query


def by_hand(query: Tensor, key: Tensor, value: Tensor, kind: str) -> Tensor:
    """Softmax of scaled products over what may be seen, in float64, one number at a time."""
    answer = torch.zeros_like(query, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for n in range(N):
                seen = [m for m in range(N) if may_see(kind, b, n, m)]
                scores = [float(query[b, h, n].double() @ key[b, h, m].double()) / math.sqrt(5) for m in seen]
                shares = [math.exp(score - max(scores)) for score in scores]
                for m, share in zip(seen, shares, strict=True):
                    answer[b, h, n] += share / sum(shares) * value[b, h, m].double()
    return answer


@pytest.mark.parametrize("kind", KINDS)
def test_visibility_says_column_by_column_who_sees_whom(kind: str) -> None:
    mask = mask_of(kind)
    seen = torch.ones(B, N, N, dtype=torch.bool) if mask is None else mask.expand(B, 1, N, N)[:, 0]
    for b in range(B):
        assert seen[b].tolist() == [[may_see(kind, b, n, m) for m in range(N)] for n in range(N)]


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_torchs_and_the_formula(kind: str) -> None:
    query, key, value = torch.randn(3, B, H, N, 5)
    mask = mask_of(kind)
    found = attention(query, key, value, mask)
    torch.testing.assert_close(found, functional.scaled_dot_product_attention(query, key, value, attn_mask=mask))
    torch.testing.assert_close(found.double(), by_hand(query, key, value, kind), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_sum_to_1_and_are_0_where_nothing_is_seen(kind: str) -> None:
    query, key, value = torch.randn(3, B, H, N, 5)
    _, weights = plain_attention(query, key, value, mask_of(kind))
    assert weights.shape == (B, H, N, N)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, N))
    for b in range(B):
        for n in range(N):
            for m in range(N):
                assert bool((weights[b, :, n, m] > 0).all()) == may_see(kind, b, n, m)
                assert bool((weights[b, :, n, m] == 0).all()) != may_see(kind, b, n, m)


@pytest.mark.parametrize("columns", [N, 300])
@pytest.mark.parametrize("mode", ["bidirectional", "causal", "prefix"])
def test_recorded_weights_change_no_answer_on_either_kernel(columns: int, mode: str) -> None:
    layer = Attention(D, H)
    x, recorded = torch.randn(2, columns, D), list[Tensor]()
    real = torch.arange(columns) < torch.tensor([columns, 4])[:, None]
    rule = torch.tensor([3, 2]) if mode == "prefix" else "causal" if mode == "causal" else "bidirectional"
    mask = build_attention_mask(real, rule)
    torch.testing.assert_close(layer(x, mask=mask, weights=recorded), layer(x, mask=mask))
    assert [weights.shape for weights in recorded] == [(2, H, columns, columns)]


def reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    scores = torch.einsum("bhnd,bhmd->bhnm", query, key) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    exponents = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("bhnm,bhmd->bhnd", exponents / exponents.sum(-1, keepdim=True), value)


@pytest.mark.parametrize("kernel", ["plain", "fused"])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("mode", ["no mask", "bidirectional", "causal", "prefix"])
@pytest.mark.parametrize("columns", [7, 130])
def test_every_path_honors_the_mask_and_is_near_a_float64_reference(
    kernel: str, dtype: torch.dtype, near: float, mode: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.FUSED_MIN_KEYS, dtype, 10**9 if kernel == "plain" else 0)
    real = torch.arange(columns) < torch.tensor([columns, 4])[:, None]
    rule = torch.tensor([3, 2]) if mode == "prefix" else "causal" if mode == "causal" else "bidirectional"
    mask = None if mode == "no mask" else build_attention_mask(real, rule)
    torch.manual_seed(0)
    wide = torch.randn(4, 2, 3, columns, 8)
    leaves = query, key, value = [part.to(dtype).requires_grad_() for part in wide[:3]]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    found, wanted = attention(query, key, value, mask), reference(exact[0], exact[1], exact[2], mask)
    (found * wide[3].to(dtype)).sum().backward()
    (wanted * wide[3].to(dtype).double()).sum().backward()
    assert found.dtype == dtype
    pairs = [(found, wanted), *((leaf.grad, one.grad) for leaf, one in zip(leaves, exact, strict=True))]
    for got, right in pairs:
        assert got is not None
        assert right is not None
        assert (got.double() - right).norm() <= near * right.norm()


def test_the_rule_picks_by_type_and_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    fused = functional.scaled_dot_product_attention

    def recorded(*parts: Tensor, attn_mask: Tensor | None) -> Tensor:
        taken.append("fused")
        return fused(*parts, attn_mask=attn_mask)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recorded)
    monkeypatch.setitem(module.FUSED_MIN_KEYS, torch.bfloat16, 6)
    for dtype, keys in ((torch.bfloat16, 5), (torch.bfloat16, 6), (torch.float32, 5)):
        one = torch.randn(1, 1, keys, 4, dtype=dtype)
        attention(one, one, one, None)
        taken.append(f"{dtype} {keys}")
    assert taken == ["torch.bfloat16 5", "fused", "torch.bfloat16 6", "fused", "torch.float32 5"]


def peer_of(layer: Attention) -> torch.nn.MultiheadAttention:
    peer = torch.nn.MultiheadAttention(D, H, batch_first=True)
    peer.load_state_dict(
        {
            "in_proj_weight": torch.cat([layer.query.weight, layer.key_value.weight]),
            "in_proj_bias": torch.cat([layer.query.bias, layer.key_value.bias]),
            "out_proj.weight": layer.out.weight,
            "out_proj.bias": layer.out.bias,
        }
    )
    return peer


@pytest.mark.parametrize("to_itself", [True, False])
def test_multi_head_attention_is_torchs_with_the_same_weights(to_itself: bool) -> None:
    layer = Attention(D, H)
    x, memory = torch.randn(B, 4, D), torch.randn(B, N, D)
    if to_itself:
        x, memory = memory, None
    seen = memory if memory is not None else x
    recorded: list[Tensor] = []
    found = layer(x, memory, mask=MASK[:, None, None], weights=recorded)
    expected, weights = peer_of(layer)(x, seen, seen, key_padding_mask=~MASK, average_attn_weights=False)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(recorded[0], weights)


def test_a_growing_cache_answers_as_one_pass_over_the_past() -> None:
    columns = 2 * CACHE_STEP + 3
    layer, x, cache = Attention(D, H), torch.randn(B, columns, D), KVCache(grows=True)
    expected = layer(x, mask=build_attention_mask(torch.ones(B, columns, dtype=torch.bool), "causal"))
    steps = [layer(x[:, n : n + 1], cache=cache) for n in range(columns)]
    torch.testing.assert_close(torch.cat(steps, 1), expected)


def test_a_cache_that_does_not_grow_keeps_the_first_memory() -> None:
    layer, cache = Attention(D, H), KVCache(grows=False)
    x, memory = torch.randn(B, 2, D), torch.randn(B, N, D)
    expected = layer(x, memory)
    assert torch.equal(layer(x, memory, cache=cache), expected)
    assert torch.equal(layer(x, torch.zeros_like(memory), cache=cache), expected)


@pytest.mark.parametrize("grows", [True, False])
def test_a_cache_goes_on_with_selected_rows(grows: bool) -> None:
    layer, rows = Attention(D, H), torch.tensor([2, 0, 2, 1])
    first, second, memory = torch.randn(B, 1, D), torch.randn(4, 1, D), None if grows else torch.randn(B, N, D)
    one, other = KVCache(grows=grows), KVCache(grows=grows)
    one.reorder(rows)  # nothing held yet: nothing to select
    layer(first, memory, cache=one)
    one.reorder(rows)
    layer(first[rows], None if memory is None else memory[rows], cache=other)
    torch.testing.assert_close(layer(second, cache=one), layer(second, cache=other))


def test_normalized_queries_and_keys_bound_every_score() -> None:
    layer = Attention(D, H, qk_norm=True)
    nn.init.zeros_(layer.query.bias)
    x = 1e3 * torch.randn(B, N, D)
    weights: list[Tensor] = []
    layer(x, weights=weights)
    odds = weights[0].amax(-1) / weights[0].amin(-1)
    assert odds.max() <= math.exp(2 * math.sqrt(D / H)) * 1.01  # a variance of 1 is a length of sqrt(D/H)
    torch.testing.assert_close(layer(2 * x, x), layer(x, x))
    cache = KVCache(grows=True)
    steps = [layer(x[:, [n]], mask=None, cache=cache) for n in range(N)]
    mask = build_attention_mask(torch.ones(B, N, dtype=torch.bool), "causal")
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, mask=mask), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("heads", [3, 4, 0, -2])
def test_heads_that_do_not_divide_the_columns(heads: int) -> None:
    with pytest.raises(InputError, match=f"{heads} heads do not divide D = {D}: take"):
        Attention(D, heads)
