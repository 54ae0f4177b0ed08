"""Attention scores between decoder states and columns: dot, general, concat.

WalkingHead: a decoder whose past is a few tensors, and the search that carries them.

Recurrent layers, LSTM or GRU, over the text so far.

A recurrent decoder without attention: one last state holds the whole input.

A recurrent decoder with Bahdanau's additive attention.

A recurrent decoder with Luong's attention, global or local."""

from abc import abstractmethod
from typing import Literal, Unpack, final, get_args

import torch
from torch import Tensor, nn

from unifier.heads.classification import masked_mean
from unifier.heads.text_generation import AttentiveTextHead, TextGenerationHead, TextGenerationOptions
from unifier.trunks.recurrent import Cell, rnn_layers
from unifier.trunks.trunk import check_depth
from unifier_tokenizers import Dropout, InputError, Tokens, Vocabulary
from unifier_tokenizers.errors import check_choice

ScoreFunction = Literal["dot", "general", "concat"]


@final
class AttentionScore(nn.Module):
    """Attention by one of three scores (Luong et al. 2015, section 3.1): h·m, h·Wm, and v·tanh(W[h; m]).

    The last one is Bahdanau et al. 2015, appendix A.1.2: W falls into a part for states and one for columns.
    """

    def __init__(self, kind: ScoreFunction, dim: int) -> None:
        super().__init__()
        self.added = check_choice("score", kind, get_args(ScoreFunction)) == "concat"
        self.key = nn.Identity() if kind == "dot" else nn.Linear(dim, dim, bias=self.added)
        self.query = nn.Linear(dim, dim, bias=False) if self.added else nn.Identity()
        self.vector = nn.Linear(dim, 1, bias=False) if self.added else nn.Identity()

    def precompute_keys(self, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Of Tokens (B, D, N) the columns (B, N, D), their part of the score (B, N, D), and their mask (B, 1, N)."""
        columns = tokens.matrix.transpose(1, 2)
        return columns, self.key(columns), tokens.mask[:, None]

    def forward(self, states: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """states (B, L, D), keys (B, N, D), mask (B, 1 or L, N) -> weights (B, L, N), float32; each row sums to 1."""
        queries = self.query(states)
        if self.added:
            scores = self.vector(torch.tanh(queries[:, :, None] + keys[:, None]))[..., 0]
        else:
            scores = queries @ keys.mT
        return scores.float().masked_fill(~mask, -torch.inf).softmax(-1)


State = tuple[Tensor, ...]
"""What R texts so far have left in a decoder: tensors (R, ...)."""


class IncrementalHead(TextGenerationHead):
    """A head whose tokens in training and in a search come from one function of the past."""

    @abstractmethod
    def start_decoding(self, tokens: Tokens) -> State:
        """The state of B texts of nothing."""

    @abstractmethod
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Of ids (R, L), read after a state, what `hidden` gives of them (R, L, D), and the state they leave."""

    def hidden_states(self, tokens: Tokens, ids: Tensor) -> Tensor:
        return self.step(ids, self.start_decoding(tokens))[0]

    def start_search(self, tokens: Tokens) -> "DecodingState":
        return DecodingState(self, self.start_decoding(tokens))


class AttentiveIncrementalHead(IncrementalHead, AttentiveTextHead):
    """One that looks at the columns as it goes on."""

    @abstractmethod
    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        """As `advance`, with each layer's weights of the columns (R, L, N), float32, between the two."""

    @final
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, _, state = self.step_with_attention(ids, state)
        return hidden, state

    @final
    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        weights = torch.stack(self.step_with_attention(ids, self.start_decoding(tokens))[1]).mean(0)
        return weights / weights.sum(-1, keepdim=True)  # Luong's local ones sum to less than 1


@final
class DecodingState:
    """A search's rows, one state for all."""

    def __init__(self, head: IncrementalHead, state: State) -> None:
        self.head, self.state, self.upcoming = head, state, head.next_token_log_probs()

    def step(self, ids: Tensor) -> Tensor:
        hidden, self.state = self.head.step(ids[:, None], self.state)
        return self.upcoming(hidden[:, 0])

    def reorder(self, rows: Tensor) -> None:
        self.state = tuple(part[rows] for part in self.state)


@final
class RNNDecoder(nn.Module):
    """Layers of LSTM or GRU; a state is one tensor (B, S, D), of S vectors for each text, the hidden ones first."""

    def __init__(self, inputs: int, dim: int, *, cell: Cell, depth: int, dropout: float) -> None:
        """`inputs` is the width of what it reads, `dropout` stands between layers."""
        super().__init__()
        check_depth(depth, 1)
        self.dim, self.depth = dim, depth
        self.pair = cell == "lstm"
        self.layers = rnn_layers(cell, inputs, dim, depth, dropout=dropout)
        self.first = nn.Linear(dim, dim * depth * (2 if self.pair else 1))

    def start(self, vector: Tensor) -> Tensor:
        """The state before anything is read, by a learned map: (B, D) -> (B, S, D)."""
        return self.first(vector).tanh().unflatten(1, (-1, self.dim))

    def top(self, state: Tensor) -> Tensor:
        """What the last layer gave last: (B, D)."""
        return state[:, self.depth - 1]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, L, E) after a state (B, S, D) -> what the last layer gives (B, L, D), and the state after it."""
        with torch.autocast(x.device.type, enabled=False):
            own = state.float().transpose(0, 1).contiguous()
            answer, after = self.layers(x.float(), tuple(own.chunk(2)) if self.pair else own)
            return answer, (torch.cat(after) if self.pair else after).transpose(0, 1)


@final
class RecurrentHead(IncrementalHead):
    """Layers of LSTM (Sutskever et al. 2014) or GRU whose first state is a learned map of the trunk's last real column.

    They read that column again beside each token (Cho et al. 2014, section 2.2), and no other column. Since the trunk
    sees the past, the last column has seen the whole input.
    """

    attention_mode = "causal"

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        cell: Cell = "gru",
        dropout: float = 0.0,
        **options: Unpack[TextGenerationOptions],
    ) -> None:
        super().__init__(vocabulary, dim, **options)
        self.reader = RNNDecoder(2 * dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.dropout = Dropout(dropout)

    def start_decoding(self, tokens: Tokens) -> State:
        rows = torch.arange(len(tokens.mask), device=tokens.mask.device)
        last = tokens.matrix[rows, :, tokens.mask.sum(1) - 1]
        return self.reader.start(last), last

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        past, last = state
        words = self.dropout(self.embed(ids))
        states, after = self.reader(torch.cat([words, last[:, None].expand_as(words)], 2), past)
        return self.dropout(states), (after, last)


@final
class AdditiveHead(AttentiveIncrementalHead):
    """The decoder of Bahdanau et al. 2015: the last state attends to the columns before each token is read.

    The recurrent layers read the token beside the weighted mean of the columns; their first state is a learned map of
    the plain mean. The next token is predicted from the new state, the token before and the weighted mean (appendix
    A.2.2, with tanh in place of maxout).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        cell: Cell = "gru",
        dropout: float = 0.0,
        **options: Unpack[TextGenerationOptions],
    ) -> None:
        super().__init__(vocabulary, dim, **options)
        self.score = AttentionScore("concat", dim)
        self.reader = RNNDecoder(2 * dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(3 * dim, dim)
        self.dropout = Dropout(dropout)

    def start_decoding(self, tokens: Tokens) -> State:
        return self.reader.start(masked_mean(tokens)), *self.score.precompute_keys(tokens)

    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        past, columns, keys, mask = state
        heard, looks = list[Tensor](), list[Tensor]()
        for word in self.dropout(self.embed(ids)).split(1, dim=1):
            weights = self.score(self.reader.top(past)[:, None], keys, mask)
            seen = weights.to(columns.dtype) @ columns
            said, past = self.reader(torch.cat([word, seen], 2), past)
            heard.append(torch.cat([said, word, seen], 2))
            looks.append(weights)
        hidden = self.dropout(self.out(torch.cat(heard, 1)).tanh())
        return hidden, [torch.cat(looks, 1)], (past, columns, keys, mask)


AttentionSpan = Literal["global", "local"]


@final
class LuongHead(AttentiveIncrementalHead):
    """The decoder of Luong et al. 2015, section 3: the recurrent layers read the text alone, and each state attends.

    It attends to all columns, or to those around a place that it predicts ("local-p"). What it attended to is not fed
    to the next state (their "input feeding"), so all tokens of a training batch are computed at once.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        dim: int,
        *,
        depth: int,
        cell: Cell = "lstm",
        score: ScoreFunction = "general",
        span: AttentionSpan = "global",
        window: float = 10.0,
        dropout: float = 0.0,
        **options: Unpack[TextGenerationOptions],
    ) -> None:
        """Local attention reaches `window` columns to each side, and falls off with half of that (D and sigma there).

        Raises InputError for a window of less than a column, which may hold none.
        """
        super().__init__(vocabulary, dim, **options)
        if window < 1:
            raise InputError(f"window={window}: at least 1 column to each side must be seen")
        self.window = window
        self.score = AttentionScore(score, dim)
        local = check_choice("reach", span, get_args(AttentionSpan)) == "local"
        self.place = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.Tanh(), nn.Linear(dim, 1)) if local else None
        self.reader = RNNDecoder(dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(2 * dim, dim)
        self.dropout = Dropout(dropout)

    def start_decoding(self, tokens: Tokens) -> State:
        return self.reader.start(masked_mean(tokens)), *self.score.precompute_keys(tokens)

    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        past, columns, keys, mask = state
        states, past = self.reader(self.dropout(self.embed(ids)), past)
        weights = self._weights(states, keys, mask)
        seen = weights.to(columns.dtype) @ columns
        return self.dropout(self.out(torch.cat([seen, states], 2)).tanh()), [weights], (past, columns, keys, mask)

    def _weights(self, states: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        if self.place is None:
            return self.score(states, keys, mask)
        middle = mask.sum(-1, keepdim=True) * self.place(states).float().sigmoid()  # section 3.2, eq. 9
        away = torch.arange(keys.shape[1], device=keys.device) - middle
        weights = self.score(states, keys, mask & (away.abs() <= self.window))
        return weights * (-2 * (away / self.window).square()).exp()  # eq. 10
