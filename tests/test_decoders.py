"""Every head that writes a text, by what it must have in common with all others: the ladder's rungs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unifier.heads.decoders.additive import AdditiveHead
from unifier.heads.decoders.luong import LuongHead
from unifier.heads.decoders.recurrent import RecurrentHead
from unifier.heads.decoding import beam, greedy
from unifier.heads.head import IGNORED
from unifier.heads.translation import TranslationHead
from unifier.heads.writing import AttentiveHead, WritingHead, before
from unifier_tokenizers import NOWHERE, InputError, Tokens, Vocabulary
from unifier_tokenizers.vocabulary import BEGIN, END

D, LENGTHS = 12, [9, 3, 5]
TARGETS = ["ein Mann sieht zwei Hunde", "ein Hund", "zwei Hunde sehen"]
VOCABULARY = Vocabulary.fit(TARGETS, size=100, level="word")

Build = Callable[[], WritingHead]
RUNGS: dict[str, Build] = {
    "gru": lambda: RecurrentHead(VOCABULARY, D, depth=2, cell="gru"),
    "lstm": lambda: RecurrentHead(VOCABULARY, D, depth=2, cell="lstm"),
    "additive": lambda: AdditiveHead(VOCABULARY, D, depth=1),
    "additive-lstm": lambda: AdditiveHead(VOCABULARY, D, depth=2, cell="lstm"),
    "dot": lambda: LuongHead(VOCABULARY, D, depth=2, score="dot"),
    "general": lambda: LuongHead(VOCABULARY, D, depth=1, cell="gru"),
    "concat": lambda: LuongHead(VOCABULARY, D, depth=1, score="concat"),
    "local": lambda: LuongHead(VOCABULARY, D, depth=1, reach="local", window=2),
    "transformer": lambda: TranslationHead(VOCABULARY, D, depth=2, heads=2, hidden=10),
}
ALL = pytest.mark.parametrize("rung", RUNGS)
ATTENTIVE = pytest.mark.parametrize("rung", [name for name in RUNGS if name not in ("gru", "lstm")])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def columns_of(lengths: list[int] = LENGTHS) -> Tokens:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    positions = torch.arange(max(lengths)).expand(len(lengths), 1, -1).masked_fill(~mask[:, None], NOWHERE)
    return Tokens(torch.randn(len(lengths), D, max(lengths)), mask, positions)


def targets_of(head: WritingHead) -> Tensor:
    ids = [head.encode(text) for text in TARGETS]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=IGNORED)


def alone(tokens: Tokens, b: int) -> Tokens:
    length = int(tokens.mask[b].sum())
    return Tokens(*(part[b : b + 1, ..., :length] for part in tokens))


def loud(rung: str) -> tuple[WritingHead, Tokens]:
    """A head that has learned nothing, with weights loud enough for its texts to differ."""
    head = RUNGS[rung]()
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.7)
    return head.eval(), columns_of()


class Uncached:
    """A search's rows that read each text anew from its beginning for every token."""

    def __init__(self, head: WritingHead, tokens: Tokens) -> None:
        self.head, self.tokens = head, tokens
        self.past = torch.empty(len(tokens.mask), 0, dtype=torch.long)

    def step(self, ids: Tensor) -> Tensor:
        self.past = torch.cat([self.past, ids[:, None]], 1)
        return self.head.project(self.head.hidden(self.tokens, self.past))[:, -1].log_softmax(-1)

    def select(self, rows: Tensor) -> None:
        self.past, self.tokens = self.past[rows], Tokens(*(part[rows] for part in self.tokens))


@ALL
@pytest.mark.parametrize("width", [1, 3])
@torch.no_grad()
def test_a_cached_search_is_an_uncached_one(rung: str, width: int) -> None:
    head, tokens = loud(rung)
    found = beam(Uncached(head, tokens), head.limits(tokens), width)
    for one, cached in zip(found, head.search(tokens, width), strict=True):
        assert [text.ids for text in one] == [text.ids for text in cached]
        assert [text.score for text in one] == pytest.approx([text.score for text in cached], abs=1e-4)


