"""Some test examples with what was said of them, as a page can show and play them."""

import base64
import io
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image

from unifier.data.source import where
from unifier.study.experiment import Arm
from unifier_tokenizers import InputError
from unifier_tokenizers.image import to_array
from unifier_tokenizers.parts.sound import Sound, at_rate

SAMPLES = 12
"""How many test examples of each arm are kept."""

SIDE = 160
"""The longer side of a kept picture is at most this, in pixels."""

SECONDS, RATE = 5.0, 16_000
"""A kept sound is its beginning, at no higher rate (Hz)."""


def samples(arms: Mapping[str, Arm], predictions: Mapping[str, Mapping[int, Any]]) -> dict[str, list[dict[str, str]]]:
    """For each arm some test examples: input, target, prediction, and a picture or a sound where the input is one.

    `predictions` are by arm and by the example's index.
    """
    kept: dict[str, list[dict[str, str]]] = {}
    for arm, one in arms.items():
        examples, found = one.source.split("test"), predictions[arm]
        chosen = random.Random(0).sample(sorted(found), min(SAMPLES, len(found)))
        kept[arm] = [
            {
                "input": example.input if isinstance(example.input, str) else where(examples, i),
                "target": str(example.target),
                "prediction": one.head.describe(found[i]),
                **shown(example.input),
            }
            for i in chosen
            for example in [examples[i]]
        ]
    return kept


def shown(raw: Any) -> dict[str, str]:
    """A picture as "image" and a sound as "audio", each a data URL; of a mixture, the first of each."""
    if isinstance(raw, Mapping):
        found: dict[str, str] = {}
        for part in raw.values():
            found = {**shown(part), **found}
        return found
    with suppress(InputError):  # an array that is no picture, a waveform of whole numbers
        if isinstance(raw, Sound):
            return {"audio": _flac(raw)}
        if isinstance(raw, Image.Image | np.ndarray | torch.Tensor):
            return {"image": _png(raw)}
    return {}


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
