"""Preparation of raw inputs, for training and for trained models: one class per modality."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unifier.data.audio_files import read_audio
from unifier.data.image_files import PixelArray, read_image
from unifier.data.midi_files import read_midi
from unifier.data.readers import Archive
from unifier.data.video_files import read_clip
from unifier.heads.sentence_selection import split_sentences
from unifier_tokenizers import (
    Audio,
    InputError,
    ItemTokenizer,
    MarkedText,
    Mixture,
    PatchTokenizer,
    PianoRollTokenizer,
    PixelTokenizer,
    PretrainedTextTokenizer,
    SampleTokenizer,
    SubwordTokenizer,
    Tokenizer,
    VideoTokenizer,
    WordTokenizer,
)
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.configurable import Configurable
from unifier_tokenizers.image import to_array


class InputReader(Configurable, ABC):
    """Base class of the preparation of one modality, which turns a file or an object into a tokenizer's raw input."""

    @abstractmethod
    def __call__(self, path: Path) -> Any:
        """Read the raw input from a file. Raises InputError if the file cannot be read."""

    @abstractmethod
    def prepare(self, value: Any) -> Any:
        """Prepare an object, such as a path, a PIL image, an array or a text, as in training.

        Raises:
            InputError: The object is not an input of this modality.
        """


@final
@dataclass(frozen=True)
class ImageReader(InputReader):
    """Preparation of pictures as uint8 pixels (H, W, channels)."""

    channels: Literal[1, 3] = 3
    """3 for color, 1 for gray."""
    size: int | None = None
    """Maximum length of the longer side in pixels. Larger pictures are reduced. None means no limit."""

    def __call__(self, path: Path, archive: Archive | None = None) -> PixelArray:
        return read_image(path, self.channels, archive, self.size)

    def prepare(self, value: Any) -> PixelArray:
        if isinstance(value, str | Path):
            return self(Path(value))
        if not isinstance(value, Image.Image):
            shape = np.shape(value)
            pixels = to_array(value, shape[2] if len(shape) == 3 else 1)
            if pixels.shape[2] == self.channels and (self.size is None or max(pixels.shape[:2]) <= self.size):
                return pixels  # Pillow would not change the pixels, and would take half as long as the network.
            value = _to_image(pixels)
        image = _to_image(to_array(value, self.channels))
        if self.size is not None:
            image.thumbnail((self.size, self.size))
        return to_array(image, self.channels)


