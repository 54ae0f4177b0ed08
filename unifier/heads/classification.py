"""Classification (one label per example), tagging (any number of tags per example), and their token pooling."""

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

Pooling = Literal["mean", "cls", "attention"]


@final
class ClassificationHead(Head):
    """A linear classifier on the pooled tokens; a prediction is a tensor of C probabilities.

    A target is a label or its index from 0, as in the datasets of torchvision and Hugging Face.
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
        """Build the head.

        Args:
            labels: The C labels.
            dim: D, the rows of the tokens.
            pooling: See `TokenPool`.
            dropout: Dropout before the linear map.
            label_smoothing: Share of the target that is spread over all labels.
        """
        super().__init__()
        self.labels, self.dim = check_labels(labels), dim
        self.label_index = {label: i for i, label in enumerate(self.labels)}
        if len(self.label_index) != len(self.labels) or len(self.labels) < 2:
            raise InputError(f"labels={list(self.labels)}: at least two different labels are needed")
        self.pool = TokenPool(pooling, dim)
        self.trunk_output = "cls" if pooling == "cls" else "sequence"
        self.label_smoothing = check_fraction("label_smoothing", label_smoothing)
        self.dropout = Dropout(dropout)
        self.out = nn.Linear(dim, len(self.labels))

    def encode(self, target: str | SupportsIndex) -> Tensor:
        try:
            index = self.label_index[target] if isinstance(target, str) else operator.index(target)
        except (KeyError, TypeError):
            index = -1
        if not 0 <= index < len(self.labels):
            raise InputError(f"label {target!r} is not one of: {', '.join(self.labels)}")
        return torch.tensor(index)

    def logits(self, tokens: Tokens) -> Tensor:
        """Map Tokens (B, D, N) to logits (B, C)."""
        return in_float32(self.out, self.dropout(self.pool(tokens)))

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Return the cross-entropy with label indices (B,), or with label distributions (B, C, 1) from mixup."""
        target = target[..., 0] if target.is_floating_point() else target
        return functional.cross_entropy(self.logits(tokens), target, label_smoothing=self.label_smoothing)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        return list(self.logits(tokens).softmax(-1).cpu())

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[str | SupportsIndex]) -> dict[str, float]:
        """Return accuracy and macro F1 (the mean of the F1 of each class), both in percent."""
        # This import takes 250 MB and is needed for metrics alone.
        from torchmetrics.functional.classification import multiclass_f1_score

        predicted = torch.stack([*predictions]).argmax(-1)
        expected = torch.stack([self.encode(target) for target in targets])
        f1 = multiclass_f1_score(predicted, expected, num_classes=len(self.labels), average="macro")
        return {"accuracy": 100 * (predicted == expected).double().mean().item(), "macro_f1": 100 * f1.item()}

    def describe(self, prediction: Tensor) -> str:
        best = int(prediction.argmax())
        return f"{self.labels[best]} ({prediction[best]:.0%})"


