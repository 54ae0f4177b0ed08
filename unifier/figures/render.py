"""Raw inputs and targets as texts, pictures and sounds for the report."""

import base64
import io
from collections.abc import Collection, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray
from PIL import Image

from unifier.experiment import Task
from unifier.figures.box_figures import SCALE_TO, draw_boxes
from unifier.figures.mask_figures import lay_over
from unifier.figures.time_figures import WIDTH, draw_time
from unifier.heads.detection import DetectionHead, true_objects
from unifier.heads.head import Head
from unifier.heads.question_answering import (
    CONTEXT,
    QUESTION,
    QuestionAnsweringHead,
    context_of,
    context_token_seconds,
    mark_spans,
)
from unifier.heads.segmentation import SegmentationHead
from unifier.heads.token_classification import describe_labels
from unifier_tokenizers import (
    InputError,
    Mixture,
    PatchTokenizer,
    PixelTokenizer,
    SeriesTokenizer,
    SubwordTokenizer,
    Tokenizer,
    VideoTokenizer,
    WordTokenizer,
)
from unifier_tokenizers.audio import Audio, resample
from unifier_tokenizers.image import to_array
from unifier_tokenizers.video import clip_to_array


@final
@dataclass(frozen=True)
class RenderLimits:
    """Maximum sizes of a rendered input."""

    side: int = 160
    """Length of the longer side of a picture, in pixels."""
    seconds: float = 5.0
    """Length of a sound in seconds."""
    sample_rate: int = 16_000
    """Sample rate of a sound in Hz."""
    letters: int = 500
    """Length of a text in characters."""
    lossy: bool = False
    """Use WebP and MP3, which are smaller than PNG and FLAC."""


SAMPLE = RenderLimits()
"""The limits of an example in samples.json."""

THUMBNAIL = RenderLimits(side=64, seconds=1.0, sample_rate=8000, letters=200, lossy=True)
"""The limits of an example on a map. A picture or a sound takes about 2 KB."""


def render_input(raw: Any, tokenizer: Tokenizer, limits: RenderLimits = SAMPLE) -> dict[str, str]:
    """Convert a raw input for display in the report.

    The key of the result is "image" for a picture, "audio" for a sound and "input" for a text. Pictures and sounds are
    returned as data URLs. For a mixture, the first picture, the first sound and all texts are returned. An array is
    treated as a picture if the tokenizer reads pictures.

    Args:
        raw: The raw input.
        tokenizer: The tokenizer of the input.
        limits: Maximum sizes. A sound that is too long is cut to its start, or to its loudest part if `lossy` is set.
    """
    if isinstance(raw, Mapping):
        members = tokenizer.members if isinstance(tokenizer, Mixture) else dict.fromkeys(raw, tokenizer)
        parts = [render_input(part, members[name], limits) for name, part in raw.items()]
        text = ", ".join(part["input"] for part in parts if "input" in part)
        first = {kind: content for part in reversed(parts) for kind, content in part.items()}
        return {**first, "input": shorten(text, limits.letters)} if text else first
    if isinstance(raw, Audio | Image.Image) or isinstance(tokenizer, PatchTokenizer | PixelTokenizer):
        with suppress(InputError):  # Not every array is a picture, and an integer waveform is not a sound.
            if isinstance(raw, Audio):
                return {"audio": _sound_url(raw, limits)}
            return {"image": _picture_url(raw, limits)}
        return {}
    if isinstance(tokenizer, VideoTokenizer):  # The frames side by side are one picture.
        return {"image": _picture_url(np.concatenate([*clip_to_array(raw, tokenizer.channels)], axis=1), limits)}
    if isinstance(tokenizer, SeriesTokenizer):  # A figure of the report shows series.
        return {}
    is_text = isinstance(tokenizer, SubwordTokenizer | WordTokenizer)
    if is_text and isinstance(raw, tuple | list) and all(isinstance(part, str) for part in raw):
        raw = " ".join(raw)  # The words of a sentence, or the sentences of a text.
    text = describe_input(raw)
    return {"input": shorten(text, limits.letters)} if text else {}


def render_masks(head: Head, raw: Any, target: Any, prediction: Any) -> dict[str, str]:
    """Return the masks of a segmentation, laid over their picture, as data URLs. Return {} for other heads."""
    if not isinstance(head, SegmentationHead):
        return {}
    picture = _pixels(raw)
    height, width = picture.shape[:2]
    masks = {"target_image": np.asarray(target), "prediction_image": prediction.numpy()[:height, :width]}
    return {name: _picture_url(lay_over(picture, mask, len(head.labels)), SAMPLE) for name, mask in masks.items()}


def render_boxes(head: Head, raw: Any, target: Any, prediction: Any) -> dict[str, str]:
    """Return a picture with its true and its found objects, as data URLs. Return {} for other heads."""
    if not isinstance(head, DetectionHead):
        return {}
    picture = _pixels(raw)
    boxes = {"target_image": true_objects(target), "prediction_image": prediction}
    limits = RenderLimits(side=SCALE_TO)  # The names beside the boxes cannot be read in a smaller picture.
    return {name: _picture_url(draw_boxes(picture, each, head.labels), limits) for name, each in boxes.items()}


