"""Your own symbolic music: a folder of MIDI files."""

from functools import cached_property, partial
from pathlib import Path
from typing import final

from unifier.data.dataset import Examples
from unifier.data.inputs import MidiReader
from unifier.data.midi_files import MIDI_SUFFIXES
from unifier.data.readers import hash_all, hash_each
from unifier.data.source import SPLITS, UNREADABLE_MARK, Example, SplitName
from unifier.data.splits import hold_out
from unifier.datasets.class_folders import task_name, visible_files
from unifier_tokenizers import InputError


@final
class MidiFolder:
    """MIDI files of a folder: in train/, val/ and test/, or anywhere in the folder.

    The input is a piece: the MIDI numbers of the sounding notes, 21 to 108, for each time step. There is no target. A
    tenth of the files is held out for each missing split, val or test, with a fixed seed. Other files are left out.
    """

    def __init__(self, path: str | Path, *, steps_per_beat: int = 2) -> None:
        """Store the path of the folder. The files are read later.

        Args:
            path: The folder.
            steps_per_beat: The number of time steps per beat of a MIDI file.
        """
        if steps_per_beat < 1:
            raise InputError(f"steps_per_beat={steps_per_beat}: at least 1 step is needed")
        self._folder = Path(path)
        self.reader = MidiReader(steps_per_beat)
        self.name = task_name(self._folder)

    def split(self, name: SplitName) -> Examples[Path]:
        """Return the pieces of one split, sorted by path.

        Raises:
            InputError: The folder has too few MIDI files. Reading a damaged file also raises an InputError.
        """
        paths = [path for path, part in self._parts.items() if part == name]
        return Examples(paths, partial(_read, self.reader), str)

    @cached_property
    def sha256(self) -> str:
        """The hash of all files and of their paths in the folder."""
        files = {path.relative_to(self._folder).as_posix(): path for path in self._parts}
        return hash_all(hash_each(files, unreadable=UNREADABLE_MARK))

    @cached_property
    def _parts(self) -> dict[Path, SplitName]:
        """The split of each file."""
        if not self._folder.is_dir():
            raise InputError(f"{self._folder}: no such folder; give a folder that contains MIDI files")
        files = sorted(
            path for path in visible_files(self._folder, self._folder) if path.suffix.lower() in MIDI_SUFFIXES
        )
        given: list[SplitName] = [part for part in SPLITS if (self._folder / part).is_dir()]
        if not given:
            return dict(zip(files, hold_out(str(self._folder), [""] * len(files), ("val", "test")), strict=True))
        parts: dict[Path, SplitName] = {
            path: part for part in given for path in files if path.is_relative_to(self._folder / part)
        }
        if empty := [part for part in ("train", *given) if part not in parts.values()]:
            raise InputError(f"{self._folder / empty[0]} has no MIDI files ({', '.join(sorted(MIDI_SUFFIXES))})")
        missing: list[SplitName] = [part for part in SPLITS if part not in given]
        if missing:
            train = [path for path, part in parts.items() if part == "train"]
            parts |= dict(zip(train, hold_out(str(self._folder), [""] * len(train), missing), strict=True))
        return parts


def _read(reader: MidiReader, path: Path) -> Example:
    return Example(reader(path), None)
