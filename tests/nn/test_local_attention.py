"""Local attention: the pattern pair by pair, and the kernel in blocks against the mask."""

from typing import Any

import pytest
import torch
from torch import Tensor

from unifier import Transformer
from unifier.nn import local_attention as module
from unifier.nn.attention import AttentionMode, KVCache, attention, build_attention_mask, plain_attention
from unifier.nn.local_attention import Local, LocalMask
from unifier_tokenizers import InputError, Tokens

PATTERNS = [Local(w, s, causal) for w, s in ((1, None), (3, None), (3, 4), (2, 7), (4, 1)) for causal in (False, True)]
EVERY_PATTERN = pytest.mark.parametrize("pattern", PATTERNS, ids=repr)


def draw_tokens(*lengths: int, dim: int = 8) -> Tokens:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    positions = torch.arange(max(lengths)).masked_fill(~mask, -1)[:, None]
    return Tokens(torch.randn(len(lengths), dim, max(lengths)), mask, positions)


@EVERY_PATTERN
def test_mask_follows_the_rule_pair_by_pair(pattern: Local) -> None:
    mask = draw_tokens(11, 6).mask
    rows = build_attention_mask(mask, pattern)
    assert rows is not None
    for b, length in enumerate((11, 6)):
        for i in range(length):
            for j in range(11):
                near = abs(i - j) < pattern.width or (pattern.stride is not None and (i - j) % pattern.stride == 0)
                assert rows[b, 0, i, j] == (near and j < length and (j <= i or not pattern.causal))
    assert rows.any(-1).all()  # A row without any key would be NaN, and would spread to all layers.


@EVERY_PATTERN
@pytest.mark.parametrize("lengths", [(24, 13), (29, 29)])
def test_blocks_equal_the_mask(pattern: Local, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_BLOCKS", 1)
    local = LocalMask(pattern, draw_tokens(*lengths).mask)
    query, key, value = parts = [torch.randn(2, 3, lengths[0], 5, requires_grad=True) for _ in range(3)]
    weights, results = torch.randn(2, 3, lengths[0], 5) * local.mask[:, None, :, None], list[list[Tensor]]()
    for mask in (local, local.dense()):
        output = attention(query, key, value, mask)
        gradients = torch.autograd.grad((output * weights).sum(), parts)
        results.append([output * local.mask[:, None, :, None], *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_blocks_compute_no_dense_scores() -> None:
    sizes, n = list[int](), 256

    def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        output, weights = plain_attention(query, key, value, mask)
        sizes.append(weights.numel())
        return output

    x = torch.randn(1, 1, n, 4)
    module.local_attention(x, x, x, LocalMask(Local(8, causal=True), torch.ones(1, n, dtype=torch.bool)), kernel)
    assert sizes == [n * 16]


@pytest.mark.parametrize("options", [{}, {"attention_stride": 5}])
@pytest.mark.parametrize("mode", ["bidirectional", "causal"])
def test_trunk_ignores_padding_and_far_tokens(
    options: dict[str, Any], mode: AttentionMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk, tokens = Transformer(8, 2, 2, 16, attention_width=2, **options).eval(), draw_tokens(23, 12)
    output = trunk(tokens, mode).matrix
    alone = Tokens(*(part[1:, ..., :12] for part in tokens))
    torch.testing.assert_close(trunk(alone, mode).matrix, output[1:, :, :12])
    torch.testing.assert_close(trunk.forward_first_token(tokens, mode).matrix, output[:, :, :1])
    recorded, weights = trunk.attention(tokens, mode)
    torch.testing.assert_close(recorded.matrix[0], output[0])
    allowed = build_attention_mask(tokens.mask, trunk.effective_mode(mode))
    assert torch.equal(weights[0][0, 0] > 0, allowed[0, 0])  # pyright: ignore[reportOptionalSubscript]
    monkeypatch.setattr(module, "MIN_BLOCKS", 100)
    torch.testing.assert_close(trunk(tokens, mode).matrix[0], output[0])
    changed = tokens.matrix.clone()
    changed[:, :, 3] += 1
    same = (trunk(tokens._replace(matrix=changed), mode).matrix == trunk(tokens, mode).matrix)[0].all(0)
    assert same.any()
    assert not same.all()
    if not options:  # Two layers of width 2 reach two tokens on each side.
        assert same.logical_not().nonzero()[:, 0].tolist() == ([3, 4, 5] if mode == "causal" else [1, 2, 3, 4, 5])


@pytest.mark.parametrize("options", [{}, {"attention_stride": 5}])
def test_cache_equals_one_pass(options: dict[str, Any]) -> None:
    trunk, tokens = Transformer(8, 2, 2, 16, attention_width=3, **options).eval(), draw_tokens(17)
    caches, steps = [KVCache(grows=True) for _ in trunk.blocks], list[Tensor]()
    for start, end in ((0, 4), *((n, n + 1) for n in range(4, 17))):
        new = Tokens(*(part[..., start:end] for part in tokens))
        steps.append(trunk.forward_cached(new, tokens.mask[:, :end], caches).matrix)
    torch.testing.assert_close(torch.cat(steps, 2), trunk(tokens, "causal").matrix)


def test_wrong_options_are_refused() -> None:
    for width, stride, name in ((0, None, "width"), (4, 0, "stride"), (None, 4, "stride")):
        with pytest.raises(InputError, match=f"attention_{name}="):
            Transformer(8, 1, 2, attention_width=width, attention_stride=stride)
    with pytest.raises(InputError, match="prefix"):
        Transformer(8, 1, 2, attention_width=4)(draw_tokens(9), torch.tensor([3]))
