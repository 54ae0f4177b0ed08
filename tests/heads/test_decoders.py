"""Every head that writes a text, by what it must have in common with all others: the ladder's rungs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unifier.heads.conv_decoder import ConvDecoderHead
from unifier.heads.generation import beam_search, greedy_search
from unifier.heads.hard_attention import HardAttentionHead
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.prefix_lm import PrefixHead
from unifier.heads.rnn_decoders import AdditiveHead, LuongHead, RecurrentHead
from unifier.heads.text_generation import AttentiveTextHead, TextGenerationHead
from unifier.heads.transformer_decoder import TranslationHead
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import NO_POSITION, Tokens, Vocabulary
from unifier_tokenizers.text import BOS, EOS, PAD

D, LENGTHS = 12, [9, 3, 5]
TARGETS = ["ein Mann sieht zwei Hunde", "ein Hund", "zwei Hunde sehen"]
VOCABULARY = Vocabulary.fit(TARGETS, size=100, level="word")

Build = Callable[[], TextGenerationHead]
RUNGS: dict[str, Build] = {
    "gru": lambda: RecurrentHead(VOCABULARY, D, depth=2, cell="gru"),
    "lstm": lambda: RecurrentHead(VOCABULARY, D, depth=2, cell="lstm"),
    "additive": lambda: AdditiveHead(VOCABULARY, D, depth=1),
    "additive-lstm": lambda: AdditiveHead(VOCABULARY, D, depth=2, cell="lstm"),
    "dot": lambda: LuongHead(VOCABULARY, D, depth=2, score="dot"),
    "general": lambda: LuongHead(VOCABULARY, D, depth=1, cell="gru"),
    "concat": lambda: LuongHead(VOCABULARY, D, depth=1, score="concat"),
    "local": lambda: LuongHead(VOCABULARY, D, depth=1, span="local", window=2),
    "hard": lambda: HardAttentionHead(VOCABULARY, D, depth=1),
    "convolutional": lambda: ConvDecoderHead(VOCABULARY, D, depth=2, kernel_size=3),
    "parameter_free": lambda: TranslationHead(VOCABULARY, D, depth=2, heads=1, ffn_dim=10, projections=False),
    "single_head": lambda: TranslationHead(VOCABULARY, D, depth=2, heads=1, ffn_dim=10),
    "prefix": lambda: prefix(),
    "prefix-rotary": lambda: prefix(rotary=True),
    "transformer": lambda: TranslationHead(VOCABULARY, D, depth=2, heads=2, ffn_dim=10),
}


def prefix(*, rotary: bool = False) -> PrefixHead:
    """A prefix model that has its trunk as a part, as an experiment would see to."""
    head, trunk = PrefixHead(VOCABULARY, D), Transformer(D, 2, 2, 10, rotary=rotary)
    head.attach_trunk(trunk)
    head.add_module("stack", trunk)
    return head


ALL = pytest.mark.parametrize("rung", RUNGS)
ATTENTIVE = pytest.mark.parametrize("rung", [name for name in RUNGS if name not in ("gru", "lstm")])


def columns_of(lengths: list[int] = LENGTHS) -> Tokens:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    positions = torch.arange(max(lengths)).expand(len(lengths), 1, -1).masked_fill(~mask[:, None], NO_POSITION)
    return Tokens(torch.randn(len(lengths), D, max(lengths)), mask, positions)


def targets_of(head: TextGenerationHead) -> Tensor:
    ids = [head.encode(text) for text in TARGETS]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=IGNORE_INDEX)


def alone(tokens: Tokens, b: int) -> Tokens:
    length = int(tokens.mask[b].sum())
    return Tokens(*(part[b : b + 1, ..., :length] for part in tokens))


def loud(rung: str) -> tuple[TextGenerationHead, Tokens]:
    """A head that has learned nothing, with weights loud enough for its texts to differ."""
    head = RUNGS[rung]()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.7)
    return head.eval(), columns_of()


class Uncached:
    """A search's rows that read each text anew from its beginning for every token."""

    def __init__(self, head: TextGenerationHead, tokens: Tokens) -> None:
        self.head, self.tokens = head, tokens
        self.past = torch.empty(len(tokens.mask), 0, dtype=torch.long)

    def step(self, ids: Tensor) -> Tensor:
        self.past = torch.cat([self.past, ids[:, None]], 1)
        return self.head.next_token_log_probs()(self.head.hidden_states(self.tokens, self.past)[:, -1])

    def reorder(self, rows: Tensor) -> None:
        self.past, self.tokens = self.past[rows], Tokens(*(part[rows] for part in self.tokens))


@ALL
@pytest.mark.parametrize("width", [1, 3])
@torch.no_grad()
def test_a_cached_search_is_an_uncached_one(rung: str, width: int) -> None:
    head, tokens = loud(rung)
    found = beam_search(Uncached(head, tokens), head.max_lengths(tokens), width)
    for one, cached in zip(found, head.search(tokens, width), strict=True):
        assert [text.ids for text in one] == [text.ids for text in cached]
        assert [text.score for text in one] == pytest.approx([text.score for text in cached], abs=1e-4)


