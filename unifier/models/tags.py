"""Tags of a model for W&B and for the Hugging Face hub: the modalities of its inputs and the types of its heads."""

from collections.abc import Iterable, Mapping

from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.ctc import CTCHead
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.heads.masked_language_modeling import MaskedLanguageModelingHead
from unifier.heads.masked_reconstruction import MaskedReconstructionHead
from unifier.heads.regression import RegressionHead
from unifier.heads.segmentation import SegmentationHead
from unifier.heads.text_generation import TextGenerationHead
from unifier.heads.token_classification import TokenClassificationHead
from unifier.network import TaskModules
from unifier_tokenizers import (
    Mixture,
    PatchTokenizer,
    PretrainedTextTokenizer,
    SubwordTokenizer,
    Tokenizer,
    WordTokenizer,
)
from unifier_tokenizers.audio import AudioTokenizer

MODALITY_TAGS = {
    SubwordTokenizer: "text",
    WordTokenizer: "text",
    PretrainedTextTokenizer: "text",
    PatchTokenizer: "image",
    AudioTokenizer: "audio",
}
TASK_TAGS = {
    TextGenerationHead: "translation",
    ClassificationHead: "classification",
    TaggingHead: "tagging",
    TokenClassificationHead: "token-classification",
    MaskedLanguageModelingHead: "fill-mask",
    RegressionHead: "regression",
    MaskedReconstructionHead: "reconstruction",
    CTCHead: "speech-recognition",
    SegmentationHead: "segmentation",
    LanguageModelingHead: "text-generation",
}

PIPELINES = {
    ("text", "classification"): "text-classification",
    ("image", "classification"): "image-classification",
    ("audio", "classification"): "audio-classification",
    ("audio", "speech-recognition"): "automatic-speech-recognition",
    ("text", "token-classification"): "token-classification",
    ("image", "segmentation"): "image-segmentation",
    ("text", "translation"): "translation",
    ("text", "fill-mask"): "fill-mask",
    ("image", "reconstruction"): "image-feature-extraction",
    ("audio", "reconstruction"): "feature-extraction",
    ("text", "text-generation"): "text-generation",
    ("image", "translation"): "image-to-text",
    ("audio", "translation"): "automatic-speech-recognition",
}
"""The hub's `pipeline_tag` for each pair of tags of a task."""


def run_tags(tasks: Iterable[TaskModules]) -> list[str]:
    """Return tags for the modalities and head types of the tasks.

    Each member of a mixture has its own tag. The tag of an unknown tokenizer or head is the name of the class.
    """
    tasks = list(tasks)
    modalities = [_tag(member, MODALITY_TAGS) for task in tasks for member in _members(task.tokenizer)]
    return list(dict.fromkeys([*modalities, *(_tag(task.head, TASK_TAGS) for task in tasks)]))


def pipeline_tag(tasks: Iterable[TaskModules]) -> str | None:
    """Return the hub's `pipeline_tag`, or None if the tasks differ in it or the hub has no such pipeline."""
    pipelines = {PIPELINES.get(tuple(run_tags([task]))) for task in tasks}  # pyright: ignore[reportArgumentType]
    return pipelines.pop() if len(pipelines) == 1 else None


def _members(tokenizer: Tokenizer) -> list[Tokenizer]:
    if not isinstance(tokenizer, Mixture):
        return [tokenizer]
    return [leaf for member in tokenizer.members.values() for leaf in _members(member)]


def _tag(part: object, tags: Mapping[type, str]) -> str:
    return next((tag for kind, tag in tags.items() if isinstance(part, kind)), type(part).__name__)
