"""JSB chorales note by note: four voices in sixteenths."""

import io
from hashlib import sha256
from pathlib import Path
from typing import Any, final

import numpy as np

from unifier.data.download import RemoteFile, ensure_files
from unifier.data.inputs import MidiReader
from unifier.data.readers import read_content
from unifier.data.source import SPLITS, ScoreRange, SplitName
from unifier.datasets.music_pieces import MusicPieces
from unifier_tokenizers import InputError

JSB_HOME = "https://raw.githubusercontent.com/czhuang/JSB-Chorales-dataset/9a7f733ddb4ed91f48da64ac7f0f621c34aadd4d/"
JSB_FILE = "Jsb16thSeparated.npz"
JSB_FILES = {JSB_FILE: RemoteFile(102_808, "2adcdf0d57880c3763f104555072285fe7f9e3d6049fcc4b9830557b8d4a7820")}

Voices = list[list[int | None]]
"""The MIDI number of each of four voices, soprano first, for each sixteenth. None means a rest."""


@final
class JSBNotes(MusicPieces[Voices]):
    """Chorales of Bach in four voices and in sixteenths: 229 for train, 76 for val and 77 for test.

    The input is a piece: the MIDI number of each voice or None for a rest, for each sixteenth. There is no target,
    because a model predicts the next note. The pieces and splits are those of Boulanger-Lewandowski et al. 2012.

    Source: github.com/czhuang/JSB-Chorales-dataset.
    """

    name = "jsb_notes"
    voices = 4
    reader = MidiReader(4, voices)
    score_range = ScoreRange(
        "nats_per_note",
        0.627,
        None,
        "chance: back-off counts of the last two notes of a voice, the voice above and beat",
    )

    def __init__(self, *, data: str | Path | None = None) -> None:
        """Choose the folder with the file. None means the default folder; see `data_folder`."""
        self._data = data

    def find_file(self) -> Path:
        return ensure_files("polyphonic_music", JSB_HOME, JSB_FILES, self._data) / JSB_FILE

    def read_file(self, path: Path) -> dict[SplitName, list[Voices]]:
        # The file contains pickled objects, and pickle can execute code, so only the original file is read.
        content = read_content(path)
        if sha256(content).hexdigest() != JSB_FILES[JSB_FILE].sha256:
            raise InputError(f"{path} is not the original file, because its SHA-256 differs; get it from {JSB_HOME}")
        with np.load(io.BytesIO(content), allow_pickle=True, encoding="latin1") as arrays:
            parts = {"train": arrays["train"], "val": arrays["valid"], "test": arrays["test"]}
        return {split: [_to_voices(piece) for piece in parts[split]] for split in SPLITS}


def _to_voices(piece: Any) -> Voices:
    return [[None if np.isnan(note) else int(note) for note in step] for step in piece]
