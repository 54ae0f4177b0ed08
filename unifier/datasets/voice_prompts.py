"""Voice prompts: sentences of a telephone system with their texts, in English and in French."""

from functools import cached_property, partial
from pathlib import Path
from typing import Literal, final, get_args

from unifier.data.audio_files import read_audio
from unifier.data.dataset import Examples, LabeledFile, from_files
from unifier.data.download import require_file
from unifier.data.readers import hash_files, read_archive, read_labels_table
from unifier.data.source import SPLITS, ScoreRange, SplitName, data_folder
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

PromptLanguage = Literal["en", "fr"]

ACCENTS: dict[PromptLanguage, str] = {"en": "", "fr": "àâçèéêëîïôùûü"}

CONSTANT_PHRASE: dict[PromptLanguage, tuple[str, float]] = {"en": ("thirteen", 91.6), "fr": ("moins de", 91.5)}
"""The training text that is the best constant answer on val, and the character error rate of this answer on test."""


@final
class VoicePrompts:
    """Sentences, phrases, numbers and letters of a telephone system, read by one speaker per language.

    The input is an `Audio` (samples,) at 16 kHz that is 0.4 to 15 seconds long. The target is the text in lower case,
    without punctuation (see `spoken_text`). English has 400 prompts for train, 56 for val and 72 for test. French has
    371, 52 and 70. The files cannot be downloaded by unifier.

    Source: prompts of the Asterisk telephone system, from Debian's packages asterisk-core-sounds; license CC BY-SA 3.0.
    """

    name = "voice_prompts"
    license = "CC BY-SA 3.0"

    def __init__(self, language: PromptLanguage = "en", *, data: str | Path | None = None) -> None:
        """Choose the language.

        Args:
            language: "en" or "fr".
            data: The folder with the files of the data set. None means the default folder; see `data_folder`.
        """
        self.language: PromptLanguage = check_choice("language", language, get_args(PromptLanguage))
        self.labels = (*" 'abcdefghijklmnopqrstuvwxyz0123456789", *ACCENTS[self.language])
        phrase, rate = CONSTANT_PHRASE[self.language]
        self.score_range = ScoreRange("error_rate", rate, None, f"chance: the constant answer {phrase!r}")
        self._data = data

    def split(self, name: SplitName) -> Examples[LabeledFile]:
        """Return the prompts of one split in the order of the table."""
        return from_files(self._prompts[check_choice("split", name, SPLITS)], partial(read_audio, archive=self._sounds))

    @cached_property
    def sha256(self) -> str:
        """The hash of the table and of the archive."""
        return hash_files({path.name: path for path in (self._table, self._archive)})

    @cached_property
    def _prompts(self) -> dict[SplitName, list[LabeledFile]]:
        prompts: dict[SplitName, list[LabeledFile]] = {split: [] for split in SPLITS}
        for line, cells in read_labels_table(self._table, ("file", "language", "split", "text")):
            if cells["language"] != self.language:
                continue
            location = f"{self._table}, line {line}"
            split = check_choice(f"split ({location})", cells["split"], SPLITS)
            text = spoken_text(cells["text"])
            if not text:
                raise InputError(f"{location}: no letter in the text {cells['text']!r}; correct the table")
            if unknown := {*text} - {*self.labels}:
                raise InputError(
                    f"{location}: the character {min(unknown)!r} in {cells['text']!r} does not belong to language="
                    f"{self.language}; correct the table"
                )
            prompts[split].append(LabeledFile(self._archive / Path(cells["file"]).name, text))
        return prompts

    @cached_property
    def _sounds(self) -> dict[Path, bytes]:
        return read_archive(self._archive)

    @property
    def _table(self) -> Path:
        return self._folder / "prompts.csv"

    @property
    def _archive(self) -> Path:
        return self._folder / f"{self.language}.zip"

    @cached_property
    def _folder(self) -> Path:
        folder = data_folder(self.name, self._data)
        files = ("prompts.csv", f"{self.language}.zip")
        hint = "put there the table of prompts and the sounds of each language; they cannot be downloaded"
        require_file(self.name, folder, files, hint)
        return folder


def spoken_text(text: str) -> str:
    """Return a text in lower case, in which spaces replace all characters except letters, digits and apostrophes."""
    kept = "".join(c if c.isalnum() or c == "'" else " " for c in text.lower().replace("\u2019", "'"))
    return " ".join(kept.split())