@ALL
@torch.no_grad()
def test_a_beam_of_one_is_greedy(rung: str) -> None:
    head, tokens = loud(rung)
    plain = greedy_search(head.start_search(tokens), head.max_lengths(tokens))
    for (one,), other in zip(beam_search(head.start_search(tokens), head.max_lengths(tokens), 1), plain, strict=True):
        assert one.ids == other.ids
        assert one.score == pytest.approx(other.score, abs=1e-4)


@ALL
@torch.no_grad()
def test_a_batch_is_searched_as_each_example_alone_and_scored_as_teacher_forcing_does(rung: str) -> None:
    head, tokens = loud(rung)
    together = head.search(tokens, 3)
    assert len({round(found[0].score, 3) for found in together}) == len(LENGTHS), "the columns are not read"
    for b, limit in enumerate(head.max_lengths(tokens).tolist()):
        (found,) = head.search(alone(tokens, b), 3)
        assert [each.ids for each in found] == [each.ids for each in together[b]]
        for ids, score in together[b]:
            written = torch.tensor([BOS, *ids, *([] if len(ids) == limit else [EOS])])
            logs = head.project(head.hidden_states(alone(tokens, b), written[None, :-1]))[0].log_softmax(-1)
            assert score == pytest.approx(logs.gather(1, written[1:, None]).mean().item(), abs=1e-3)


@ALL
@torch.no_grad()
def test_no_text_is_padded_or_begun_again(rung: str) -> None:
    head, tokens = RUNGS[rung]().eval(), columns_of()
    nn.init.zeros_(head.output.weight)  # each token is as likely as the others
    draws = [torch.Generator().manual_seed(b) for b in range(len(LENGTHS))]
    for texts in (head.search(tokens, len(VOCABULARY)), [head.sample(tokens, draws)]):
        written = {token for found in texts for text in found for token in text.ids}
        assert written
        assert not written & {PAD, BOS}


@ALL
@torch.no_grad()
def test_a_token_sees_those_before_it_alone(rung: str) -> None:
    head, tokens = loud(rung)
    ids = torch.randint(4, len(VOCABULARY), (len(LENGTHS), 6))
    other = ids.clone()
    other[:, 3] = (ids[:, 3] - 3) % (len(VOCABULARY) - 4) + 4
    changed = (head.hidden_states(tokens, ids) - head.hidden_states(tokens, other)).abs().amax((0, 2)) > 1e-5
    assert not changed[:3].any()
    assert changed[3:].any()
    assert head.hidden_states(tokens, ids).shape == (len(LENGTHS), 6, D)


@ALL
def test_padding_changes_no_loss_and_gets_no_gradient(rung: str) -> None:
    head, tokens = loud(rung)
    target = targets_of(head)
    matrix = tokens.matrix.masked_fill(~tokens.mask[:, None], 50.0).requires_grad_()
    loss = head.loss(tokens._replace(matrix=matrix), target)
    loss.backward()
    assert matrix.grad is not None
    assert torch.equal(
        matrix.grad.abs().amax(1) > 0, tokens.mask if head.attention_mode == "bidirectional" else last(tokens.mask)
    )
    sizes = (target != IGNORE_INDEX).sum(1)
    each = [head.loss(alone(tokens, b), target[b : b + 1, :n]) * n for b, n in enumerate(sizes.tolist())]
    torch.testing.assert_close(loss, torch.stack(each).sum() / sizes.sum())


def last(mask: Tensor) -> Tensor:
    """The last real column of each example."""
    return mask & ~torch.nn.functional.pad(mask[:, 1:], (0, 1))


@ATTENTIVE
@torch.no_grad()
def test_attention_is_over_the_real_columns_and_hangs_on_what_was_said(rung: str) -> None:
    head, tokens = loud(rung)
    assert isinstance(head, AttentiveTextHead)
    ids = torch.randint(4, len(VOCABULARY), (len(LENGTHS), 5))
    found = head.alignment(tokens, ids)
    assert found.shape == (len(LENGTHS), 6, max(LENGTHS))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(2), torch.ones(len(LENGTHS), 6))
    assert not found.masked_select(~tokens.mask[:, None]).any()
    for b, length in enumerate(LENGTHS):
        torch.testing.assert_close(
            head.alignment(alone(tokens, b), ids[b : b + 1])[0], found[b, :, :length], atol=1e-5, rtol=1e-4
        )
    assert (found[:, 0] - found[:, -1]).abs().max() > 1e-3


@ALL
def test_it_overfits_a_batch_and_writes_it(rung: str) -> None:
    head, tokens = RUNGS[rung](), columns_of()
    optimizer, target = torch.optim.Adam(head.parameters(), lr=0.02), targets_of(head)
    head.label_smoothing = 0.0
    for parameter in head.parameters():
        assert parameter.requires_grad
    for _ in range(100):
        optimizer.zero_grad()
        head.loss(tokens, target).backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())
    assert head.eval().loss(tokens, target) < 0.1
    assert head.predict(tokens) == TARGETS


@ALL
def test_bfloat16_answers_nearly_as_float32(rung: str) -> None:
    head, tokens = RUNGS[rung]().eval(), columns_of()
    wanted = head.loss(tokens, targets_of(head))
    with torch.autocast("cpu", torch.bfloat16):
        found = head.loss(tokens._replace(matrix=tokens.matrix.bfloat16()), targets_of(head))
        assert len(head.predict(tokens)) == len(LENGTHS)
    assert found.item() == pytest.approx(wanted.item(), rel=0.03)
