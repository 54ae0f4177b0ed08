"""Folk tunes in ABC notation: music as text, with control codes for the kind, the meter and the key of a tune."""

import re
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, final

from unifier.data.dataset import Examples
from unifier.data.download import require_file
from unifier.data.readers import hash_files
from unifier.data.source import Example, SplitName, data_folder
from unifier.data.splits import hold_out, select_part
from unifier.datasets.long_text import read_long_text
from unifier_tokenizers import InputError
from unifier_tokenizers.text import MarkedText

TUNE_KINDS = {
    "ashover": "ashover",
    "hpps": "hornpipe",
    "jigs": "jig",
    "morris": "morris",
    "playford": "playford",
    "reelsa-c": "reel",
    "reelsd-g": "reel",
    "reelsh-l": "reel",
    "reelsm-q": "reel",
    "reelsr-t": "reel",
    "reelsu-z": "reel",
    "slip": "slip_jig",
    "waltzes": "waltz",
    "xmas": "xmas",
}
"""The kind of the tunes in each file."""

FIELD = re.compile(r"([A-Za-z]):(?![|:])")
"""The start of a line with a field, such as "K:G". A line of music may begin with a note and a repeat, as in "A:|"."""

KEPT_FIELDS = frozenset("LMKPV")
"""Fields that belong to the music: unit length, meter, key, part and voice. All other fields are about the tune."""


class Tune(NamedTuple):
    """The lines of one tune in a file, which are parsed later."""

    path: Path
    line: int
    """The number of the first line."""
    kind: str
    lines: tuple[str, ...]

    @property
    def title(self) -> str:
        """The title in lower-case letters, or the file and the line of a tune without a title."""
        titles = [line[2:].strip().lower() for line in self.lines if line.startswith("T:")]
        return titles[0] if titles else _locate(self)

    def parse(self) -> tuple[tuple[str, str, str], str]:
        """Return the codes of kind, meter and key, and the music. Later changes of meter and key are in the music.

        Raises:
            InputError: The tune has no meter, no key or no music, or contains the name of a code.
        """
        header: dict[str, str] = {}
        music: list[str] = []
        has_notes = False
        for line in self.lines:
            field = FIELD.match(line)
            if not line or line.startswith("%") or (field and field[1] not in KEPT_FIELDS):
                continue
            has_notes |= field is None
            if field and not has_notes and field[1] in "MK":
                header[field[1]] = line[2:].strip()
            else:
                music.append(line)
        if missing := [name for field, name in (("M", "meter"), ("K", "key")) if not header.get(field)]:
            raise InputError(f"{_locate(self)}: the tune has no {missing[0]}: add a line such as M:6/8 or K:G")
        if not has_notes:
            raise InputError(f"{_locate(self)}: the tune has no notes: add lines of music after its key")
        if code := re.search(r"<\S+>", "\n".join(music)):
            raise InputError(f"{_locate(self)}: {code[0]!r} in the music could be read as a code: rewrite the rhythm")
        codes = f"<{self.kind}>", f"<{header['M']}>", f"<{header['K']}>"
        return codes, "\n".join(music)


@final
class NottinghamTunes:
    """The Nottingham collection: 1,034 folk tunes in ABC notation, about a tenth in val and in test.

    The input is a `MarkedText`: the codes of kind, meter and key, and then the music, as in "<jig> <6/8> <G> ...". The
    target is the same text, for the report. All tunes with an equal title are in the same split. The folder cannot be
    downloaded by unifier.

    Source: github.com/jukedeck/nottingham-dataset, the folder ABC_cleaned.
    """

    name = "nottingham_abc"

    def __init__(self, *, data: str | Path | None = None) -> None:
        self._data = data

    def split(self, name: SplitName) -> Examples[Tune]:
        """Return the tunes of one split in the order of the files."""
        return Examples(select_part(self._tunes, self._parts, name), _read, _locate)

    @cached_property
    def codes(self) -> tuple[str, ...]:
        """The codes of all readable tunes: the kinds, the meters and the keys, each in alphabetical order."""
        found: tuple[set[str], set[str], set[str]] = set(), set(), set()
        for tune in self._tunes:
            try:
                codes, _ = tune.parse()
            except InputError:  # The setting `bad_examples` decides about the tune when the example is read.
                continue
            for group, code in zip(found, codes, strict=True):
                group.add(code)
        return tuple(dict.fromkeys(code for group in found for code in sorted(group)))

    @cached_property
    def sha256(self) -> str:
        """The hash of all files."""
        return hash_files({path.name: path for path in self._paths})

    @cached_property
    def _parts(self) -> list[SplitName]:
        kinds, titles = [tune.kind for tune in self._tunes], [tune.title for tune in self._tunes]
        return hold_out(self.name, kinds, ("val", "test"), groups=titles)

    @cached_property
    def _paths(self) -> list[Path]:
        folder, files = data_folder(self.name, self._data), [f"{name}.abc" for name in TUNE_KINDS]
        require_file(self.name, folder, files, "put there the folder ABC_cleaned of jukedeck/nottingham-dataset")
        return [folder / file for file in files]

    @cached_property
    def _tunes(self) -> list[Tune]:
        tunes: list[Tune] = []
        for path in self._paths:
            lines = [line.rstrip() for line in read_long_text(path).split("\n")]
            starts = [number for number, line in enumerate(lines) if line.startswith("X:")]
            if not starts:
                raise InputError(f"{path} has no tunes: each tune must begin with a line such as X:1")
            for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
                tunes.append(Tune(path, start + 1, TUNE_KINDS[path.stem], tuple(lines[start:end])))
        return tunes


def _read(tune: Tune) -> Example:
    codes, music = tune.parse()
    text = MarkedText(f"{' '.join(codes)} {music}")
    return Example(text, str(text))


def _locate(tune: Tune) -> str:
    return f"{tune.path}, line {tune.line}"
