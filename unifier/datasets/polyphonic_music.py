"""Four data sets of polyphonic music: JSB chorales, Nottingham, MuseData and Piano-midi."""

import gzip
import json
from pathlib import Path
from typing import Literal, final, get_args

from unifier.data.download import require_file
from unifier.data.inputs import MidiReader
from unifier.data.midi_files import Steps
from unifier.data.readers import read_content
from unifier.data.source import SPLITS, ScoreRange, SplitName, data_folder
from unifier.datasets.music_pieces import MusicPieces
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line

Collection = Literal["jsb_chorales", "nottingham", "muse_data", "piano_midi"]

FREQUENCY_NATS: dict[Collection, float] = {
    "jsb_chorales": 11.09,
    "nottingham": 10.26,
    "muse_data": 11.51,
    "piano_midi": 11.05,
}
"""Nats per step of the test split if each note is predicted by its frequency in train."""

REFERENCE_NATS: dict[Collection, float] = {"jsb_chorales": 8.10, "nottingham": 3.07}
"""Nats per step of the temporal convolutional network of Bai et al. 2018, table 1."""


@final
class PolyphonicMusic(MusicPieces[Steps]):
    """Polyphonic music as piano rolls, in the splits of Boulanger-Lewandowski et al. 2012.

    The input is a piece: the MIDI numbers of the sounding notes, 21 to 108, for each time step. There is no target,
    because a model predicts the next step. The files cannot be downloaded by unifier.
    """

    def __init__(self, name: Collection = "jsb_chorales", *, data: str | Path | None = None) -> None:
        """Choose the collection.

        Args:
            name: "jsb_chorales" (229, 76 and 77 chorales), "nottingham" (folk tunes), "muse_data" or "piano_midi".
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self.name: Collection = check_choice("data", name, get_args(Collection))
        self._data = data
        # The chorales have a step per quarter note, and the other collections have a step per eighth note.
        self.reader = MidiReader(1 if self.name == "jsb_chorales" else 2)
        self.score_range = ScoreRange(
            "nats_per_step",
            FREQUENCY_NATS[self.name],
            REFERENCE_NATS.get(self.name),
            "temporal convolutional network (Bai et al. 2018, table 1); chance is each note by its frequency",
        )

    def find_file(self) -> Path:
        folder = data_folder("polyphonic_music", self._data)
        file = f"{self.name}.json.gz"
        require_file(
            self.name,
            folder,
            (file,),
            f"put there {file}: a JSON object with train, valid and test, each a list of pieces, each a list of steps, "
            "each the list of the sounding MIDI notes",
        )
        return folder / file

    def read_file(self, path: Path) -> dict[SplitName, list[Steps]]:
        try:
            content = json.loads(gzip.decompress(read_content(path)))
        except (OSError, EOFError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {one_line(error)}") from error
        if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in _PARTS):
            raise InputError(f"{path}: an object with the lists {', '.join(_PARTS)} is expected")
        return {split: content[part] for split, part in zip(SPLITS, _PARTS, strict=True)}


_PARTS = ("train", "valid", "test")
