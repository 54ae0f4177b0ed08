"""What each of the ladder's decoders computes, against references written out here."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unifier.datasets.grammar import GrammarPairs
from unifier.experiment import Experiment, Task, Training
from unifier.heads.classification import masked_mean
from unifier.heads.conv_decoder import ConvDecoderHead
from unifier.heads.hard_attention import HardAttentionHead, reinforce
from unifier.heads.prefix_lm import PrefixHead
from unifier.heads.rnn_decoders import AdditiveHead, LuongHead, RecurrentHead, ScoreFunction
from unifier.heads.text_generation import shift_right
from unifier.heads.transformer_decoder import TranslationHead
from unifier.nn.attention import Attention
from unifier.trunks.mean_attention import MeanAttentionTrunk
from unifier.trunks.recurrent import Cell
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import NO_POSITION, InputError, SubwordTokenizer, Tokens, Vocabulary
from unifier_tokenizers.text import BOS, EOS

D, LENGTHS = 12, [9, 3, 5]
VOCABULARY = Vocabulary.fit(["ein Mann sieht zwei Hunde", "ein Hund", "zwei Hunde sehen"], size=100, level="word")
IDS = torch.tensor([[BOS, 5, 7, 4], [BOS, 6, 6, 5], [BOS, 4, 8, 6]])


def columns_of(lengths: list[int] = LENGTHS) -> Tokens:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    positions = torch.arange(max(lengths)).expand(len(lengths), 1, -1).masked_fill(~mask[:, None], NO_POSITION)
    return Tokens(torch.randn(len(lengths), D, max(lengths)), mask, positions)


def alone(tokens: Tokens, b: int) -> Tokens:
    length = int(tokens.mask[b].sum())
    return Tokens(*(part[b : b + 1, ..., :length] for part in tokens))


def shout(head: nn.Module) -> None:
    """Weights loud enough for what it gives to differ, and evaluation mode."""
    for parameter in head.eval().parameters():
        nn.init.normal_(parameter, std=0.7)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_the_bottleneck_is_torchs_layers_from_one_column_read_with_each_token(cell: Cell) -> None:
    head, tokens = RecurrentHead(VOCABULARY, D, depth=2, cell=cell), columns_of()
    shout(head)
    vectors = torch.stack([tokens.matrix[b, :, length - 1] for b, length in enumerate(LENGTHS)])
    first = (vectors @ head.reader.first.weight.T + head.reader.first.bias).tanh()
    states = first.view(len(LENGTHS), -1, D).transpose(0, 1).contiguous()
    peer = (nn.GRU if cell == "gru" else nn.LSTM)(2 * D, D, 2, batch_first=True)
    peer.load_state_dict(head.reader.layers.state_dict())
    words = head.embedding(IDS) * D**0.5
    read = torch.cat([words, vectors[:, None].expand_as(words)], 2)
    expected = peer(read, states if cell == "gru" else (states[:2], states[2:]))[0]
    torch.testing.assert_close(head.hidden_states(tokens, IDS), expected)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_the_top_of_a_state_is_what_the_last_layer_gave_last(cell: Cell) -> None:
    """By it additive attention asks before each token."""
    reader = AdditiveHead(VOCABULARY, D, depth=2, cell=cell).reader
    shout(reader)
    answer, after = reader(torch.randn(3, 4, 2 * D), reader.start(torch.randn(3, D)))
    torch.testing.assert_close(reader.top(after), answer[:, -1])


@torch.no_grad()
def test_additive_attention_is_bahdanaus_word_by_word() -> None:
    head, cell = AdditiveHead(VOCABULARY, D, depth=1), nn.GRUCell(2 * D, D)
    shout(head)
    cell.load_state_dict({name.removesuffix("_l0"): one for name, one in head.reader.layers.state_dict().items()})
    tokens, ids = alone(columns_of(), 1), IDS[:1]
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
    torch.testing.assert_close(head.hidden_states(tokens, ids)[0], torch.stack(expected))
    torch.testing.assert_close(head.attention(tokens, ids)[0], torch.stack(attended))


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
@torch.no_grad()
def test_luongs_scores_are_as_written(score: ScoreFunction) -> None:
    head, tokens = LuongHead(VOCABULARY, D, depth=2, score=score), columns_of()
    shout(head)
    states, _ = head.reader(head.embed(IDS), head.reader.start(masked_mean(tokens)))
    found, own = head.attention(tokens, IDS), head.score
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
    near, tokens = LuongHead(VOCABULARY, D, depth=1, span="local", window=2), columns_of()
    shout(near)
    far = LuongHead(VOCABULARY, D, depth=1).eval()
    far.load_state_dict({name: one for name, one in near.state_dict().items() if not name.startswith("place")})
    assert (near.hidden_states(tokens, IDS) - far.hidden_states(tokens, IDS)).abs().max() > 1e-2
    near.window = 1e6
    torch.testing.assert_close(near.hidden_states(tokens, IDS), far.hidden_states(tokens, IDS))


@torch.no_grad()
def test_local_attention_stays_in_its_window_and_falls_off_as_a_bell() -> None:
    head = LuongHead(VOCABULARY, D, depth=1, score="dot", span="local", window=4).eval()
    assert head.place is not None
    last_map = head.place[-1]
    assert isinstance(last_map, nn.Linear)
    last_map.weight.zero_()
    last_map.bias.fill_(0.0)  # the middle of 20 columns is 10
    tokens = columns_of([20])
    tokens.matrix.zero_()  # all fit alike
    found = head.attention(tokens, torch.tensor([[BOS]]))[0, 0]
    bell = (-((torch.arange(20) - 10.0) ** 2) / (2 * 2.0**2)).exp() * ((torch.arange(20) - 10).abs() <= 4)
    torch.testing.assert_close(found, bell / bell.sum())


def test_reinforce_is_on_average_the_gradient_of_the_expected_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that can be drawn for two tokens of a text over two columns, each with its probability."""
    head = HardAttentionHead(VOCABULARY, D, depth=1)
    shout(head)
    tokens, target = columns_of([2]), torch.tensor([[5, EOS]])
    states, _ = head.reader(head.embed(shift_right(target)), head.reader.start(tokens.matrix.mean(2)))
    columns, keys, mask = head.score.precompute_keys(tokens)
    shares = head.score(states, keys, mask)[0]
    losses = torch.stack(
        [
            nn.functional.cross_entropy(
                head.project(head.out(torch.cat([column.expand(2, -1), states[0]], 1)).tanh()),
                target[0], reduction="none", label_smoothing=head.label_smoothing,
            )
            for column in columns[0]
        ], 1,
    )  # fmt: skip
    exact = (shares * losses).sum(1).mean()
    wanted = torch.autograd.grad(exact, list(head.parameters()))
    found, mean = [torch.zeros_like(one) for one in wanted], 0.0
    head.train()
    for drawn in torch.cartesian_prod(*[torch.arange(2)] * 4).view(-1, 2, 2):
        monkeypatch.setattr(Tensor, "multinomial", lambda *_, drawn=drawn, **__: drawn)
        chance = shares.gather(1, drawn).prod().item()
        loss = head.loss(tokens, target)
        mean += chance * loss.item()
        for total, one in zip(found, torch.autograd.grad(loss, list(head.parameters())), strict=True):
            total += chance * one
    assert mean == pytest.approx(exact.item(), rel=1e-4)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


