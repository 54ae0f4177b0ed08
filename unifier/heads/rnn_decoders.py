"""Recurrent decoders without attention, with Bahdanau's additive attention, and with Luong's attention.

This module defines base classes of heads that decode a text step by step.
"""

from abc import abstractmethod
from typing import Literal, Unpack, final, get_args

import torch
from torch import Tensor, nn

from unifier.heads.classification import last_token, masked_mean
from unifier.heads.text_generation import AttentiveTextHead, State, TextGenerationHead, TextGenerationOptions
from unifier.trunks.recurrent import Cell, rnn_layers
from unifier.trunks.trunk import check_depth
from unifier_tokenizers import Dropout, InputError, Tokens, Vocabulary
from unifier_tokenizers.errors import check_choice

ScoreFunction = Literal["dot", "general", "concat"]
AttentionSpan = Literal["global", "local"]


class IncrementalHead(TextGenerationHead):
    """A text generation head whose method `step` computes the hidden states, both in training and in search."""

    @abstractmethod
    def start_decoding(self, tokens: Tokens) -> State:
        """Return the decoder's initial state for B texts, before the first token of each text."""

    @abstractmethod
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Append ids (R, L) to R texts. Return the hidden states (R, L, D) of the ids, and the new decoder state."""

    def hidden_states(self, tokens: Tokens, ids: Tensor) -> Tensor:
        return self.step(ids, self.start_decoding(tokens))[0]

    def start_search(self, tokens: Tokens) -> "DecodingState":
        return DecodingState(self, self.start_decoding(tokens))


class AttentiveIncrementalHead(IncrementalHead, AttentiveTextHead):
    """An incremental head that attends to the trunk's tokens in each step."""

    @abstractmethod
    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        """Run `step`, and return the attention of each layer as an additional result.

        Returns:
            The hidden states (R, L, D), the attention (R, L, N) of each layer in float32, and the new state.
        """

    @final
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, _, state = self.step_with_attention(ids, state)
        return hidden, state

    @final
    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        weights = torch.stack(self.step_with_attention(ids, self.start_decoding(tokens))[1]).mean(0)
        # The weights of Luong's local attention sum to less than 1, so the weights are normalized.
        return weights / weights.sum(-1, keepdim=True)


@final
class DecodingState:
    """The incremental decoder of an `IncrementalHead` (see `Decoder`)."""

    def __init__(self, head: IncrementalHead, state: State) -> None:
        self.head, self.state, self.log_probs = head, state, head.next_token_log_probs()

    def step(self, ids: Tensor) -> Tensor:
        hidden, self.state = self.head.step(ids[:, None], self.state)
        return self.log_probs(hidden[:, 0])

    def reorder(self, rows: Tensor) -> None:
        self.state = tuple(part[rows] for part in self.state)


