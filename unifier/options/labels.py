"""Settings of heads for labels."""

from dataclasses import dataclass
from functools import cache
from typing import final

from unifier.data.source import LabeledSource, target_of
from unifier.experiment import fitted
from unifier.heads.classification import ClassificationHead, Pooling, TaggingHead
from unifier.heads.regression import target_moments
from unifier_tokenizers import InputError


@final
@dataclass(frozen=True)
class ClassifierConfig:
    """Settings of a head that classifies or tags."""

    pooling: Pooling = "mean"
    """Pooling of the tokens: mean (of all), cls (class token), attention (a learned weighted mean), or last (token)."""
    label_smoothing: float = 0.0
    """Share of the target probability that is spread over all classes in training."""

    def build(
        self, source: LabeledSource, dim: int, *, tags: bool = False, class_token: bool = True
    ) -> ClassificationHead | TaggingHead:
        """Create a head for the source's labels.

        Args:
            source: A data set with labels.
            dim: D, the number of features of a token.
            tags: True if an example may have several labels.
            class_token: True if the tokenizer can add a class token before the other tokens.
        """
        if self.pooling == "cls" and not class_token:
            raise InputError("pooling=cls: this tokenizer has no class token; set pooling=mean or pooling=attention")
        if not tags:
            return ClassificationHead(source.labels, dim, pooling=self.pooling, label_smoothing=self.label_smoothing)
        if self.label_smoothing:
            raise InputError(
                f"label_smoothing={self.label_smoothing}: tagging does not support label smoothing; leave it out"
            )
        return TaggingHead(source.labels, dim, pooling=self.pooling)


def fitted_moments(source: LabeledSource) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of each number of the training targets, for a `RegressionHead`.

    A loaded or resumed run reads the numbers from the run's folder.
    """

    @cache
    def moments() -> tuple[list[float], list[float]]:
        train = source.split("train")
        return target_moments(target_of(train, index) for index in range(len(train)))

    mean, std = (
        [
            fitted(f"{source.name}-{name}-{k}", lambda k=k, part=part: moments()[part][k], source)
            for k in range(len(source.labels))
        ]
        for part, name in enumerate(("mean", "std"))
    )
    return mean, std
