"""The transformer decoder against torch's, its loss by teacher forcing, its caches and its shared embedding."""

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.heads.conftest import randomize
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.text_generation import shift_right
from unifier.heads.transformer_decoder import TranslationHead
from unifier.nn.attention import KVCache
from unifier.nn.block import Block, Norm
from unifier.nn.feed_forward import Activation, FeedForward
from unifier_tokenizers import SubwordTokenizer, Tokens, Vocabulary, pad_columns
from unifier_tokenizers.subwords import BOS

B, D, HEADS, FFN_DIM, DEPTH = 3, 12, 3, 20, 2
Single = Callable[[Tokens, int], Tokens]


@pytest.fixture
def head(vocabulary: Vocabulary) -> TranslationHead:
    return randomize(TranslationHead(vocabulary, D, depth=DEPTH, heads=HEADS, ffn_dim=FFN_DIM), 0.5)


@pytest.fixture
def ids(vocabulary: Vocabulary) -> Tensor:
    return torch.randint(4, len(vocabulary), (B, 6))


@pytest.mark.parametrize(("norm", "smoothing"), [("pre", 0.0), ("post", 0.1)])
def test_loss_equals_step_by_step_forcing(
    norm: Norm, smoothing: float, vocabulary: Vocabulary, tokens: Tokens, target: Tensor, single: Single
) -> None:
    head = TranslationHead(vocabulary, D, depth=DEPTH, heads=HEADS, norm=norm, label_smoothing=smoothing)
    losses: list[Tensor] = []
    for b, row in enumerate(target):
        ids = [BOS, *row[row != IGNORE_INDEX].tolist()]
        for length in range(1, len(ids)):
            logs = head.logits(single(tokens, b), torch.tensor([ids[:length]]))[0, -1].log_softmax(-1)
            losses.append(-(1 - smoothing) * logs[ids[length]] - smoothing * logs.mean())
    torch.testing.assert_close(head.loss(tokens, target), torch.stack(losses).mean())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_blocks_equal_torch_decoder(norm: Norm, activation: Activation, vocabulary: Vocabulary, tokens: Tokens) -> None:
    head = TranslationHead(vocabulary, D, depth=DEPTH, heads=HEADS, ffn_dim=FFN_DIM, norm=norm, activation=activation)
    randomize(head.blocks, 0.3)
    x, memory = torch.randn(B, 5, D), tokens.matrix.mT
    past = torch.ones(5, 5, dtype=torch.bool).tril()
    for block in head.blocks:
        assert isinstance(block, Block)
        assert isinstance(block.feed_forward, FeedForward)
        assert block.cross is not None
        assert block.cross_norm is not None
        is_pre = norm == "pre"
        reference = nn.TransformerDecoderLayer(D, HEADS, FFN_DIM, 0.0, activation, batch_first=True, norm_first=is_pre)
        state: dict[str, Tensor] = {}
        for ours, theirs in ((block.attention, "self_attn"), (block.cross, "multihead_attn")):
            state[f"{theirs}.in_proj_weight"] = torch.cat([ours.query.weight, ours.key_value.weight])
            state[f"{theirs}.in_proj_bias"] = torch.cat([ours.query.bias, ours.key_value.bias])
            state |= {f"{theirs}.out_proj.{key}": value for key, value in ours.out.state_dict().items()}
        norms = (block.attention_norm, block.cross_norm, block.feed_forward_norm)
        parts = (*norms, block.feed_forward[0], block.feed_forward[3])
        for ours, theirs in zip(parts, ("norm1", "norm2", "norm3", "linear1", "linear2"), strict=True):
            state |= {f"{theirs}.{key}": value for key, value in ours.state_dict().items()}
        reference.load_state_dict(state)
        expected = reference(x, memory, tgt_mask=~past, memory_key_padding_mask=~tokens.mask)
        x = block(x, past, memory=memory, memory_mask=tokens.mask[:, None, None])
        torch.testing.assert_close(x, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 4, 5, 6], [0, 6], [0, 1, 4, 6], [0, 3, 6]], ids=str)
def test_cached_decoding_equals_uncached(cuts: list[int], head: TranslationHead, tokens: Tokens, ids: Tensor) -> None:
    caches = [(KVCache(grows=True), KVCache(grows=False)) for _ in head.blocks]
    parts = [head.hidden_states(tokens, ids[:, start:end], caches, start) for start, end in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts, 1), head.hidden_states(tokens, ids), atol=1e-4, rtol=1e-4)


