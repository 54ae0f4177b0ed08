"""Tags of a model for W&B and for the Hugging Face hub: the modalities of its inputs and the types of its heads."""

from collections.abc import Iterable

from unifier.network import TaskModules
from unifier_tokenizers import (
    ItemTokenizer,
    Mixture,
    PatchTokenizer,
    PianoRollTokenizer,
    PixelTokenizer,
    PretrainedTextTokenizer,
    SampleTokenizer,
    SeriesTokenizer,
    SubwordTokenizer,
    Tokenizer,
    VideoTokenizer,
    VoiceTokenizer,
    WordTokenizer,
)
from unifier_tokenizers.audio import AudioTokenizer

MODALITY_TAGS = {
    SubwordTokenizer: "text",
    WordTokenizer: "text",
    PretrainedTextTokenizer: "text",
    PatchTokenizer: "image",
    PixelTokenizer: "image",
    VideoTokenizer: "video",
    AudioTokenizer: "audio",
    SampleTokenizer: "audio",
    ItemTokenizer: "items",
    SeriesTokenizer: "series",
    PianoRollTokenizer: "music",
    VoiceTokenizer: "music",
}
PIPELINES = {
    ("text", "classification"): "text-classification",
    ("image", "classification"): "image-classification",
    ("video", "classification"): "video-classification",
    ("audio", "classification"): "audio-classification",
    ("audio", "speech-recognition"): "automatic-speech-recognition",
    ("text", "token-classification"): "token-classification",
    ("image", "segmentation"): "image-segmentation",
    ("text", "translation"): "translation",
    ("text", "summarization"): "summarization",
    ("text", "fill-mask"): "fill-mask",
    ("image", "reconstruction"): "image-feature-extraction",
    ("audio", "reconstruction"): "feature-extraction",
    ("text", "text-generation"): "text-generation",
    ("series", "forecasting"): "time-series-forecasting",
    ("image", "translation"): "image-to-text",
    ("audio", "translation"): "automatic-speech-recognition",
}
"""The hub's `pipeline_tag` for each pair of tags of a task."""


def run_tags(tasks: Iterable[TaskModules]) -> list[str]:
    """Return tags for the modalities and head types of the tasks.

    Each member of a mixture has its own tag. The tag of an unknown tokenizer or head is the name of the class.
    """
    tasks = list(tasks)
    modalities = [_modality_tag(member) for task in tasks for member in _members(task.tokenizer)]
    kinds = [task.head.task_tag or type(task.head).__name__ for task in tasks]
    return list(dict.fromkeys([*modalities, *kinds]))


def pipeline_tag(tasks: Iterable[TaskModules]) -> str | None:
    """Return the hub's `pipeline_tag`, or None if the tasks differ in it or the hub has no such pipeline."""
    pipelines = {PIPELINES.get(tuple(run_tags([task]))) for task in tasks}  # pyright: ignore[reportArgumentType]
    return pipelines.pop() if len(pipelines) == 1 else None


def _members(tokenizer: Tokenizer) -> list[Tokenizer]:
    if not isinstance(tokenizer, Mixture):
        return [tokenizer]
    return [leaf for member in tokenizer.members.values() for leaf in _members(member)]


def _modality_tag(tokenizer: Tokenizer) -> str:
    return next((tag for kind, tag in MODALITY_TAGS.items() if isinstance(tokenizer, kind)), type(tokenizer).__name__)