@ALL
@torch.no_grad()
def test_a_beam_of_one_is_greedy(rung: str) -> None:
    head, tokens = loud(rung)
    plain = greedy(head.walk(tokens), head.limits(tokens))
    for (one,), other in zip(beam(head.walk(tokens), head.limits(tokens), 1), plain, strict=True):
        assert one.ids == other.ids
        assert one.score == pytest.approx(other.score, abs=1e-4)


@ALL
@torch.no_grad()
def test_a_batch_is_searched_as_each_example_alone_and_scored_as_teacher_forcing_does(rung: str) -> None:
    head, tokens = loud(rung)
    together = head.search(tokens, 3)
    assert len({tuple(found[0].ids) for found in together}) > 1, "the columns are not read"
    for b, limit in enumerate(head.limits(tokens).tolist()):
        (found,) = head.search(alone(tokens, b), 3)
        assert [each.ids for each in found] == [each.ids for each in together[b]]
        for ids, score in together[b]:
            written = torch.tensor([BEGIN, *ids, *([] if len(ids) == limit else [END])])
            logs = head.project(head.hidden(alone(tokens, b), written[None, :-1]))[0].log_softmax(-1)
            assert score == pytest.approx(logs.gather(1, written[1:, None]).mean().item(), abs=1e-3)


@ALL
@torch.no_grad()
def test_a_token_sees_those_before_it_alone(rung: str) -> None:
    head, tokens = loud(rung)
    ids = torch.randint(4, len(VOCABULARY), (len(LENGTHS), 6))
    other = ids.clone()
    other[:, 3] = (ids[:, 3] - 3) % (len(VOCABULARY) - 4) + 4
    changed = (head.hidden(tokens, ids) - head.hidden(tokens, other)).abs().amax((0, 2)) > 1e-5
    assert not changed[:3].any()
    assert changed[3:].any()
    assert head.hidden(tokens, ids).shape == (len(LENGTHS), 6, D)


@ALL
def test_padding_changes_no_loss_and_gets_no_gradient(rung: str) -> None:
    head, tokens = loud(rung)
    target = targets_of(head)
    matrix = tokens.matrix.masked_fill(~tokens.mask[:, None], 50.0).requires_grad_()
    loss = head.loss(tokens._replace(matrix=matrix), target)
    loss.backward()
    assert matrix.grad is not None
    assert torch.equal(matrix.grad.abs().amax(1) > 0, tokens.mask if head.visible == "all" else last(tokens.mask))
    sizes = (target != IGNORED).sum(1)
    each = [head.loss(alone(tokens, b), target[b : b + 1, :n]) * n for b, n in enumerate(sizes.tolist())]
    torch.testing.assert_close(loss, torch.stack(each).sum() / sizes.sum())


def last(mask: Tensor) -> Tensor:
    """The last real column of each example."""
    return mask & ~torch.nn.functional.pad(mask[:, 1:], (0, 1))


@ATTENTIVE
@torch.no_grad()
def test_attention_is_over_the_real_columns_and_hangs_on_what_was_said(rung: str) -> None:
    head, tokens = loud(rung)
    assert isinstance(head, AttentiveHead)
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


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_bottleneck_is_torchs_layers_from_one_column(cell: str) -> None:
    head, tokens = loud(cell)
    assert isinstance(head, RecurrentHead)
    target = targets_of(head)
    vectors = torch.stack([tokens.matrix[b, :, length - 1] for b, length in enumerate(LENGTHS)])
    first = (vectors @ head.reader.first.weight.T + head.reader.first.bias).tanh()
    states = first.view(len(LENGTHS), -1, D).transpose(0, 1).contiguous()
    peer = (nn.GRU if cell == "gru" else nn.LSTM)(D, D, 2, batch_first=True)
    peer.load_state_dict(head.reader.layers.state_dict())
    words = head.embedding(before(target)) * D**0.5
    expected = peer(words, states if cell == "gru" else (states[:2], states[2:]))[0]
    torch.testing.assert_close(head.hidden(tokens, before(target)), expected)