@final
class RNNDecoder(nn.Module):
    """LSTM or GRU layers whose state is one tensor (B, S, D).

    The tensor contains the hidden states of all layers, followed by the cell states of an LSTM.
    """

    def __init__(self, input_dim: int, dim: int, *, cell: Cell, depth: int, dropout: float) -> None:
        """Build `depth` layers with dropout between the layers. The first layer reads inputs (B, L, `input_dim`)."""
        super().__init__()
        check_depth(depth, 1)
        self.dim, self.depth = dim, depth
        self.has_cell_state = cell == "lstm"
        self.layers = rnn_layers(cell, input_dim, dim, depth, dropout=dropout)
        self.init_state = nn.Linear(dim, dim * depth * (2 if self.has_cell_state else 1))

    def initial_state(self, summary: Tensor) -> Tensor:
        """Map a summary (B, D) of the input to the initial state (B, S, D)."""
        return self.init_state(summary).tanh().unflatten(1, (-1, self.dim))

    def top_hidden(self, state: Tensor) -> Tensor:
        """Return the hidden state (B, D) of the last layer from a state (B, S, D)."""
        return state[:, self.depth - 1]

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Run the layers on x (B, L, E) and a state (B, S, D). Return the outputs (B, L, D) and the new state."""
        if torch.compiler.is_exporting():  # A graph contains one step, and the ONNX exporter's LSTM is wrong.
            return self._run_cells(x[:, 0], state)
        with torch.autocast(x.device.type, enabled=False):
            by_layer = state.float().transpose(0, 1).contiguous()
            output, new_state = self.layers(x.float(), tuple(by_layer.chunk(2)) if self.has_cell_state else by_layer)
            return output, (torch.cat(new_state) if self.has_cell_state else new_state).transpose(0, 1)

    def _run_cells(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the same function as `forward` for inputs (B, E) of one step, with one operation per layer."""
        hidden, cells = list[Tensor](), list[Tensor]()
        for layer, weights in enumerate(self.layers.all_weights):
            if self.has_cell_state:
                x, cell = torch.lstm_cell(x, [state[:, layer], state[:, self.depth + layer]], *weights)
                cells.append(cell)
            else:
                x = torch.gru_cell(x, state[:, layer], *weights)
            hidden.append(x)
        return x[:, None], torch.stack([*hidden, *cells], 1)


