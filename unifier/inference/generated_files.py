"""Pictures, tunes and sounds that a model generates, as files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from unifier.data.inputs import MidiReader
from unifier.data.midi_files import BEAT_SECONDS, write_midi
from unifier.data.synthesis import synthesize
from unifier.files import check_output_folder
from unifier.heads.continuation import CachedTrunk, continue_pictures, continue_sequences, id_sampler
from unifier.heads.generation import token_sampler
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.heads.multi_label_next import MultiLabelNextHead
from unifier.inference.generate import GenerationOptions
from unifier.inference.model import Model
from unifier.inference.sound_folder import write_sound
from unifier.inference.stream import encode_input
from unifier_tokenizers import InputError, PianoRollTokenizer, PixelTokenizer, SampleTokenizer, VoiceTokenizer
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.voices import BEGIN_PIECE

DEFAULT_STEPS = 96
"""Default number of generated time steps of a tune."""

DEFAULT_SAMPLES = 4000
"""Default number of generated samples of a sound."""

FIRST_CHORD = [48, 55, 60, 64]
"""The first time step of a tune without a prompt, because a model learns no distribution of first steps: C major."""


@final
@dataclass(frozen=True)
class FileOptions:
    """Options of generated files."""

    out: Path
    """The folder, which is created. A file with an equal name is replaced."""
    count: int = 1
    """The number of pictures, tunes or sounds. The seed of each is 1 above the seed before."""
    keep: float = 0.5
    """The share of the rows of a given picture that is kept. The rows below are generated."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"count={self.count}: at least 1 is needed")
        if not 0 <= self.keep < 1:
            raise InputError(f"keep={self.keep}: a share from 0 to below 1 is needed")
        check_output_folder(self.out)


def generates_files(model: Model, task: str) -> bool:
    """Return True if the task generates pictures, tunes or sounds."""
    head, tokenizer = model.tasks[task].head, model.tasks[task].tokenizer
    if isinstance(head, LanguageModelingHead):
        return isinstance(tokenizer, PixelTokenizer | SampleTokenizer | VoiceTokenizer)
    return isinstance(head, MultiLabelNextHead) and isinstance(tokenizer, PianoRollTokenizer)


def generate_files(
    model: Model, task: str, prompt: str, options: GenerationOptions, files: FileOptions
) -> Iterator[Path]:
    """Generate pictures, tunes or sounds, and yield the path of each written file.

    Args:
        model: The model.
        task: The name of a task with `generates_files`.
        prompt: The path of a picture whose upper part is kept, or of a MIDI file or a sound that is continued. ""
            means no prompt.
        options: The options of the sampling.
        files: The folder and the number of files.

    Raises:
        InputError: The prompt cannot be read, or an option does not apply to the task.
    """
    given = _encode_prompt(model, task, prompt) if prompt else None
    generators = [torch.Generator().manual_seed(options.seed + k) for k in range(files.count)]
    paths = [files.out / f"{Path(prompt).stem or 'generated'}-seed{options.seed + k}" for k in range(files.count)]
    tokenizer = model.tasks[task].tokenizer
    if isinstance(tokenizer, PixelTokenizer):
        pictures = _generate_pictures(model, task, given, options, files.keep, generators)
        files.out.mkdir(parents=True, exist_ok=True)
        for path, picture in zip(paths, pictures, strict=True):
            yield _write(path.with_suffix(".png"), partial(Image.fromarray(picture).save, format="PNG"))
        return
    if isinstance(tokenizer, SampleTokenizer):
        sounds = _generate_codes(model, task, given, options, generators)
        files.out.mkdir(parents=True, exist_ok=True)
        for path, codes in zip(paths, sounds, strict=True):
            yield write_sound(path.with_suffix(".wav"), tokenizer.to_sound(codes))
        return
    if isinstance(tokenizer, VoiceTokenizer):
        tunes = _generate_voices(model, task, given, options, generators)
    else:
        rolls = _generate_rolls(model, task, given, options, generators)
        tunes = [PianoRollTokenizer.to_steps(roll) for roll in rolls]
    files.out.mkdir(parents=True, exist_ok=True)
    reader = model.tasks[task].reader
    rate = reader.steps_per_beat if isinstance(reader, MidiReader) else MidiReader().steps_per_beat
    for path, steps in zip(paths, tunes, strict=True):
        yield _write(path.with_suffix(".mid"), partial(write_midi, steps=steps, steps_per_beat=rate))
        yield write_sound(path.with_suffix(".wav"), synthesize(steps, BEAT_SECONDS / rate))


