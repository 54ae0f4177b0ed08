"""WalkingHead: a decoder whose past is a few tensors, and the search that carries them."""

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor

from unifier.heads.writing import AttentiveHead, WritingHead
from unifier_tokenizers import Tokens

State = tuple[Tensor, ...]
"""What R texts so far have left in a decoder: tensors (R, ...)."""


class WalkingHead(WritingHead):
    """A head whose tokens in training and in a search come from one function of the past."""

    @abstractmethod
    def start(self, tokens: Tokens) -> State:
        """The state of B texts of nothing."""

    @abstractmethod
    def advance(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Of ids (R, L), read after a state, what `hidden` gives of them (R, L, D), and the state they leave."""

    def hidden(self, tokens: Tokens, ids: Tensor) -> Tensor:
        return self.advance(ids, self.start(tokens))[0]

    def walk(self, tokens: Tokens) -> "Walk":
        return Walk(self, self.start(tokens))


class LookingHead(WalkingHead, AttentiveHead):
    """One that looks at the columns as it goes on."""

    @abstractmethod
    def look(self, ids: Tensor, state: State) -> tuple[Tensor, list[Tensor], State]:
        """As `advance`, with each layer's weights of the columns (R, L, N), float32, between the two."""

    @final
    def advance(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, _, state = self.look(ids, state)
        return hidden, state

    @final
    def attention(self, tokens: Tokens, ids: Tensor) -> Tensor:
        weights = torch.stack(self.look(ids, self.start(tokens))[1]).mean(0)
        return weights / weights.sum(-1, keepdim=True)  # Luong's local ones sum to less than 1


@final
class Walk:
    """A search's rows, one state for all."""

    def __init__(self, head: WalkingHead, state: State) -> None:
        self.head, self.state, self.upcoming = head, state, head.upcoming()

    def step(self, ids: Tensor) -> Tensor:
        hidden, self.state = self.head.advance(ids[:, None], self.state)
        return self.upcoming(hidden[:, 0])

    def select(self, rows: Tensor) -> None:
        self.state = tuple(part[rows] for part in self.state)
