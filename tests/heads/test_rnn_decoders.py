"""The recurrent decoders against torch's layers and the papers' formulas, written out step by step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.heads.conftest import randomize
from unifier.heads.classification import masked_mean
from unifier.heads.rnn_decoders import AdditiveHead, LuongHead, RecurrentHead, ScoreFunction
from unifier.trunks.recurrent import Cell
from unifier_tokenizers import InputError, Tokens, Vocabulary
from unifier_tokenizers.subwords import BOS

B, D = 3, 12
IDS = torch.tensor([[BOS, 5, 7, 4], [BOS, 6, 6, 5], [BOS, 4, 8, 6]])


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_recurrent_head_equals_torch_layers(cell: Cell, vocabulary: Vocabulary, tokens: Tokens) -> None:
    head = randomize(RecurrentHead(vocabulary, D, depth=2, cell=cell))
    summary = torch.stack([tokens.matrix[b, :, length - 1] for b, length in enumerate(tokens.mask.sum(1))])
    state = (summary @ head.rnn.init_state.weight.T + head.rnn.init_state.bias).tanh()
    state = state.view(B, -1, D).transpose(0, 1).contiguous()
    reference = (nn.GRU if cell == "gru" else nn.LSTM)(2 * D, D, 2, batch_first=True)
    reference.load_state_dict(head.rnn.layers.state_dict())
    embedded = head.embedding(IDS) * D**0.5
    inputs = torch.cat([embedded, summary[:, None].expand_as(embedded)], 2)
    expected = reference(inputs, state if cell == "gru" else (state[:2], state[2:]))[0]
    torch.testing.assert_close(head.hidden_states(tokens, IDS), expected)
    # The top of the state is the last output.
    rnn = randomize(AdditiveHead(vocabulary, D, depth=2, cell=cell).rnn)
    output, state = rnn(torch.randn(3, 4, 2 * D), rnn.initial_state(torch.randn(3, D)))
    torch.testing.assert_close(rnn.top_hidden(state), output[:, -1])


@torch.no_grad()
def test_additive_head_equals_bahdanau(
    vocabulary: Vocabulary, tokens: Tokens, single: Callable[[Tokens, int], Tokens]
) -> None:
    head, cell = randomize(AdditiveHead(vocabulary, D, depth=1)), nn.GRUCell(2 * D, D)
    cell.load_state_dict({name.removesuffix("_l0"): weight for name, weight in head.rnn.layers.state_dict().items()})
    tokens, ids = single(tokens, 1), IDS[:1]
    values = [tokens.matrix[0, :, n] for n in range(3)]
    score, hidden, attention = head.score, list[Tensor](), list[Tensor]()
    state = head.rnn.init_state(sum(values, torch.zeros(D)) / 3).tanh()
    for i in ids[0]:
        embedded = head.embedding.weight[i] * D**0.5
        scores = [score.vector((score.query(state) + score.key(value)).tanh())[0] for value in values]
        weights = [one.exp() / sum(other.exp() for other in scores) for one in scores]
        context = sum((weight * value for weight, value in zip(weights, values, strict=True)), torch.zeros(D))
        state = cell(torch.cat([embedded, context])[None], state[None])[0]
        hidden.append(head.out(torch.cat([state, embedded, context])).tanh())
        attention.append(torch.stack(weights))
    torch.testing.assert_close(head.hidden_states(tokens, ids)[0], torch.stack(hidden))
    torch.testing.assert_close(head.attention(tokens, ids)[0], torch.stack(attention))


@pytest.mark.parametrize("score", ["dot", "general", "concat"])
@torch.no_grad()
def test_luong_scores_equal_the_formulas(score: ScoreFunction, vocabulary: Vocabulary, tokens: Tokens) -> None:
    head = randomize(LuongHead(vocabulary, D, depth=2, score=score))
    states, _ = head.rnn(head.embed(IDS), head.rnn.initial_state(masked_mean(tokens)))
    attention, maps = head.attention(tokens, IDS), head.score
    for b, length in enumerate(tokens.mask.sum(1).tolist()):
        values = tokens.matrix[b, :, :length].T
        for t, state in enumerate(states[b]):
            if score == "concat":
                scores = maps.vector((maps.key(values) + maps.query(state)).tanh())[:, 0]
            else:
                scores = (values if score == "dot" else maps.key(values)) @ state
            torch.testing.assert_close(attention[b, t, :length], scores.softmax(0), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_local_attention_is_a_gaussian_window(vocabulary: Vocabulary, random_tokens: Callable[..., Tokens]) -> None:
    head = LuongHead(vocabulary, D, depth=1, score="dot", span="local", window=4).eval()
    assert head.center is not None
    last_map = head.center[-1]
    assert isinstance(last_map, nn.Linear)
    last_map.weight.zero_()
    last_map.bias.fill_(0.0)  # The predicted center of 20 tokens is then 10.
    tokens = random_tokens((20,))
    tokens.matrix.zero_()  # All scores are then equal.
    attention = head.attention(tokens, torch.tensor([[BOS]]))[0, 0]
    distance = torch.arange(20) - 10.0
    window = (-(distance**2) / (2 * 2.0**2)).exp() * (distance.abs() <= 4)
    torch.testing.assert_close(attention, window / window.sum())


@pytest.mark.parametrize(
    "options", [{"span": "local", "window": 0.5}, {"score": "cosine"}, {"cell": "rnn"}, {"span": "near"}], ids=str
)
def test_wrong_options_are_refused(options: dict[str, str], vocabulary: Vocabulary) -> None:
    name, value = list(options.items())[-1]
    with pytest.raises(InputError, match=f"{name}.*{value}"):
        LuongHead(vocabulary, D, depth=1, **options)  # pyright: ignore[reportArgumentType]
