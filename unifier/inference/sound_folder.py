"""A folder with the speech of each input text of a command, as WAV files."""

import sys
from io import BytesIO
from pathlib import Path
from typing import Any, final

import numpy as np
import soundfile

from unifier.files import check_output_folder, print_status
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead
from unifier.inference.attention_folder import input_stem
from unifier.inference.inputs import Input
from unifier.inference.model import Model
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.errors import one_line

DEFAULT_FOLDER = Path("generated")
"""The folder of generated sounds, if no folder is given."""


@final
class PredictedSpeech:
    """Writer of one sound per input text. The name of a sound has the number and the text of its input."""

    def __init__(self, model: Model, task: str, folder: Path | None) -> None:
        """Store the folder, which is created with the first sound.

        Args:
            model: The model.
            task: The name of the task.
            folder: The folder, which may exist. None means `DEFAULT_FOLDER`.

        Raises:
            InputError: The task gives no sounds, or the folder is a file.
        """
        head = model.tasks[task].head
        if not isinstance(head, SpectrogramDecoderHead):
            raise InputError(f"sounds: the task {task} gives no sounds; leave out --sounds")
        self._folder = DEFAULT_FOLDER if folder is None else folder
        check_output_folder(self._folder)
        self._head, self._number = head, 0

    def write(self, each: Input, prediction: Any) -> Path:
        """Write the sound of an input, and return its path. A warning names a sound without an end."""
        self._number += 1
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self._folder} cannot be created as a folder: {error.strerror}") from error
        if not prediction.ended:
            reason = f"the sound has no end, and was cut after {self._head.describe(prediction)}"
            print_status(f"warning: {each.place}: {reason}", sys.stderr)
        return write_sound(self._folder / f"{self._number:06}-{input_stem(each)}.wav", self._head.to_sound(prediction))


def write_sound(path: Path, sound: Audio) -> Path:
    """Write a WAV file and return its path, or raise InputError if the file cannot be written."""
    try:
        path.write_bytes(wav_bytes(sound))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {one_line(error)}") from error
    return path


def wav_bytes(sound: Audio) -> bytes:
    """Return the content of a WAV file with the sound."""
    file = BytesIO()
    soundfile.write(file, np.asarray(sound.waveform), sound.sample_rate, format="WAV")
    return file.getvalue()
