"""Pooling: many columns to one.

One label for an example.

Any number of tags for an example."""

import operator
from collections.abc import Iterable, Sequence
from typing import Literal, SupportsIndex, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import Head, check_labels
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.errors import check_choice, check_fraction

Pooling = Literal["mean", "first", "attention"]


@final
class TokenPool(nn.Module):
    """The mean of the real columns, or the first one (a class token), or a mean that weighs them by what they hold.

    The weights of the last are the softmax of a linear map (sequence pooling, Hassani et al. 2021, section 3.2).
    """

    def __init__(self, pooling: Pooling, dim: int) -> None:
        super().__init__()
        self.pooling: Pooling = check_choice("pooling", pooling, get_args(Pooling))
        self.weigh = nn.Linear(dim, 1, bias=False) if pooling == "attention" else None

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens (B, D, N) -> (B, D)."""
        if self.pooling == "first":
            return tokens.matrix[:, :, 0]
        if self.weigh is None:
            return masked_mean(tokens)
        scores = self.weigh(tokens.matrix.mT)[..., 0].float()
        return _total(tokens, scores.masked_fill(~tokens.mask, -torch.inf).softmax(1))


def masked_mean(tokens: Tokens) -> Tensor:
    """The mean of the real columns: Tokens (B, D, N) -> (B, D)."""
    return _total(tokens, tokens.mask) / tokens.mask.sum(1, keepdim=True)


def _total(tokens: Tokens, weights: Tensor) -> Tensor:
    """The sum of the columns, each times its weight (B, N) -> (B, D)."""
    # In the order in which a trunk's columns lie in memory: then so do their gradients.
    return (tokens.matrix.mT * weights[..., None].to(tokens.matrix.dtype)).sum(1)


@final
class ClassificationHead(Head):
    """A linear map from the pooled columns to C classes; a prediction is C probabilities.

    A target is a label, or its number from 0, as the data sets of torchvision and Hugging Face have it.
    """

    def __init__(
        self,
        labels: Sequence[str],
        dim: int,
        *,
        pooling: Pooling = "mean",
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.labels, self.dim = check_labels(labels), dim
        self.index = {label: i for i, label in enumerate(self.labels)}
        if len(self.index) != len(self.labels) or len(self.labels) < 2:
            raise InputError(f"two or more different labels are needed to classify, not {list(self.labels)}")
        self.pool = TokenPool(pooling, dim)
        self.trunk_output = "cls" if pooling == "first" else "sequence"
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(dim, len(self.labels))

    def encode(self, target: str | SupportsIndex) -> Tensor:
        try:
            number = self.index[target] if isinstance(target, str) else operator.index(target)
        except (KeyError, TypeError):
            number = -1
        if not 0 <= number < len(self.labels):
            raise InputError(f"the label {target!r} is outside the set: {', '.join(self.labels)}")
        return torch.tensor(number)

    def logits(self, tokens: Tokens) -> Tensor:
        """Tokens (B, D, N) -> (B, C)."""
        return in_float32(self.out, self.dropout(self.pool(tokens)))

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Cross-entropy with labels (B,), or with distributions over them (B, C, 1), as mixed examples have."""
        target = target[..., 0] if target.is_floating_point() else target
        return functional.cross_entropy(self.logits(tokens), target, label_smoothing=self.label_smoothing)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        return list(self.logits(tokens).softmax(-1).cpu())

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[str | SupportsIndex]) -> dict[str, float]:
        """Accuracy and macro F1 (the mean over classes of each one's F1), both in percent."""
        # Here, since for scores alone it takes 250 MB.
        from torchmetrics.functional.classification import multiclass_f1_score

        found = torch.stack([*predictions]).argmax(-1)
        wanted = torch.stack([self.encode(target) for target in targets])
        f1 = multiclass_f1_score(found, wanted, num_classes=len(self.labels), average="macro")
        return {"accuracy": 100 * (found == wanted).double().mean().item(), "macro_f1": 100 * f1.item()}

    def describe(self, prediction: Tensor) -> str:
        best = int(prediction.argmax())
        return f"{self.labels[best]} ({prediction[best]:.0%})"


@final
class TaggingHead(Head):
    """A yes or no for each of C tags; a target is a collection of tags, a prediction C probabilities."""

    max_score = 1.0

    def __init__(self, labels: Sequence[str], dim: int, *, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.labels, self.dim = check_labels(labels), dim
        self.index = {label: i for i, label in enumerate(self.labels)}
        if len(self.index) != len(self.labels) or not self.labels:
            raise InputError(f"one or more different tags are needed, not {list(self.labels)}")
        self.pool = TokenPool(pooling, dim)
        self.trunk_output = "cls" if pooling == "first" else "sequence"
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
        return in_float32(self.out, self.pool(tokens))

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
        both = varying_labels(wanted)
        if not both:
            return {"macro_auc": float("nan"), "map": float("nan")}
        auc = [binary_auroc(found[:, c], wanted[:, c]).item() for c in both]
        precision = [binary_average_precision(found[:, c], wanted[:, c]).item() for c in both]
        return {"macro_auc": sum(auc) / len(both), "map": sum(precision) / len(both)}

    def check_targets(self, targets: Iterable[Iterable[str]]) -> None:
        wanted = [self.encode(target) for target in targets]
        if not wanted or not varying_labels(torch.stack(wanted)):
            raise InputError(
                f"of its {len(wanted)} examples none has a tag that another lacks, so no score is known: "
                f"give it more, by splits or folds of your own"
            )

    def describe(self, prediction: Tensor) -> str:
        return ", ".join(f"{self.labels[c]} ({p:.0%})" for c, p in enumerate(prediction.tolist()) if p >= 0.5) or "none"


def varying_labels(wanted: Tensor) -> list[int]:
    """The tags that some of the targets (B, C) have and some have not."""
    return [c for c, count in enumerate(wanted.sum(0).tolist()) if 0 < count < len(wanted)]
