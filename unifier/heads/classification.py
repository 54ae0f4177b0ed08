"""One label for an example."""

import operator
from collections.abc import Sequence
from typing import SupportsIndex, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from unifier.heads.head import Head, check_labels
from unifier.heads.pooling import Pool, Pooling
from unifier.trunks.arithmetic.precision import exactly
from unifier_tokenizers import Dropout, InputError, Tokens
from unifier_tokenizers.errors import check_share


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
        self.pool = Pool(pooling, dim)
        self.reads = "first" if pooling == "first" else "all"
        self.label_smoothing = check_share("label_smoothing", label_smoothing)
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
        return exactly(self.out, self.dropout(self.pool(tokens)))

    def loss(self, tokens: Tokens, target: Tensor) -> Tensor:
        """Cross-entropy with labels (B,), or with distributions over them (B, C, 1), as mixed examples have."""
        target = target[..., 0] if target.is_floating_point() else target
        return functional.cross_entropy(self.logits(tokens), target, label_smoothing=self.label_smoothing)

    def predict(self, tokens: Tokens) -> list[Tensor]:
        return list(self.logits(tokens).softmax(-1).cpu())

    def metrics(self, predictions: Sequence[Tensor], targets: Sequence[str | SupportsIndex]) -> dict[str, float]:
        """Accuracy and macro F1 (the mean over classes of each one's F1), both in per cent."""
        # Here, since for scores alone it takes 250 MB.
        from torchmetrics.functional.classification import multiclass_f1_score

        found = torch.stack([*predictions]).argmax(-1)
        wanted = torch.stack([self.encode(target) for target in targets])
        f1 = multiclass_f1_score(found, wanted, num_classes=len(self.labels), average="macro")
        return {"accuracy": 100 * (found == wanted).double().mean().item(), "macro_f1": 100 * f1.item()}

    def describe(self, prediction: Tensor) -> str:
        best = int(prediction.argmax())
        return f"{self.labels[best]} ({prediction[best]:.0%})"
