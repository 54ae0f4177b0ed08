"""Heads for classification (one label per example) and for tagging (any number of tags per example)."""

import operator
from collections.abc import Iterable, Sequence
from typing import Literal, SupportsIndex, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import Head, check_labels, count_examples, list_labels
from unifier.nn.precision import in_float32
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.errors import check_choice, check_fraction

Pooling = Literal["mean", "cls", "attention", "last"]


@final
class ClassificationHead(Head):
    """A linear classifier on the pooled tokens.

    A target is a label or the index of a label, as in the data sets of torchvision and Hugging Face. A prediction is a
    tensor of C probabilities.
    """

    task_tag = "classification"

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
            labels: The names of the C classes.
            dim: D, the number of features of a token.
            pooling: See `TokenPool`.
            dropout: The dropout probability before the linear map.
            label_smoothing: The share of the target probability that is spread evenly over all labels.
        """
        super().__init__()
        self.labels, self.dim = check_labels(labels, minimum=2), dim
        self.label_index = {label: i for i, label in enumerate(self.labels)}
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

    def target_counts(self, target: Tensor) -> Tensor:
        return count_examples(target)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        return list(self.graph_output(tokens).cpu())

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, C)."""
        return self.logits(tokens).softmax(-1)

    def describe_graph(self) -> list[str]:
        return [
            "The last axis of `output` has the probabilities of the labels.",
            "The answer is the label with the largest probability.",
        ]

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[str | SupportsIndex]) -> dict[str, float]:
        """Return the accuracy and the macro F1 score (the mean F1 score of the classes), in percent."""
        # torchmetrics takes 250 MB of memory, so torchmetrics is imported only if metrics are computed.
        from torchmetrics.functional.classification import multiclass_f1_score

        predicted = torch.stack([*predictions]).argmax(-1)
        expected = torch.stack([self.encode(target) for target in targets])
        f1 = multiclass_f1_score(predicted, expected, num_classes=len(self.labels), average="macro")
        return {"accuracy": 100 * (predicted == expected).double().mean().item(), "macro_f1": 100 * f1.item()}

    def example_score(self, prediction: Tensor, target: str | SupportsIndex) -> tuple[float, float]:
        """Return 100 if the predicted class is correct, else 0. All weights are 1."""
        return (100.0 if int(prediction.argmax()) == int(self.encode(target)) else 0.0), 1.0

    def describe_target(self, target: str | SupportsIndex) -> str:
        return target if isinstance(target, str) else self.labels[int(self.encode(target))]

    def describe(self, prediction: Tensor) -> str:
        best = int(prediction.argmax())
        return f"{self.labels[best]} ({prediction[best]:.0%})"

    def describe_task(self, noun: str) -> str:
        return f"gives {noun} one of {len(self.labels):,} labels, with probabilities: {list_labels(self.labels)}."

    def describe_answer(self) -> str:
        return f"The answer is the softmax over {len(self.labels):,} logits, in the order of the labels."