def test_neighbors_share_a_memory(head: TranslationHead, tokens: Tokens, ids: Tensor) -> None:
    ids = torch.cat([ids, ids.flip(0), ids.flip(1)])
    repeated = Tokens(*(part.repeat_interleave(3, 0) for part in tokens))
    torch.testing.assert_close(head.logits(tokens, ids), head.logits(repeated, ids), atol=1e-5, rtol=1e-4)


def test_shared_embedding_is_one_parameter(vocabulary: Vocabulary) -> None:
    """Tokenizer, decoder input and projection use the same table, also after a copy."""

    def embed(tokenizer: SubwordTokenizer, text: str) -> Tokens:
        values, positions, mask = pad_columns([tokenizer.encode(text)])
        return Tokens(tokenizer.embed(values, positions), mask, positions)

    original = SubwordTokenizer(vocabulary, D)
    parts = {"tokenizer": original, "head": TranslationHead(vocabulary, D, depth=1, embedding=original.embedding)}
    copied = deepcopy(nn.ModuleDict(parts))
    tokenizer, head = copied["tokenizer"], copied["head"]
    assert isinstance(tokenizer, SubwordTokenizer)
    assert isinstance(head, TranslationHead)
    tables = [parameter for parameter in copied.parameters() if parameter.shape == (len(vocabulary), D)]
    assert len(tables) == 1
    ids, text = torch.tensor([[BOS, 5]]), vocabulary.decode([5])
    memory = Tokens(*(part.detach() for part in embed(tokenizer, "zwei Hunde")))
    embedded, logits = embed(tokenizer, text).matrix, head.logits(memory, ids)
    with torch.no_grad():
        tables[0][5] += torch.randn(D)
    assert (embed(tokenizer, text).matrix - embedded).abs().max() > 1e-3
    is_changed = (head.logits(memory, ids) - logits)[0].abs() > 1e-5
    assert is_changed[1].all(), "the decoder's input does not use the table"
    assert is_changed[0].nonzero().tolist() == [[5]], "the projection does not use the table"


def test_untied_output_is_a_second_table(vocabulary: Vocabulary, tokens: Tokens, target: Tensor) -> None:
    tied, untied = (TranslationHead(vocabulary, D, depth=2, heads=HEADS, tied=tied) for tied in (True, False))
    counts = [sum(parameter.numel() for parameter in head.parameters()) for head in (tied, untied)]
    assert counts[1] - counts[0] == len(vocabulary) * D
    untied.load_state_dict({**tied.state_dict(), "output.weight": tied.embedding.weight.flip(0)})
    ids = torch.full((B, 1), BOS)
    torch.testing.assert_close(untied.logits(tokens, ids), tied.logits(tokens, ids).flip(-1))
    logits = untied.logits(tokens, shift_right(target))[target != IGNORE_INDEX]
    expected = functional.cross_entropy(logits, target[target != IGNORE_INDEX], label_smoothing=0.1)
    torch.testing.assert_close(untied.loss(tokens, target), expected)


def test_r_drop_adds_the_divergence(
    vocabulary: Vocabulary, random_tokens: Callable[..., Tokens], target: Tensor
) -> None:
    head, plain = (TranslationHead(vocabulary, D, depth=1, heads=HEADS, r_drop=alpha) for alpha in (3.0, 0.0))
    plain.load_state_dict(head.state_dict())
    first, second = random_tokens(), random_tokens()
    both = Tokens(*(torch.cat(parts) for parts in zip(first, second, strict=True)))
    logs = [plain.logits(x, shift_right(target))[target != IGNORE_INDEX].log_softmax(-1) for x in (first, second)]
    divergences = [functional.kl_div(p, q, reduction="batchmean", log_target=True) for p, q in (logs, logs[::-1])]
    losses = [plain.loss(x, target) for x in (first, second)]
    expected = sum(losses) / 2 + 3.0 / 2 * sum(divergences) / 2
    torch.testing.assert_close(head.loss(both, torch.cat([target, target])), expected)
    torch.testing.assert_close(head.eval().loss(first, target), losses[0])
    assert (head.num_passes, plain.num_passes) == (2, 1)


def test_default_head_starts_near_uniform(vocabulary: Vocabulary, tokens: Tokens, target: Tensor) -> None:
    head = TranslationHead(vocabulary, D, depth=2, label_smoothing=0.0)
    assert str(head) == str(TranslationHead(vocabulary, D, depth=2, heads=1, ffn_dim=4 * D))
    uniform = torch.tensor(float(len(vocabulary))).log()
    assert abs(head.loss(tokens, target) - uniform) < 1