def test_a_draws_baseline_is_the_mean_loss_of_the_others() -> None:
    losses, logs = torch.rand(3, 4), torch.randn(3, 4, requires_grad=True)
    even = losses[:, :1].expand(3, 4)
    torch.testing.assert_close(torch.autograd.grad(reinforce(even, logs), logs)[0], torch.zeros(3, 4))
    value = reinforce(losses, logs)
    (found,) = torch.autograd.grad(value, logs)
    assert value.item() == pytest.approx(losses.mean().item())
    for r in range(3):
        for k in range(4):
            others = [losses[r, other].item() for other in range(4) if other != k]
            assert found[r, k].item() == pytest.approx((losses[r, k].item() - sum(others) / 3) / 12, abs=1e-7)


@torch.no_grad()
def test_hard_attention_sees_the_likeliest_column_alone() -> None:
    head, tokens = HardAttentionHead(VOCABULARY, D, depth=1), columns_of()
    shout(head)
    states, _ = head.reader(head.embed(IDS), head.reader.start(masked_mean(tokens)))
    for b, places in enumerate(head.attention(tokens, IDS).argmax(-1)):
        seen = tokens.matrix[b, :, places].T
        expected = head.out(torch.cat([seen, states[b]], 1)).tanh()
        torch.testing.assert_close(head.hidden_states(tokens, IDS)[b], expected)


