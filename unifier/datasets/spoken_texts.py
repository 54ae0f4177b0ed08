"""Texts with their sounds, for speech synthesis: a data set of speech whose inputs and targets are exchanged."""

from collections.abc import Sequence
from functools import partial
from typing import final

from unifier.data.dataset import Examples, open_split
from unifier.data.inputs import TextReader
from unifier.data.source import Example, LabeledSource, SplitName, describe_example
from unifier.datasets.fsdd import FSDDStrings
from unifier_tokenizers import InputError, MarkedText


@final
class SpokenTexts:
    """Texts as inputs, and their sounds as targets.

    For strings of spoken digits, the input is a `MarkedText` such as "<theo> 3 7 5 5", which begins with the code of
    the speaker. For sentences, the input is the text without a code. The target is an `Audio`.
    """

    def __init__(self, source: LabeledSource) -> None:
        """Store the data set of speech, whose targets are texts."""
        self.name, self.license = source.name, getattr(source, "license", None)
        self._source = source
        self.speakers = source.speakers if isinstance(source, FSDDStrings) else ()
        self.codes = tuple(map(speaker_code, self.speakers))
        # A text that is in two splits has other recordings there, so its recordings are no copies.
        self.copies = 0 if isinstance(source, FSDDStrings) else None
        default = self.codes[0] if self.codes else ""
        self.reader = TextReader(marked=bool(self.codes), default_code=default, direct=True)

    def split(self, name: SplitName) -> Examples[int]:
        """Return the texts of one split."""
        examples = open_split(self._source, name)
        speakers = ()
        if isinstance(self._source, FSDDStrings):
            speakers = tuple(string.recordings[0].speaker for string in self._source.strings(name))
        read = partial(_read, examples, speakers)
        return Examples(range(len(examples)), read, partial(describe_example, examples))

    @property
    def characters(self) -> str:
        """The characters of the texts."""
        return "".join(dict.fromkeys((" ", *self._source.labels)))

    @property
    def sha256(self) -> str | None:
        """The hash of the data set of speech."""
        return getattr(self._source, "sha256", None)


def speaker_code(speaker: str) -> str:
    """Return the code of a speaker, the name of an entry of the vocabulary, such as "<theo>"."""
    return f"<{speaker}>"


def coded_digits(speaker: str, digits: str) -> MarkedText:
    """Return the text of a string of digits after the code of its speaker, such as "<theo> 3 7 5 5"."""
    return MarkedText(f"{speaker_code(speaker)} {' '.join(digits)}")


def _read(examples: Sequence[Example], speakers: Sequence[str], index: int) -> Example:
    sound, text = examples[index]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{describe_example(examples, index)}: the text is empty")
    return Example(coded_digits(speakers[index], text) if speakers else text, sound)