def _pixels(raw: Any) -> NDArray[np.uint8]:
    """Return a picture as pixels (H, W, 1) or (H, W, 3)."""
    return to_array(raw, 1 if np.ndim(raw) == 2 or np.shape(raw)[2:] == (1,) else 3)


def render_spans(head: Head, raw: Any, target: Any, prediction: Any) -> dict[str, str]:
    """Return a question, and its context with the true and the predicted span. Return {} for other heads."""
    if not isinstance(head, QuestionAnsweringHead) or (context := context_of(raw)) is None:
        return {}
    (first, last), (begin, end) = prediction.tolist(), head.encode(target).tolist()
    question = describe_input(raw.get(QUESTION)) if isinstance(raw, Mapping) else ""
    spans = {"true": (begin, end), "predicted": (first, last)}
    return {"marks": "entities", "question": question, "context": mark_spans(context, spans)}


def render_times(task: Task, raw: Any, target: Any, prediction: Any) -> dict[str, str]:
    """Return a question, and its sound with the true and with the predicted time. Return {} for other tasks."""
    seconds = context_token_seconds(task.tokenizer)
    if not isinstance(task.head, QuestionAnsweringHead) or seconds is None:
        return {}
    spans = {"target_image": task.head.encode(target).tolist(), "prediction_image": prediction.tolist()}
    pictures = {
        name: draw_time(raw[CONTEXT], first * seconds, (last + 1) * seconds) for name, (first, last) in spans.items()
    }
    limits = RenderLimits(side=WIDTH)
    drawn = {name: _picture_url(picture, limits) for name, picture in pictures.items()}
    return {"question": describe_input(raw[QUESTION]), **drawn}


def describe_input(raw: Any) -> str:
    """Convert a text, a number, or a collection of texts and numbers to a text. Return "" for any other input."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, np.ndarray | np.generic | torch.Tensor):
        return describe_input(raw.reshape(-1)[: SAMPLE.letters].tolist())
    if isinstance(raw, int | float):
        return f"{raw:.4g}" if isinstance(raw, float) else str(raw)
    if not isinstance(raw, Collection):
        return ""
    items = islice(sorted(raw, key=str) if isinstance(raw, Set) else raw, SAMPLE.letters)
    return ", ".join(filter(None, map(describe_input, items))) if raw else "none"


def describe_target(head: Head, target: Any) -> str:
    """Return a target as a text. A class index is replaced by the label of the class."""
    return head.describe_target(target) or describe_input(target) or str(target)


def describe_answer(task: Task, raw: Any, target: Any, prediction: Any) -> tuple[str, str]:
    """Return a target and a prediction as texts. Labels of words are marked in the words of the input."""
    target_text = describe_labels(task.head, task.tokenizer, raw, target)
    if target_text is None:
        return describe_target(task.head, target), task.head.describe(prediction)
    return target_text, describe_labels(task.head, task.tokenizer, raw, prediction) or task.head.describe(prediction)


def shorten(text: str, letters: int = SAMPLE.letters) -> str:
    """Truncate a text to a number of letters."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _picture_url(raw: Image.Image | np.ndarray | torch.Tensor, limits: RenderLimits) -> str:
    gray = raw.mode in ("1", "L") if isinstance(raw, Image.Image) else raw.ndim == 2 or raw.shape[-1:] == (1,)
    array = to_array(raw, 1 if gray else 3)
    image = Image.fromarray(array[:, :, 0] if gray else array)
    image.thumbnail((limits.side, limits.side))
    data = io.BytesIO()
    if limits.lossy:
        # The colors of single pixels matter in pictures of a few pixels, such as digits.
        image.save(data, "WEBP", lossless=max(image.size) <= limits.side // 2, quality=70)
        return _data_url("image/webp", data)
    image.save(data, "PNG", optimize=True)
    return _data_url("image/png", data)


def _sound_url(audio: Audio, limits: RenderLimits) -> str:
    count = max(round(limits.seconds * audio.sample_rate), 1)
    part = _loudest_part(audio, count) if limits.lossy else audio.waveform[..., :count]
    # MP3 has few sample rates.
    rate = limits.sample_rate if limits.lossy else min(int(audio.sample_rate), limits.sample_rate)
    samples = resample(audio._replace(waveform=part), rate, 1).clamp(-1, 1).numpy()
    data = io.BytesIO()
    if limits.lossy:
        soundfile.write(data, samples, rate, format="MP3", compression_level=0.9)
        return _data_url("audio/mpeg", data)
    soundfile.write(data, samples, rate, format="FLAC", subtype="PCM_16")
    return _data_url("audio/flac", data)


def _loudest_part(audio: Audio, count: int) -> torch.Tensor:
    """Return the loudest of the parts (..., count) that follow one another in a sound."""
    waveform = audio.waveform
    waveform = waveform if isinstance(waveform, torch.Tensor) else torch.tensor(np.array(waveform))
    parts = waveform.split(count, -1)
    return parts[int(np.argmax([float(part.float().square().sum()) for part in parts]))]


def _data_url(media_type: str, data: io.BytesIO) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data.getvalue()).decode()}"
