"""Any number of tags for an example."""

from collections.abc import Iterable, Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import Head, check_labels
from unifier.heads.pooling import Pool, Pooling
from unifier.trunks.arithmetic.precision import exactly
from unifier_tokenizers import InputError, Tokens


@final
class TaggingHead(Head):
    """A yes or no for each of C tags; a target is a collection of tags, a prediction C probabilities."""

    perfect = 1.0

    def __init__(self, labels: Sequence[str], dim: int, *, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.labels, self.dim = check_labels(labels), dim
        self.index = {label: i for i, label in enumerate(self.labels)}
        if len(self.index) != len(self.labels) or not self.labels:
            raise InputError(f"one or more different tags are needed, not {list(self.labels)}")
        self.pool = Pool(pooling, dim)
        self.reads = "first" if pooling == "first" else "all"
        self.out = nn.Linear(dim, len(self.labels))

    def encode(self, target: Iterable[str]) -> Tensor:
        if isinstance(target, str) or not isinstance(target, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"a collection of tags is expected, not {target!r}")
        hot = torch.zeros(len(self.labels))
        for tag in target:
            if not isinstance(tag, str) or tag not in self.index:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InputError(f"the tag {tag!r} is outside the set: {', '.join(self.labels)}")
            hot[self.index[tag]] = 1
        return hot

    def logits(self, tokens: Tokens) -> Tensor:
        """Tokens (B, D, N) -> (B, C)."""
        return exactly(self.out, self.pool(tokens))

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(self.logits(tokens), target)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        # In float32 all logits above 17 are 1, and tie.
        return list(self.logits(tokens).cpu().double().sigmoid())

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[Iterable[str]]) -> dict[str, float]:
        """Macro ROC-AUC and mean average precision, from 0 to 1: means over the tags of which the targets hold both
        examples with and without; chance is 0.5, and the share of examples that have a tag."""
        # Here, since for scores alone they take 250 MB.
        from torchmetrics.functional.classification import binary_auroc, binary_average_precision

        found = torch.stack([*predictions])
        wanted = torch.stack([self.encode(target) for target in targets]).long()
        both = told_apart(wanted)
        if not both:
            return {"macro_auc": float("nan"), "map": float("nan")}
        auc = [binary_auroc(found[:, c], wanted[:, c]).item() for c in both]
        precision = [binary_average_precision(found[:, c], wanted[:, c]).item() for c in both]
        return {"macro_auc": sum(auc) / len(both), "map": sum(precision) / len(both)}

    def check(self, targets: Iterable[Iterable[str]]) -> None:
        wanted = [self.encode(target) for target in targets]
        if not wanted or not told_apart(torch.stack(wanted)):
            raise InputError(
                f"of its {len(wanted)} examples none has a tag that another lacks, so no score is known: "
                f"give it more, by splits or folds of your own"
            )

    def describe(self, prediction: Tensor) -> str:
        return ", ".join(f"{self.labels[c]} ({p:.0%})" for c, p in enumerate(prediction.tolist()) if p >= 0.5) or "none"


def told_apart(wanted: Tensor) -> list[int]:
    """The tags that some of the targets (B, C) have and some have not."""
    return [c for c, count in enumerate(wanted.sum(0).tolist()) if 0 < count < len(wanted)]