@final
class TaggingHead(Head):
    """A linear classifier on the pooled tokens, with one yes-or-no decision per tag.

    A target is a collection of tags. A prediction is a tensor of C probabilities, one per tag.
    """

    max_score = 1.0
    task_tag = "tagging"

    def __init__(self, labels: Sequence[str], dim: int, *, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.labels, self.dim = check_labels(labels), dim
        self.label_index = {label: i for i, label in enumerate(self.labels)}
        self.pool = TokenPool(pooling, dim)
        self.trunk_output = "cls" if pooling == "cls" else "sequence"
        self.out = nn.Linear(dim, len(self.labels))

    def encode(self, target: Iterable[str]) -> Tensor:
        """Return the tags as a multi-hot vector (C,)."""
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

    def target_counts(self, target: Tensor) -> Tensor:
        return count_examples(target)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        # In float32, the sigmoid of every logit above 17 is 1, so large logits would give equal probabilities.
        return list(self.logits(tokens).cpu().double().sigmoid())

    def graph_output(self, tokens: Tokens) -> Tensor:
        """Return the probabilities (B, C)."""
        return self.logits(tokens).double().sigmoid()

    def describe_graph(self) -> list[str]:
        return [
            "The last axis of `output` has the probabilities of the labels.",
            "The answer consists of all labels with a probability of at least 0.5.",
        ]

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[Iterable[str]]) -> dict[str, float]:
        """Return the macro ROC-AUC, and the mean average precision without and with weights, from 0 to 1.

        The metrics are means over the tags that occur in some targets, but not in all targets. In `weighted_map`, the
        weight of a tag is its support, which is the number of targets with this tag. At chance level, ROC-AUC is 0.5,
        and the average precision of a tag is the share of examples with this tag.
        """
        # torchmetrics takes 250 MB of memory, so torchmetrics is imported only if metrics are computed.
        from torchmetrics.functional.classification import binary_auroc, binary_average_precision

        scores = torch.stack([*predictions])
        expected = torch.stack([self.encode(target) for target in targets]).long()
        tags = varying_labels(expected)
        if not tags:
            return dict.fromkeys(("macro_auc", "map", "weighted_map"), float("nan"))
        auc = [binary_auroc(scores[:, c], expected[:, c]).item() for c in tags]
        precision = [binary_average_precision(scores[:, c], expected[:, c]).item() for c in tags]
        support = expected[:, tags].sum(0).tolist()
        weighted = sum(count * value for count, value in zip(support, precision, strict=True)) / sum(support)
        return {"macro_auc": sum(auc) / len(tags), "map": sum(precision) / len(tags), "weighted_map": weighted}

    def check_targets(self, targets: Iterable[Iterable[str]]) -> None:
        """Raise InputError if no metric is defined, because each tag occurs in all targets or in no target."""
        encoded = [self.encode(target) for target in targets]
        if not encoded or not varying_labels(torch.stack(encoded)):
            raise InputError(
                f"no metric is defined for these {len(encoded)} examples: at least one tag must occur in some examples "
                "but not in all examples; use more examples, or other splits or folds"
            )

    def describe(self, prediction: Tensor) -> str:
        return ", ".join(f"{self.labels[c]} ({p:.0%})" for c, p in enumerate(prediction.tolist()) if p >= 0.5) or "none"

    def describe_task(self, noun: str) -> str:
        return f"gives {noun} any number of {len(self.labels):,} tags, with probabilities: {list_labels(self.labels)}."

    def describe_answer(self) -> str:
        return "The answer is the sigmoid of each logit, in the order of the tags. Tags of 50 % and more are named."


@final
class TokenPool(nn.Module):
    """Layer that pools the real tokens of an example to one vector.

    "mean" returns the mean of the tokens. "cls" returns the first token, which is the class token. "last" returns the
    last token. "attention" returns a weighted mean of the tokens. The weights are the softmax of a learned linear map
    of the tokens (sequence pooling, Hassani et al. 2021, section 3.2).
    """

    def __init__(self, pooling: Pooling, dim: int) -> None:
        super().__init__()
        self.pooling: Pooling = check_choice("pooling", pooling, get_args(Pooling))
        self.score = nn.Linear(dim, 1, bias=False) if pooling == "attention" else None

    def forward(self, tokens: Tokens) -> Tensor:
        """Map Tokens (B, D, N) to vectors (B, D)."""
        if self.pooling == "cls":
            return tokens.matrix[:, :, 0]
        if self.pooling == "last":
            return last_token(tokens)
        if self.score is None:
            return masked_mean(tokens)
        scores = self.score(tokens.matrix.mT)[..., 0].float()
        return _weighted_sum(tokens, scores.masked_fill(~tokens.mask, -torch.inf).softmax(1))


def last_token(tokens: Tokens) -> Tensor:
    """Return the last real token (B, D) of each example in Tokens (B, D, N)."""
    rows = torch.arange(tokens.mask.shape[0], device=tokens.mask.device)
    # As in `_weighted_sum`, a transposed view has the memory layout of the trunk's output.
    return tokens.matrix.mT[rows, tokens.mask.sum(1) - 1]


def masked_mean(tokens: Tokens) -> Tensor:
    """Return the mean (B, D) of the real tokens of Tokens (B, D, N)."""
    return _weighted_sum(tokens, tokens.mask) / tokens.mask.sum(1, keepdim=True)


def varying_labels(targets: Tensor) -> list[int]:
    """Return the indices of the labels that occur in some of the multi-hot targets (B, C), but not in all targets."""
    return [c for c, count in enumerate(targets.sum(0).tolist()) if 0 < count < len(targets)]


def _weighted_sum(tokens: Tokens, weights: Tensor) -> Tensor:
    """Return the weighted sum (B, D) of the tokens, with weights (B, N)."""
    # A transposed view has the memory layout of the trunk's output, so the gradients are not copied.
    return (tokens.matrix.mT * weights[..., None].to(tokens.matrix.dtype)).sum(1)