def _to_image(pixels: PixelArray) -> Image.Image:
    """Convert pixels (H, W, C) to a PIL image, whose gray pixels have no axis of channels."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


@final
@dataclass(frozen=True)
class AudioReader(InputReader):
    """Preparation of sounds as `Audio`. The tokenizer mixes the channels and resamples the sound."""

    def __call__(self, path: Path, archive: Archive | None = None) -> Audio:
        return read_audio(path, archive)

    def prepare(self, value: Any) -> Audio:
        if isinstance(value, str | Path):
            return self(Path(value))
        if isinstance(value, tuple) and len(value) == 2:
            return Audio(*value)
        raise InputError(
            f"a sound is expected, as a path or as Audio(waveform, sample_rate), not {type(value).__name__}"
        )


@final
@dataclass(frozen=True)
class VideoReader(InputReader):
    """Preparation of video clips. An animated GIF or a .npy file becomes an array, and arrays are not changed."""

    channels: Literal[1, 3] = 3
    """3 for color, 1 for gray."""

    def __call__(self, path: Path) -> NDArray[np.uint8]:
        return read_clip(path, self.channels)

    def prepare(self, value: Any) -> Any:
        return self(Path(value)) if isinstance(value, str | Path) else value


@final
@dataclass(frozen=True)
class TextReader(InputReader):
    """Preparation of texts, which are not changed. A file contains one text per line.

    A sequence of words or sentences is accepted too, for tokenizers that read words or sentences.
    """

    marked: bool = False
    """True if the names of extra entries of the vocabulary mean these entries (see `MarkedText`)."""
    sentences: bool = False
    """True if a text is split into its sentences (see `split_sentences`)."""
    default_code: str = ""
    """The name of an extra entry, such as "<theo>", that is written before a text that does not begin with "<"."""
    direct: bool = False
    """True if commands accept a text in place of a file."""

    def __call__(self, path: Path) -> str:
        raise InputError(f"{path}: a text is expected, not a file; read the lines of the file")

    def prepare(self, value: Any) -> str | Sequence[str]:
        if isinstance(value, str) and self.sentences:
            return split_sentences(value)
        if isinstance(value, str):
            if self.default_code and value.strip() and not value.lstrip().startswith("<"):
                value = f"{self.default_code} {value.strip()}"
            return MarkedText(value) if self.marked else value
        if isinstance(value, tuple | list) and value and isinstance(value[0], str):
            return value
        raise InputError(f"a text is expected, not {type(value).__name__}")


@final
@dataclass(frozen=True)
class MixtureReader(InputReader):
    """Preparation of the inputs of a mixture: a mapping with one input per member."""

    members: Mapping[str, InputReader]

    def __call__(self, path: Path) -> Any:
        raise InputError(f"{path}: a mapping with the keys {', '.join(self.members)} is expected, not a file")

    def prepare(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InputError(
                f"a mapping with the keys {', '.join(self.members)} is expected, not {type(value).__name__}"
            )
        return {
            name: self.members[name].prepare(part) if name in self.members else part for name, part in value.items()
        }


@final
@dataclass(frozen=True)
class MidiReader(InputReader):
    """Preparation of symbolic music: a MIDI file becomes the notes of each time step. Other objects are not changed."""

    steps_per_beat: int = 2
    """Number of time steps per beat."""
    voices: int | None = None
    """Number of voices, each with one note or a rest per step, the highest first. None means any number of notes."""

    def __call__(self, path: Path) -> Sequence[Sequence[int | None]]:
        steps = read_midi(path, self.steps_per_beat)
        if self.voices is None:
            return steps
        for n, notes in enumerate(steps):
            if len(notes) > self.voices:
                raise InputError(f"{path}: {len(notes)} notes sound in step {n}, but {self.voices} voices are expected")
        return [[*notes[::-1], *[None] * (self.voices - len(notes))] for notes in steps]

    def prepare(self, value: Any) -> Any:
        return self(Path(value)) if isinstance(value, str | Path) else value


@final
@dataclass(frozen=True)
class SeriesReader(InputReader):
    """Preparation of time series: the last `context` time steps of a table, as an array (channels, context)."""

    channels: tuple[str, ...]
    """The columns of the table."""
    mean: tuple[float, ...]
    """The mean of each channel over the training rows, for errors on the scale of the training."""
    std: tuple[float, ...]
    """The standard deviation of each channel over the training rows."""
    context: int
    """The number of time steps of a window."""
    joint: bool
    """True if an input has all channels. False if each channel is an input."""

    def __post_init__(self) -> None:
        for name in ("channels", "mean", "std"):  # A model's folder stores lists.
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def __call__(self, path: Path) -> Any:
        raise InputError(f"{path}: an array (channels, {self.context}) is expected, not a file")

    def prepare(self, value: Any) -> Any:
        return value

    def standardize(self, series: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return channels (C, rows) with the training mean 0 and the training standard deviation 1."""
        return (series - np.array(self.mean)[:, None]) / np.array(self.std)[:, None]


@final
@dataclass(frozen=True)
class ItemReader(InputReader):
    """Preparation of sequences of items. Each line of a file contains item numbers with spaces between them."""

    def __call__(self, path: Path) -> str:
        raise InputError(f"{path}: item numbers are expected, not a file; read the lines of the file")

    def prepare(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return [int(item) for item in value.split()]
        except ValueError:
            raise InputError(f"{value!r}: item numbers with spaces between them are expected, such as 3 17") from None


@final
@dataclass(frozen=True)
class RawReader(InputReader):
    """No preparation: the tokenizer reads the object itself."""

    def __call__(self, path: Path) -> Path:
        return path

    def prepare(self, value: Any) -> Any:
        return value


def reader_of(source: object, tokenizer: Tokenizer, *, marked: bool = False) -> InputReader:
    """Return the preparation of a source's inputs: its attribute `reader`, or a default for the class of tokenizer.

    Args:
        source: The data set.
        tokenizer: The tokenizer.
        marked: See `TextReader`.
    """
    reader = getattr(source, "reader", None)
    if isinstance(reader, InputReader):
        return reader
    if isinstance(tokenizer, Mixture):
        return MixtureReader(
            {name: reader_of(None, member, marked=marked) for name, member in tokenizer.members.items()}
        )
    if isinstance(tokenizer, PatchTokenizer):
        return ImageReader(1 if tokenizer.channels == 1 else 3)
    if isinstance(tokenizer, VideoTokenizer):
        return VideoReader(1 if tokenizer.channels == 1 else 3)
    if isinstance(tokenizer, PixelTokenizer):
        return ImageReader(1)
    if isinstance(tokenizer, PianoRollTokenizer):
        return MidiReader()
    if isinstance(tokenizer, ItemTokenizer):
        return ItemReader()
    if isinstance(tokenizer, AudioTokenizer | SampleTokenizer):
        return AudioReader()
    return (
        TextReader(marked, sentences=isinstance(tokenizer, SubwordTokenizer) and tokenizer.sentences)
        if isinstance(tokenizer, SubwordTokenizer | WordTokenizer | PretrainedTextTokenizer)
        else RawReader()
    )
