"""Test examples with their predictions, to be shown and played."""

import base64
import io
import random
from collections.abc import Collection, Mapping, Set
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image

from unifier.data.examples import split_of
from unifier.data.source import where
from unifier.heads.classification import ClassificationHead
from unifier.heads.head import Head
from unifier.study.experiment import Arm
from unifier_tokenizers import InputError, Mixture, PatchTokenizer, Tokenizer
from unifier_tokenizers.image import to_array
from unifier_tokenizers.parts.sound import Sound, at_rate

SAMPLES = 12
"""How many test examples of each arm are kept."""

SIDE = 160
"""The longer side of a kept picture is at most this, in pixels."""

SECONDS, RATE = 5.0, 16_000
"""A kept sound is its beginning, at no higher rate (Hz)."""

LETTERS = 500
"""A kept text is its beginning, if it is longer."""


def samples(arms: Mapping[str, Arm], predictions: Mapping[str, Mapping[int, Any]]) -> dict[str, list[dict[str, str]]]:
    """For each arm some test examples: input, target, prediction, and a picture or a sound where the input is one.

    An input that is shown neither way nor in words is named by its place.

    `predictions` are by arm and by the example's index.
    """
    kept: dict[str, list[dict[str, str]]] = {}
    for arm, one in arms.items():
        examples, found = split_of(one.source, "test"), predictions[arm]
        chosen = random.Random(0).sample(sorted(found), min(SAMPLES, len(found)))
        kept[arm] = [
            {
                "input": where(examples, i),
                "target": brief(_target_in_words(one.head, example.target)),
                "prediction": brief(one.head.describe(found[i])),
                **shown(example.input, one.tokenizer),
            }
            for i in chosen
            for example in [examples[i]]
        ]
    return kept


def shown(raw: Any, tokenizer: Tokenizer) -> dict[str, str]:
    """A picture as "image" and a sound as "audio", each a data URL; texts and numbers as "input".

    Of a mixture, the first picture and sound, and all texts. An array is a picture where the tokenizer reads pictures.
    """
    if isinstance(raw, Mapping):
        members = tokenizer.members if isinstance(tokenizer, Mixture) else dict.fromkeys(raw, tokenizer)
        parts = [shown(part, members[name]) for name, part in raw.items()]
        said = ", ".join(part["input"] for part in parts if "input" in part)
        first = {kind: found for part in reversed(parts) for kind, found in part.items()}
        return {**first, "input": brief(said)} if said else first
    if isinstance(raw, Sound | Image.Image) or isinstance(tokenizer, PatchTokenizer):
        with suppress(InputError):  # an array that is no picture, a waveform of whole numbers
            return {"audio": _flac(raw)} if isinstance(raw, Sound) else {"image": _png(raw)}
        return {}
    words = in_words(raw)
    return {"input": brief(words)} if words else {}


def in_words(raw: Any) -> str:
    """A text, numbers, or a collection of them as a person would read it; empty for what is neither."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, np.ndarray | np.generic | torch.Tensor):
        return in_words(raw.reshape(-1)[:LETTERS].tolist())
    if isinstance(raw, int | float):
        return f"{raw:.4g}" if isinstance(raw, float) else str(raw)
    if not isinstance(raw, Collection):
        return ""
    each = islice(sorted(raw, key=str) if isinstance(raw, Set) else raw, LETTERS)
    return ", ".join(filter(None, map(in_words, each))) if raw else "none"


def _target_in_words(head: Head, target: Any) -> str:
    if isinstance(head, ClassificationHead) and not isinstance(target, str):  # a label's number
        return head.labels[int(head.encode(target))]
    return in_words(target) or str(target)


def brief(text: str) -> str:
    """The text, or where it is longer than `LETTERS` its beginning."""
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _png(raw: Image.Image | np.ndarray | torch.Tensor) -> str:
    grey = raw.mode in ("1", "L") if isinstance(raw, Image.Image) else raw.ndim == 2 or raw.shape[-1:] == (1,)
    array = to_array(raw, 1 if grey else 3)
    picture = Image.fromarray(array[:, :, 0] if grey else array)
    picture.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    picture.save(data, "PNG", optimize=True)
    return _url("image/png", data)


def _flac(sound: Sound) -> str:
    rate = min(int(sound.rate), RATE)
    beginning = sound._replace(waveform=sound.waveform[..., : round(SECONDS * sound.rate)])
    waveform = at_rate(beginning, rate, 1)
    data = io.BytesIO()
    soundfile.write(data, waveform.clamp(-1, 1).numpy(), rate, format="FLAC", subtype="PCM_16")
    return _url("audio/flac", data)


def _url(kind: str, data: io.BytesIO) -> str:
    return f"data:{kind};base64,{base64.b64encode(data.getvalue()).decode()}"