@final
class TaggingHead(Head):
    """A binary classifier for each of C tags; a target is a collection of tags, a prediction C probabilities."""

    max_score = 1.0

    def __init__(self, labels: Sequence[str], dim: int, *, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.labels, self.dim = check_labels(labels), dim
        self.label_index = {label: i for i, label in enumerate(self.labels)}
        if len(self.label_index) != len(self.labels) or not self.labels:
            raise InputError(f"labels={list(self.labels)}: at least one tag is needed, and all must differ")
        self.pool = TokenPool(pooling, dim)
        self.trunk_output = "cls" if pooling == "cls" else "sequence"
        self.out = nn.Linear(dim, len(self.labels))

    def encode(self, target: Iterable[str]) -> Tensor:
        """Return a multi-hot vector (C,)."""
        if isinstance(target, str) or not isinstance(target, Iterable):
            raise InputError(f"the target {target!r} is not a collection of tags, such as a list")
        multi_hot = torch.zeros(len(self.labels))
        for tag in target:
            if not isinstance(tag, str) or tag not in self.label_index:
                raise InputError(f"tag {tag!r} is not one of: {', '.join(self.labels)}")
            multi_hot[self.label_index[tag]] = 1
        return multi_hot

    def logits(self, tokens: Tokens) -> Tensor:
        """Map Tokens (B, D, N) to logits (B, C)."""
        return in_float32(self.out, self.pool(tokens))

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(self.logits(tokens), target)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        # In float32, the sigmoid of every logit above 17 is 1, and their order would be lost.
        return list(self.logits(tokens).cpu().double().sigmoid())

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[Iterable[str]]) -> dict[str, float]:
        """Return macro ROC-AUC and mean average precision, both from 0 to 1.

        Both are means over the tags that some targets have and others lack. For chance, the first is 0.5, and the
        second is the share of examples that have the tag.
        """
        # This import takes 250 MB and is needed for metrics alone.
        from torchmetrics.functional.classification import binary_auroc, binary_average_precision

        scores = torch.stack([*predictions])
        expected = torch.stack([self.encode(target) for target in targets]).long()
        tags = varying_labels(expected)
        if not tags:
            return {"macro_auc": float("nan"), "map": float("nan")}
        auc = [binary_auroc(scores[:, c], expected[:, c]).item() for c in tags]
        precision = [binary_average_precision(scores[:, c], expected[:, c]).item() for c in tags]
        return {"macro_auc": sum(auc) / len(tags), "map": sum(precision) / len(tags)}

    def check_targets(self, targets: Iterable[Iterable[str]]) -> None:
        """Raise InputError if every tag is in all targets or in none, since no metric is defined then."""
        encoded = [self.encode(target) for target in targets]
        if not encoded or not varying_labels(torch.stack(encoded)):
            raise InputError(
                f"no metric is defined for these {len(encoded)} examples, because no tag is in some but not all of "
                "them: use more examples, or other splits or folds"
            )

    def describe(self, prediction: Tensor) -> str:
        return ", ".join(f"{self.labels[c]} ({p:.0%})" for c, p in enumerate(prediction.tolist()) if p >= 0.5) or "none"


@final
class TokenPool(nn.Module):
    """Pooling of the real tokens of an example to one vector: their mean, the first one, or a weighted mean.

    "cls" takes the first token, which is a class token's. "attention" weights each token by the softmax of a learned
    linear map (sequence pooling, Hassani et al. 2021, section 3.2).
    """

    def __init__(self, pooling: Pooling, dim: int) -> None:
        super().__init__()
        self.pooling: Pooling = check_choice("pooling", pooling, get_args(Pooling))
        self.score = nn.Linear(dim, 1, bias=False) if pooling == "attention" else None

    def forward(self, tokens: Tokens) -> Tensor:
        """Map Tokens (B, D, N) to (B, D)."""
        if self.pooling == "cls":
            return tokens.matrix[:, :, 0]
        if self.score is None:
            return masked_mean(tokens)
        scores = self.score(tokens.matrix.mT)[..., 0].float()
        return _weighted_sum(tokens, scores.masked_fill(~tokens.mask, -torch.inf).softmax(1))


def masked_mean(tokens: Tokens) -> Tensor:
    """Return the mean of the real tokens: Tokens (B, D, N) to (B, D)."""
    return _weighted_sum(tokens, tokens.mask) / tokens.mask.sum(1, keepdim=True)


def varying_labels(targets: Tensor) -> list[int]:
    """Return the indices of the labels that some of the multi-hot targets (B, C) have and others lack."""
    return [c for c, count in enumerate(targets.sum(0).tolist()) if 0 < count < len(targets)]


def _weighted_sum(tokens: Tokens, weights: Tensor) -> Tensor:
    """Return the sum of the tokens with weights (B, N): (B, D)."""
    # A transposed view keeps the memory order of the trunk's output, so the gradients need no copy.
    return (tokens.matrix.mT * weights[..., None].to(tokens.matrix.dtype)).sum(1)
