"""Test pictures and tunes of which a model sees the first half and generates the second half, for the report."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unifier.data.inputs import MidiReader, reader_of
from unifier.data.midi_files import BEAT_SECONDS
from unifier.data.synthesis import SAMPLE_RATE, synthesize
from unifier.experiment import Task
from unifier.figures.render import RenderLimits, render_input
from unifier.heads.continuation import CachedTrunk, continue_pictures, continue_sequences
from unifier.heads.generation import token_sampler
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.heads.multi_label_next import MultiLabelNextHead
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import PianoRollTokenizer, PixelTokenizer

HALF_STEPS = 16
"""Maximum number of time steps of a given half and of a generated half of a tune."""

UNKNOWN_COLOR = (178, 192, 212)
"""Color of the half of a picture that is not given."""

TUNE = RenderLimits(seconds=60, sample_rate=SAMPLE_RATE, lossy=True)


def continue_samples(model: UnifierModule, task: Task, raws: Sequence[Any]) -> list[dict[str, str]]:
    """Return the entries of each sample with its continuation, drawn at temperature 1.

    Tasks that predict neither pixels nor notes have no continuations, nor have trunks without a KV cache.

    Args:
        model: The trained model.
        task: A task of the model.
        raws: The raw inputs. The seed of the random numbers is the index of an input.
    """
    training, generators = model.training, [torch.Generator().manual_seed(k) for k in range(len(raws))]
    if not isinstance(model.trunk, Transformer):
        return [{} for _ in raws]
    model.eval()
    try:
        with torch.inference_mode():
            if isinstance(task.tokenizer, PixelTokenizer) and isinstance(task.head, LanguageModelingHead):
                return _continue_pictures(model, task.tokenizer, task.head, raws, generators)
            if isinstance(task.tokenizer, PianoRollTokenizer) and isinstance(task.head, MultiLabelNextHead):
                return [_continue_tune(model, task, raw, each) for raw, each in zip(raws, generators, strict=True)]
    finally:
        model.train(training)
    return [{} for _ in raws]


def _continue_pictures(
    model: UnifierModule,
    tokenizer: PixelTokenizer,
    head: LanguageModelingHead,
    raws: Sequence[Any],
    generators: Sequence[torch.Generator],
) -> list[dict[str, str]]:
    ids = torch.stack([tokenizer.encode(raw).values for raw in raws]).to(model.device)
    rows = tokenizer.side // 2
    given = ids[:, : 1 + rows * tokenizer.side]
    continued = continue_pictures(tokenizer, model.trunk, head, given, token_sampler(generators))
    samples = list[dict[str, str]]()
    for original, new in zip(tokenizer.to_pixels(ids[:, 1:]), tokenizer.to_pixels(continued), strict=True):
        shown = np.repeat(original[:, :, None], 3, 2)
        shown[rows:] = UNKNOWN_COLOR
        pictures = {"image": shown, "prediction_image": new, "target_image": original}
        urls = {name: render_input(Image.fromarray(each), tokenizer)["image"] for name, each in pictures.items()}
        samples.append({"marks": "continuation", **urls})
    return samples


def _continue_tune(model: UnifierModule, task: Task, raw: Any, generator: torch.Generator) -> dict[str, str]:
    head, values = task.head, task.tokenizer.encode(raw).values
    assert isinstance(head, MultiLabelNextHead)
    half = min(HALF_STEPS, values.shape[1] // 2)
    if not half:  # A tune of one step has no second half.
        return {}
    cached = CachedTrunk(task.tokenizer, model.trunk, 2 * half + 1)
    sample = partial(head.sample, generators=[generator])
    continued = continue_sequences(cached, values[None, :, :half].to(model.device), half, sample)[0].cpu()
    reader = reader_of(task.source, task.tokenizer)
    rate = reader.steps_per_beat if isinstance(reader, MidiReader) else MidiReader().steps_per_beat

    def sound_url(roll: Tensor) -> str:
        sound = synthesize(PianoRollTokenizer.to_steps(roll), BEAT_SECONDS / rate)
        return render_input(sound, task.tokenizer, TUNE)["audio"]

    return {
        "marks": "continuation",
        "prediction_audio": sound_url(continued),
        "target_audio": sound_url(values[:, : 2 * half]),
        "input": f"the first {half} steps, {BEAT_SECONDS / rate:g} s each",
    }
