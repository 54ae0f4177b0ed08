"""Generated speech in the report: its sound, the recorded sound, and a figure of its alignment with the text."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unifier.experiment import Task
from unifier.figures.render import RenderLimits, render_input
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead, Speech
from unifier.report.plot_speech import draw_speech, speech_png
from unifier_tokenizers import SubwordTokenizer, Tokenizer, Units

SPEECH = RenderLimits(seconds=30, lossy=True)


def render_speech(task: Task, raw: Any, target: Any, prediction: Any) -> dict[str, str]:
    """Return generated speech with its recording and its alignment as data URLs. Return {} for other heads.

    Args:
        task: The task.
        raw: The text.
        target: The recorded sound.
        prediction: The prediction of the head.
    """
    head = task.head
    if not isinstance(head, SpectrogramDecoderHead) or not isinstance(prediction, Speech):
        return {}
    sounds = {"prediction_audio": head.to_sound(prediction), "target_audio": target}
    png = speech_figure(head, task.tokenizer, task.tokenizer.encode(raw), prediction)
    return {
        "marks": "speech",
        **{name: render_input(sound, task.tokenizer, SPEECH)["audio"] for name, sound in sounds.items()},
        "prediction_image": f"data:image/png;base64,{base64.b64encode(png).decode()}",
    }


def speech_figure(head: SpectrogramDecoderHead, tokenizer: Tokenizer, units: Units, speech: Speech) -> bytes:
    """Return the figure of `draw_generated_speech` as a PNG file."""
    return speech_png(*_arrays(speech), token_names(tokenizer, units), _seconds(head, speech))


def draw_generated_speech(
    path: Path, head: SpectrogramDecoderHead, tokenizer: Tokenizer, units: Units, speech: Speech
) -> None:
    """Draw generated speech with its alignment as an SVG file.

    Args:
        path: The file to write.
        head: The head that generated the speech.
        tokenizer: The tokenizer of the text.
        units: The encoded text.
        speech: The prediction of the head.
    """
    draw_speech(path, *_arrays(speech), token_names(tokenizer, units), _seconds(head, speech))


def token_names(tokenizer: Tokenizer, units: Units) -> Sequence[str]:
    """Return a text for each token of an input. Other tokens than subwords are numbered."""
    if isinstance(tokenizer, SubwordTokenizer):
        return tokenizer.vocabulary.tokens(units.values.tolist())
    return [str(number) for number in range(units.values.shape[-1])]


def _arrays(speech: Speech) -> tuple[Any, Any]:
    return speech.spectrogram.float().numpy(force=True), speech.attention.float().numpy(force=True)


def _seconds(head: SpectrogramDecoderHead, speech: Speech) -> float:
    return speech.spectrogram.shape[1] * head.log_mel.frame_seconds
