"""The head that predicts the next item of a sequence, ranked among all items of a catalog."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unifier.heads.head import IGNORE_INDEX, count_labels
from unifier.heads.summed_metrics import SummedHead
from unifier.nn.cross_entropy import projected_cross_entropy
from unifier.nn.precision import to_compute_dtype
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.items import BEGIN_ITEM

TOP = 10
"""The number of items that are recommended."""


@final
class NextItemHead(SummedHead):
    """A projection to all items of a catalog, trained with full cross-entropy (Klenitskiy and Vasilev 2023).

    With the objective `NextToken`, training predicts every item of a sequence from the earlier items, as SASRec does
    (Kang and McAuley 2018). With the objective `MaskedItems` and `hidden=True`, training predicts hidden items from all
    other items, as BERT4Rec does (Sun et al. 2019). Validation and test rank the last item among all items that are not
    in the history.
    """

    max_score = 1.0
    task_tag = "recommendation"

    def __init__(self, embedding: nn.Embedding, *, dropout: float = 0.0, hidden: bool = False) -> None:
        """Build the head.

        Args:
            embedding: The embedding of an `ItemTokenizer`, which is also the output projection: (V + 1, D), or with a
                mask (V + 2, D).
            dropout: The dropout probability before the projection.
            hidden: Predict hidden items from all tokens. The tokenizer has a mask.
        """
        super().__init__()
        self.hidden, self.num_items = hidden, embedding.num_embeddings - 1 - hidden
        self.attention_mode = "bidirectional" if hidden else "causal"
        self.embedding, self.dim = embedding, embedding.embedding_dim
        self.dropout = Dropout(dropout)

    def encode(self, target: object) -> Tensor:
        """Return 0, because the objective defines the targets."""
        return torch.tensor(0)

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next items, given the ids (B, N) of the next items."""
        is_item = target != IGNORE_INDEX
        hidden = to_compute_dtype(self.dropout(tokens.matrix.mT))[is_item]
        return projected_cross_entropy(hidden, self.embedding.weight, target[is_item])

    def target_counts(self, target: Tensor) -> Tensor:
        return count_labels(target)

    def scores(self, tokens: Tokens, history: Tensor) -> Tensor:
        """Return scores (B, V + 1) of the next item, at the last token. Items of the history have the score -inf.

        Args:
            tokens: The trunk's tokens (B, D, N).
            history: The ids (B, M) of previous items. Negative ids are ignored.
        """
        last = tokens.mask.sum(1) - 1
        hidden = tokens.matrix[torch.arange(last.shape[0], device=last.device), :, last]
        with torch.autocast(hidden.device.type, enabled=False):  # In bfloat16, many scores would be equal.
            scores = nn.functional.linear(hidden.float(), self.embedding.weight[: self.num_items + 1])
        # The begin token is no item, so the begin token replaces negative ids and the mask.
        scores.scatter_(1, history.clamp(min=BEGIN_ITEM).where(history <= self.num_items, BEGIN_ITEM), -torch.inf)
        scores[:, BEGIN_ITEM] = -torch.inf
        return scores

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the scores (B, V + 1) of the item after the last token. The begin token has the score -inf."""
        return self.scores(tokens, torch.full_like(tokens.mask[:, :1], BEGIN_ITEM, dtype=torch.long))

    def describe_graph(self) -> list[str]:
        return [
            "`output` has the score of each item number along the last axis, as the next item. Number 0 is no item.",
            f"The answer consists of the {TOP} items with the largest scores, without the items of the input.",
        ]

    def predict(self, tokens: Tokens) -> list[list[int]]:
        """Return the `TOP` items with the highest scores, which may be in the history."""
        history = torch.full((len(tokens.mask), 1), BEGIN_ITEM, device=tokens.mask.device)
        return self._best(self.scores(tokens, history))

    def predict_inputs(self, tokens: Tokens, values: Tensor) -> list[list[int]]:
        """Return the `TOP` items with the highest scores, without the items of the history (B, N)."""
        return self._best(self.scores(tokens, values))

    def evaluate(self, tokens: Tokens, target: Tensor) -> list[int]:
        """Return the rank of the last item of each example, 1 for the best score."""
        last = tokens.mask.sum(1, keepdim=True) - 1
        answers = target.gather(1, last)
        # An answer that is also in the history must keep its score.
        history = target.scatter(1, last, BEGIN_ITEM).masked_fill(target == answers, BEGIN_ITEM)
        scores = self.scores(tokens, history)
        return (1 + (scores > scores.gather(1, answers)).sum(1)).tolist()

    def statistics(self, predictions: Sequence[int], targets: Sequence[Any]) -> NDArray[np.float64]:
        """Return the hits, the discounted cumulative gains, and ones (n, 3), given the ranks of n answers."""
        ranks = np.array([*predictions])
        hits = (ranks <= TOP).astype(np.float64)
        return np.stack([hits, hits / np.log2(ranks + 1), np.ones(len(ranks))], 1)

    def metrics_of(self, total: NDArray[np.float64]) -> Mapping[str, float]:
        """Return the share of answers among the first `TOP` items, and their normalized discounted cumulative gain."""
        hits, gain, count = total.tolist()
        return {f"hit_rate_{TOP}": hits / count, f"ndcg_{TOP}": gain / count}

    def describe(self, prediction: int | list[int]) -> str:
        return f"rank {prediction}" if isinstance(prediction, int) else ", ".join(map(str, prediction))

    def describe_task(self, noun: str) -> str:
        return f"recommends the {TOP} likeliest next items of {self.num_items:,} for {noun}."

    def describe_answer(self) -> str:
        return (
            "The score of an item is the product of the last token with the embedding of the item. The answer is the "
            f"{TOP} items with the highest scores, without the items of the input."
        )

    def _best(self, scores: Tensor) -> list[list[int]]:
        if self.num_items < TOP:
            raise InputError(f"a catalog of {self.num_items} items: at least {TOP} are needed")
        return scores.topk(TOP).indices.tolist()
