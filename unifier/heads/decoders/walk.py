"""A search through any decoder whose past is a few tensors."""

from collections.abc import Callable
from typing import final

from torch import Tensor

from unifier.heads.writing import WritingHead

State = tuple[Tensor, ...]
"""What R texts so far have left in a decoder: tensors (R, ...)."""

Advance = Callable[[Tensor, State], tuple[Tensor, State]]
"""Of ids (R, L), read after a state, what `WritingHead.hidden` gives of them (R, L, D), and the state they leave."""


@final
class Walk:
    """A search's rows, one state for all."""

    def __init__(self, head: WritingHead, advance: Advance, state: State) -> None:
        self.head, self.advance, self.state = head, advance, state

    def step(self, ids: Tensor) -> Tensor:
        hidden, self.state = self.advance(ids[:, None], self.state)
        return self.head.project(hidden[:, 0]).float().log_softmax(-1)

    def select(self, rows: Tensor) -> None:
        self.state = tuple(part[rows] for part in self.state)
