"""Emoji with their names in three languages: pictures to name, or names to translate with the help of the picture."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

from numpy.random import RandomState

from unifier.data.dataset import Examples, open_split
from unifier.data.download import require_file
from unifier.data.inputs import ImageReader, MixtureReader, TextReader
from unifier.data.readers import Archive, hash_files, read_archive, read_labels_table
from unifier.data.source import SPLITS, Example, ScoreRange, Source, SplitName, data_folder, describe_example, name_of
from unifier.datasets.language_pairs import coded_text, language_code, language_codes
from unifier.heads.grouped_text import GroupedText
from unifier_tokenizers import InputError, MarkedText
from unifier_tokenizers.errors import check_choice

EMOJI_LANGUAGES = ("en", "de", "fr")

TEXT, PICTURE = "text", "picture"
"""The members of an input."""

PictureKind = Literal["own", "other", "none"]
"""The picture of an input: its own picture, the picture of another emoji, or no picture."""

ARTISTS = {"": "seen_artist", "_style": "other_artist"}
"""The group of examples for the end of a split's name."""


class NamedPicture(NamedTuple):
    """A picture and its names in all languages."""

    path: Path
    picture: Path
    """The picture of the input, which may be the picture of another emoji."""
    names: dict[str, str]
    group: str
    place: str


class EmojiEntry(NamedTuple):
    """A picture and the language of its name."""

    row: NamedPicture
    language: str


@final
class EmojiNames:
    """7,042 pictures of 3,521 emoji by two artists, with their names in English, German and French.

    An input has the members "text" and "picture". The text is the code of a language, such as "<de>", and the target is
    the name in this language. If a source language is given, the name in this language follows the code. The pictures
    have 64 x 64 pixels, and each picture is an example in each language.

    Val and test have two groups. The names of `seen_artist` are new combinations of known words, by artists whose other
    pictures are in train. The pictures of `other_artist` have names that are in train with the picture of the other
    artist.

    Source: Twemoji (CC BY 4.0), OpenMoji (CC BY-SA 4.0), names of Unicode CLDR (Unicode license).
    """

    name = "emoji_names"
    license = "CC BY-SA 4.0"
    score_range = ScoreRange("exact", 0.0, None, "the name of the nearest training picture is never right")

    def __init__(
        self,
        languages: Sequence[str] = EMOJI_LANGUAGES,
        *,
        source: str | None = None,
        picture: PictureKind = "own",
        size: int | None = None,
        data: str | Path | None = None,
    ) -> None:
        """Choose the inputs and the targets.

        Args:
            languages: The languages of the targets: en, de or fr.
            source: The language of the names in the input, or None for no names.
            picture: The picture of the input. For "other", the pictures of a split are exchanged with a fixed seed.
            size: The longer side of the pictures in pixels. None means 64.
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self._languages = tuple(check_choice("languages", language, EMOJI_LANGUAGES) for language in languages)
        self._source = None if source is None else check_choice("source", source, EMOJI_LANGUAGES)
        if not languages or source in languages:
            raise InputError(f"languages={','.join(languages)}: give languages that differ from source={source}")
        self._picture = check_choice("picture", picture, ("own", "other", "none"))
        self._data, self.codes = data, language_codes(self._languages)
        self._image = ImageReader(3, size)
        text, pictures = {TEXT: TextReader(marked=True)}, {PICTURE: self._image}
        self.reader = MixtureReader(text if picture == "none" else {**text, **pictures})

    def split(self, name: SplitName) -> Examples[EmojiEntry]:
        """Return the examples of one split: all pictures in the first language, then in the other languages."""
        check_choice("split", name, SPLITS)
        rows = self._exchanged[name] if self._picture == "other" else self._rows[name]
        archive = {} if self._picture == "none" else self._archive
        read = partial(_read, self.codes, self._source, self._image, archive)
        entries = [EmojiEntry(row, language) for language in self._languages for row in rows]
        return Examples(entries, read, _place_of, _target_of)

    @cached_property
    def sha256(self) -> str:
        """The hash of the table and of the archive."""
        return hash_files({name: self._folder / name for name in ("names.csv", "pictures.zip")})

    @cached_property
    def _rows(self) -> dict[SplitName, list[NamedPicture]]:
        table = self._folder / "names.csv"
        rows: dict[SplitName, list[NamedPicture]] = {name: [] for name in SPLITS}
        for line, cells in read_labels_table(table, ("file", "split", *EMOJI_LANGUAGES)):
            place = f"{table}, line {line}"
            part, style, _ = cells["split"].partition("_style")
            names = {language: cells[language].strip() for language in EMOJI_LANGUAGES}
            if empty := next((language for language, name in names.items() if not name), None):
                raise InputError(f"{place}: the name in the column {empty} is empty; give a name, or remove the row")
            path = self._folder / "pictures.zip" / cells["file"]
            split = check_choice(f"split ({place})", part, SPLITS)
            rows[split].append(NamedPicture(path, path, names, ARTISTS[style], place))
        return rows

    @cached_property
    def _exchanged(self) -> dict[SplitName, list[NamedPicture]]:
        """The rows, each with the picture of another emoji of its split."""
        exchanged = dict[SplitName, list[NamedPicture]]()
        for name, rows in self._rows.items():
            order = RandomState(0).permutation(len(rows)).tolist()
            exchanged[name] = [*rows]
            for k, i in enumerate(order):
                later = (rows[j] for j in (*order[k + 1 :], *order[:k]))
                if (other := next((row for row in later if row.names != rows[i].names), None)) is None:
                    raise InputError(f"picture=other: the split {name} has one emoji, but at least two are needed")
                exchanged[name][i] = rows[i]._replace(picture=other.path)
        return exchanged

    @cached_property
    def _archive(self) -> Archive:
        return read_archive(self._folder / "pictures.zip")

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        hint = "it cannot be downloaded: put there the pictures and the table of their names"
        require_file(self.name, folder, ("names.csv", "pictures.zip"), hint)
        return folder


@final
class PicturesOf:
    """The pictures of a source whose inputs also have other members, for a tokenizer that is fitted to pictures."""

    def __init__(self, source: Source) -> None:
        self.name, self._source = name_of(source), source
        self.labels: tuple[str, ...] = ()

    def split(self, name: SplitName) -> Examples[int]:
        """Return the pictures of one split, with the targets of the source."""
        examples = open_split(self._source, name)
        locate = partial(describe_example, examples)
        return Examples(range(len(examples)), partial(_read_picture, examples), locate)


def _read(
    codes: Sequence[str], source: str | None, reader: ImageReader, archive: Archive, entry: EmojiEntry
) -> Example:
    row, language = entry
    code = language_code(language)
    text = MarkedText(code) if source is None else coded_text(code, row.names[source], codes, row.place)
    value: dict[str, Any] = {TEXT: text}
    if archive:
        value[PICTURE] = reader(row.picture, archive)
    return Example(value, _target_of(entry))


def _target_of(entry: EmojiEntry) -> GroupedText:
    row, language = entry
    return GroupedText(row.names[language], (row.group, f"{row.group}_{language}"), language, row.names["en"])


def _place_of(entry: EmojiEntry) -> str:
    return f"{entry.row.path}, {entry.language}"


def _read_picture(examples: Sequence[Example], index: int) -> Example:
    value, target = examples[index]
    return Example(value[PICTURE], target)