@final
class AttentionScore(nn.Module):
    """Layer that computes attention weights from scores of a decoder state h and a token m.

    The scores of Luong et al. 2015, section 3.1, are h·m ("dot"), h·Wm ("general") and v·tanh(W[h; m]) ("concat"). The
    score "concat" is also the score of Bahdanau et al. 2015, appendix A.1.2. This class splits the matrix W of "concat"
    into one linear map of the states and one linear map of the tokens.
    """

    def __init__(self, score: ScoreFunction, dim: int) -> None:
        super().__init__()
        self.is_additive = check_choice("score", score, get_args(ScoreFunction)) == "concat"
        self.key = nn.Identity() if score == "dot" else nn.Linear(dim, dim, bias=self.is_additive)
        self.query = nn.Linear(dim, dim, bias=False) if self.is_additive else nn.Identity()
        self.vector = nn.Linear(dim, 1, bias=False) if self.is_additive else nn.Identity()

    def precompute_keys(self, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
        """Return the values (B, N, D), keys (B, N, D) and mask (B, 1, N) of Tokens (B, D, N)."""
        values = tokens.matrix.transpose(1, 2)
        return values, self.key(values), tokens.mask[:, None]

    def forward(self, states: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Return attention weights (B, L, N) in float32, which sum to 1 over N.

        Args:
            states: Decoder states (B, L, D).
            keys: Keys (B, N, D).
            mask: A boolean mask (B, 1 or L, N), True for each token that a state may attend to.
        """
        queries = self.query(states)
        if self.is_additive:
            scores = self.vector(torch.tanh(queries[:, :, None] + keys[:, None]))[..., 0]
        else:
            scores = queries @ keys.mT
        return scores.float().masked_fill(~mask, -torch.inf).softmax(-1)


@final
class RecurrentHead(IncrementalHead):
    """A recurrent decoder without attention (Sutskever et al. 2014), which uses only the trunk's last real token.

    The initial state of the decoder is a learned map of the last trunk token. The input of each step is a text token
    concatenated with the last trunk token (Cho et al. 2014, section 2.2). The trunk is causal, so the last trunk token
    depends on the whole input.
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
        self.rnn = RNNDecoder(2 * dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.dropout = Dropout(dropout)

    def start_decoding(self, tokens: Tokens) -> State:
        summary = last_token(tokens)
        return self.rnn.initial_state(summary), summary

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        rnn_state, summary = state
        embedded = self.dropout(self.embed(ids))
        output, rnn_state = self.rnn(torch.cat([embedded, summary[:, None].expand_as(embedded)], 2), rnn_state)
        return self.dropout(output), (rnn_state, summary)


@final
class AdditiveHead(AttentiveIncrementalHead):
    """The decoder of Bahdanau et al. 2015, in which the previous state attends to the trunk's tokens.

    The input of each step is a text token concatenated with the context, which is the output of attention. The initial
    state is a learned map of the mean trunk token. The next text token is predicted from the new state, the current
    text token and the context (appendix A.2.2). This decoder uses tanh instead of the paper's maxout.
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
        self.rnn = RNNDecoder(2 * dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(3 * dim, dim)
        self.dropout = Dropout(dropout)

    def start_decoding(self, tokens: Tokens) -> State:
        return self.rnn.initial_state(masked_mean(tokens)), *self.score.precompute_keys(tokens)

    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        rnn_state, values, keys, mask = state
        features, attention = list[Tensor](), list[Tensor]()
        for embedded in self.dropout(self.embed(ids)).split(1, dim=1):
            weights = self.score(self.rnn.top_hidden(rnn_state)[:, None], keys, mask)
            context = weights.to(values.dtype) @ values
            output, rnn_state = self.rnn(torch.cat([embedded, context], 2), rnn_state)
            features.append(torch.cat([output, embedded, context], 2))
            attention.append(weights)
        hidden = self.dropout(self.out(torch.cat(features, 1)).tanh())
        return hidden, [torch.cat(attention, 1)], (rnn_state, values, keys, mask)


@final
class LuongHead(AttentiveIncrementalHead):
    """The decoder of Luong et al. 2015, section 3, in which each new state attends to the trunk's tokens.

    The attention is global, or local around a predicted position ("local-p" in the paper). The decoder does not use the
    paper's "input feeding": the context is not an input of the next state. Training can therefore process all text
    tokens in one call of the layers.
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
        """Build the head.

        Args:
            vocabulary: The vocabulary of the target texts.
            dim: D, the number of features of a token.
            depth: Number of recurrent layers.
            cell: "lstm" or "gru".
            score: See `AttentionScore`.
            span: "global" or "local".
            window: The number of tokens on each side of the predicted position that local attention uses, at least 1.
                The attention weights are multiplied by a Gaussian with standard deviation `window` / 2.
            dropout: Dropout probability.
            options: See `TextGenerationOptions`.
        """
        super().__init__(vocabulary, dim, **options)
        if window < 1:
            raise InputError(f"window={window}: at least 1 token on each side is needed")
        self.window = window
        self.score = AttentionScore(score, dim)
        is_local = check_choice("span", span, get_args(AttentionSpan)) == "local"
        self.center = nn.Sequential(nn.Linear(dim, dim, bias=False), nn.Tanh(), nn.Linear(dim, 1)) if is_local else None
        self.rnn = RNNDecoder(dim, dim, cell=cell, depth=depth, dropout=dropout)
        self.out = nn.Linear(2 * dim, dim)
        self.dropout = Dropout(dropout)

    def start_decoding(self, tokens: Tokens) -> State:
        return self.rnn.initial_state(masked_mean(tokens)), *self.score.precompute_keys(tokens)

    def step_with_attention(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        rnn_state, values, keys, mask = state
        output, rnn_state = self.rnn(self.dropout(self.embed(ids)), rnn_state)
        weights = self._weights(output, keys, mask)
        context = weights.to(values.dtype) @ values
        hidden = self.dropout(self.out(torch.cat([context, output], 2)).tanh())
        return hidden, [weights], (rnn_state, values, keys, mask)

    def _weights(self, states: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        if self.center is None:
            return self.score(states, keys, mask)
        center = mask.sum(-1, keepdim=True) * self.center(states).float().sigmoid()  # See eq. 9 of Luong et al.
        distance = torch.arange(keys.shape[1], device=keys.device) - center
        weights = self.score(states, keys, mask & (distance.abs() <= self.window))
        return weights * (-2 * (distance / self.window).square()).exp()  # See eq. 10 of Luong et al.