def _encode_prompt(model: Model, task: str, prompt: str) -> Tensor:
    """Return the values (..., N) of the picture, the tune or the sound in a file."""
    encoded = encode_input(model.tasks[task], prompt)
    if isinstance(encoded, InputError):
        raise InputError(str(encoded) if prompt in str(encoded) else f"{prompt}: {encoded}") from encoded
    return encoded.values.to(model.device)


def _generate_pictures(
    model: Model,
    task: str,
    given: Tensor | None,
    options: GenerationOptions,
    keep: float,
    generators: Sequence[torch.Generator],
) -> NDArray[np.uint8]:
    """Return pictures (B, side, side). Of a given picture, the upper rows are kept."""
    tokenizer, head = model.tasks[task].tokenizer, model.tasks[task].head
    assert isinstance(tokenizer, PixelTokenizer)
    assert isinstance(head, LanguageModelingHead)
    if options.tokens is not None:
        raise InputError(f"tokens={options.tokens}: a picture always has all its pixels; leave out --tokens")
    pick = token_sampler(generators, temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    begin = torch.tensor([tokenizer.grays], device=model.device)
    kept = begin if given is None else given[: 1 + round(keep * tokenizer.side) * tokenizer.side]
    with model.inference_mode():
        ids = continue_pictures(tokenizer, model.network.trunk, head, kept.expand(len(generators), -1), pick)
    return tokenizer.to_pixels(ids)


def _generate_rolls(
    model: Model, task: str, given: Tensor | None, options: GenerationOptions, generators: Sequence[torch.Generator]
) -> Tensor:
    """Return piano rolls (B, 88, N), which begin with the given piano roll (88, M)."""
    part = model.tasks[task]
    tokenizer, head = part.tokenizer, part.head
    assert isinstance(head, MultiLabelNextHead)
    if options.top_k is not None or options.top_p != 1:
        raise InputError("top_k and top_p choose among tokens, but notes are drawn one by one: set --temperature")
    start = tokenizer.encode([FIRST_CHORD]).values.to(model.device) if given is None else given
    cached = CachedTrunk(tokenizer, model.network.trunk, max(part.longest, 2))
    sample = partial(head.sample, generators=generators, temperature=options.temperature)
    start = start.expand(len(generators), -1, -1)
    with model.inference_mode():
        return continue_sequences(cached, start, options.tokens or DEFAULT_STEPS, sample).cpu()


def _generate_voices(
    model: Model, task: str, given: Tensor | None, options: GenerationOptions, generators: Sequence[torch.Generator]
) -> list[list[list[int]]]:
    """Return the sounding notes of each step of pieces in several voices. The pieces begin with the given ids (N,)."""
    part = model.tasks[task]
    tokenizer, head = part.tokenizer, part.head
    assert isinstance(tokenizer, VoiceTokenizer)
    assert isinstance(head, LanguageModelingHead)
    start = torch.tensor([BEGIN_PIECE], device=model.device) if given is None else given
    count = (options.tokens or DEFAULT_STEPS) * tokenizer.voices
    positions = tokenizer.note_positions(-(-(len(start) + count) // tokenizer.voices))
    pick = token_sampler(generators, temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    tokenizer.encoding.check(positions)
    cached = CachedTrunk(tokenizer, model.network.trunk, positions.shape[1], positions)
    with model.inference_mode():
        sample = id_sampler(head, pick, len(generators))
        ids = continue_sequences(cached, start.expand(len(generators), -1), count, sample).cpu()
    pieces = [tokenizer.to_steps(each) for each in ids]
    return [[sorted({note for note in step if note is not None}) for step in piece] for piece in pieces]


def _generate_codes(
    model: Model, task: str, given: Tensor | None, options: GenerationOptions, generators: Sequence[torch.Generator]
) -> Tensor:
    """Return the codes of sounds (B, N), which begin with the given ids (M,) after the begin token."""
    part = model.tasks[task]
    tokenizer, head = part.tokenizer, part.head
    assert isinstance(tokenizer, SampleTokenizer)
    assert isinstance(head, LanguageModelingHead)
    pick = token_sampler(generators, temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
    start = torch.tensor([tokenizer.num_codes], device=model.device) if given is None else given
    cached = CachedTrunk(tokenizer, model.network.trunk, head.context or max(part.longest, 2))
    start = start.expand(len(generators), -1)
    with model.inference_mode():
        sample = id_sampler(head, pick, len(generators))
        return continue_sequences(cached, start, options.tokens or DEFAULT_SAMPLES, sample)[:, 1:].cpu()


def _write(path: Path, write: Callable[[Path], object]) -> Path:
    """Write a file and return its path, or raise InputError if the file cannot be written."""
    try:
        write(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {one_line(error)}") from error
    return path