@torch.no_grad()
def test_a_convolution_reaches_as_far_back_as_its_kernels() -> None:
    head, tokens = ConvDecoderHead(VOCABULARY, D, depth=2, kernel_size=3), columns_of()
    shout(head)
    ids = torch.randint(4, len(VOCABULARY), (len(LENGTHS), 9))
    other = ids.clone()
    other[:, 1] = (ids[:, 1] - 3) % (len(VOCABULARY) - 4) + 4
    changed = (head.hidden_states(tokens, ids) - head.hidden_states(tokens, other)).abs().amax((0, 2)) > 1e-5
    assert changed.tolist() == [1 <= place <= 1 + 2 * (3 - 1) for place in range(9)]  # two layers of width 3


@torch.no_grad()
def test_without_projections_a_memory_is_read_in_the_type_of_the_queries() -> None:
    x = torch.randn(2, 4, D, dtype=torch.bfloat16, requires_grad=True)
    memory = torch.randn(2, 5, D, requires_grad=True)
    with torch.enable_grad():
        Attention(D, 1, projections=False)(x, memory).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert memory.grad is not None
    assert memory.grad.dtype == torch.float32


def test_attention_without_projections_is_the_softmax_of_plain_products() -> None:
    attention, x, memory = Attention(D, 1, projections=False), torch.randn(2, 4, D), torch.randn(2, 5, D)
    assert not list(attention.parameters())
    for asked in (x, memory):
        expected = (x @ asked.mT / D**0.5).softmax(-1) @ asked
        torch.testing.assert_close(attention(x, None if asked is x else memory), expected)
    trunk = Transformer(D, 2, 1, 10, projections=False)
    assert not [name for name, _ in trunk.named_parameters() if ".attention." in name]


@torch.no_grad()
def test_a_prefix_model_is_its_trunk_with_the_text_beside_the_input() -> None:
    head, trunk, ids = PrefixHead(VOCABULARY, D), Transformer(D, 2, 2, 10), IDS[:1]
    head.attach_trunk(trunk)
    tokens = alone(columns_of(), 2)
    words = head.prefix_and_text(tokens, ids, 0)
    both = Tokens(*(torch.cat(part, -1) for part in zip(tokens, words, strict=True)))
    read = trunk(both, torch.tensor([LENGTHS[2]])).matrix
    torch.testing.assert_close(head.hidden_states(tokens, ids), read[:, :, LENGTHS[2] :].mT)
    torch.testing.assert_close(trunk(tokens).matrix, read[:, :, : LENGTHS[2]])  # the input sees itself alone


def test_an_experiment_lends_its_trunk_to_the_head_that_reads_with_it() -> None:
    head, trunk = PrefixHead(VOCABULARY, D), Transformer(D, 1, 2, 10)
    task = Task(GrammarPairs(train=2, val=1, test=1), SubwordTokenizer(VOCABULARY, D), head)
    Experiment(trunk, {"task": task}, Training(steps=1), name="prefix")
    assert head.trunk is trunk
    assert not set(head.parameters()) & set(trunk.parameters())
    other = Transformer(D, 1, 2, 10)
    Experiment(other, {"task": task}, Training(steps=1), name="joint")
    assert head.trunk is other, "tasks that are put together read with the trunk they share"
    head.attach_trunk(trunk)
    tokens = columns_of()
    assert head.run_trunk(trunk, tokens) is tokens
    with pytest.raises(InputError, match="by a Transformer alone, and the trunk is a Bag"):
        Experiment(MeanAttentionTrunk(D, 1, 10), {"task": task}, Training(steps=1), name="prefix")


def test_what_a_decoder_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="kernel_size=0: a kernel is at least 1 token wide"):
        ConvDecoderHead(VOCABULARY, D, depth=1, kernel_size=0)
    with pytest.raises(InputError, match=r"window=0.5: at least 1 column"):
        LuongHead(VOCABULARY, D, depth=1, span="local", window=0.5)
    with pytest.raises(InputError, match="score"):
        LuongHead(VOCABULARY, D, depth=1, score="cosine")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="cell"):
        RecurrentHead(VOCABULARY, D, depth=1, cell="rnn")  # pyright: ignore[reportArgumentType]


def test_hard_attention_refuses_r_drop() -> None:
    with pytest.raises(InputError, match=r"r_drop=2.0: hard attention has none"):
        HardAttentionHead(VOCABULARY, D, depth=1, r_drop=2.0)


@pytest.mark.parametrize(
    "head", [RecurrentHead, AdditiveHead, ConvDecoderHead, LuongHead, HardAttentionHead, TranslationHead]
)
def test_a_decoder_without_layers_would_not_see_its_input(head: Any) -> None:
    with pytest.raises(InputError, match="a depth of 0 is none: take 1 or more"):
        head(VOCABULARY, D, depth=0, **({"heads": 1, "ffn_dim": 8} if head is TranslationHead else {}))