@torch.no_grad()
def test_additive_attention_is_bahdanaus_word_by_word() -> None:
    head, tokens = loud("additive")
    assert isinstance(head, AdditiveHead)
    ids, cell = torch.tensor([[BEGIN, 5, 7, 4]]), nn.GRUCell(2 * D, D)
    cell.load_state_dict({name.removesuffix("_l0"): one for name, one in head.reader.layers.state_dict().items()})
    tokens = alone(tokens, 1)
    columns = [tokens.matrix[0, :, n] for n in range(3)]
    score, expected, attended = head.score, list[Tensor](), list[Tensor]()
    state = head.reader.first(sum(columns, torch.zeros(D)) / 3).tanh()
    for i in ids[0]:
        word = head.embedding.weight[i] * D**0.5
        fits = [score.vector((score.query(state) + score.key(one)).tanh())[0] for one in columns]
        shares = [fit.exp() / sum(other.exp() for other in fits) for fit in fits]
        seen = sum((share * one for share, one in zip(shares, columns, strict=True)), torch.zeros(D))
        state = cell(torch.cat([word, seen])[None], state[None])[0]
        expected.append(head.out(torch.cat([state, word, seen])).tanh())
        attended.append(torch.stack(shares))
    torch.testing.assert_close(head.hidden(tokens, ids)[0], torch.stack(expected))
    torch.testing.assert_close(head.attention(tokens, ids)[0], torch.stack(attended))


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
@torch.no_grad()
def test_luongs_scores_are_as_written(score: str) -> None:
    head, tokens = loud(score)
    assert isinstance(head, LuongHead)
    ids = before(targets_of(head))
    first = head.reader.start((tokens.matrix * tokens.mask[:, None]).sum(2) / tokens.mask.sum(1, keepdim=True))
    states, _ = head.reader(head.embed(ids), first)
    found, own = head.attention(tokens, ids), head.score
    for b, length in enumerate(LENGTHS):
        for t, state in enumerate(states[b]):
            columns = tokens.matrix[b, :, :length].T
            if score == "dot":
                fits = columns @ state
            elif score == "general":
                fits = own.key(columns) @ state
            else:
                fits = own.vector((own.key(columns) + own.query(state)).tanh())[:, 0]
            torch.testing.assert_close(found[b, t, :length], fits.softmax(0), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_local_attention_is_global_where_the_window_holds_all_and_the_bell_is_flat() -> None:
    near, tokens = loud("local")
    assert isinstance(near, LuongHead)
    far = LuongHead(VOCABULARY, D, depth=1).eval()
    far.load_state_dict({name: one for name, one in near.state_dict().items() if not name.startswith("place")})
    ids = before(targets_of(near))
    assert (near.hidden(tokens, ids) - far.hidden(tokens, ids)).abs().max() > 1e-2
    near.window = 1e6
    torch.testing.assert_close(near.hidden(tokens, ids), far.hidden(tokens, ids))


@torch.no_grad()
def test_local_attention_stays_in_its_window_and_falls_off_as_a_bell() -> None:
    head = LuongHead(VOCABULARY, D, depth=1, score="dot", reach="local", window=4).eval()
    assert head.place is not None
    last_map = head.place[-1]
    assert isinstance(last_map, nn.Linear)
    last_map.weight.zero_()
    last_map.bias.fill_(0.0)  # the middle of 20 columns is 10
    tokens = columns_of([20])
    tokens.matrix.zero_()  # all fit alike
    found = head.attention(tokens, torch.tensor([[BEGIN]]))[0, 0]
    bell = (-((torch.arange(20) - 10.0) ** 2) / (2 * 2.0**2)).exp() * ((torch.arange(20) - 10).abs() <= 4)
    torch.testing.assert_close(found, bell / bell.sum())


def test_what_a_decoder_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"window=0.5: at least 1 column"):
        LuongHead(VOCABULARY, D, depth=1, reach="local", window=0.5)
    with pytest.raises(InputError, match="score"):
        LuongHead(VOCABULARY, D, depth=1, score="cosine")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="cell"):
        RecurrentHead(VOCABULARY, D, depth=1, cell="rnn")  # pyright: ignore[reportArgumentType]
