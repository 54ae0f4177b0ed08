"""Sentence pairs of several pairs of languages, each after the code of its output language."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import final

from unifier.data.dataset import Examples, concatenate, open_split
from unifier.data.inputs import TextReader
from unifier.data.source import NO_SCORE_RANGE, Example, ScoreRange, Source, SplitName, describe_example, name_of
from unifier.heads.grouped_text import GroupedText
from unifier_tokenizers import InputError, MarkedText

Direction = tuple[str, str]
"""The languages of the input and the output."""


@final
class LanguagePairs:
    """Sentence pairs of several directions, one direction after the other: "<de> A dog runs." and "Ein Hund läuft."

    The input is a `MarkedText` that begins with the code of the output language (Johnson et al. 2017, section 3). The
    target is a `GroupedText`, whose group is the direction, such as "en-de". The pairs with the same index in all
    directions are a cluster, because they are translations of one sentence.
    """

    score_range = ScoreRange("bleu", 0.0, None, NO_SCORE_RANGE)
    reader = TextReader(marked=True)

    def __init__(self, pairs: Mapping[Direction, Source]) -> None:
        """Store the sentence pairs of each direction, which must contain the same sentences in the same order."""
        self.name = name_of(next(iter(pairs.values())))
        self._pairs = pairs
        self.codes = language_codes([target for _, target in pairs])

    def split(self, name: SplitName) -> Examples[int]:
        """Return the pairs of one split, or raise InputError later for a text that contains a code."""
        parts = list[Examples[int]]()
        for direction, source in self._pairs.items():
            pairs = open_split(source, name)
            read = partial(_read, pairs, direction, self.codes)
            parts.append(Examples(range(len(pairs)), read, partial(describe_example, pairs)))
        return concatenate(parts)

    @property
    def sha256(self) -> str | None:
        """The hash of the hashes of all directions, or None if a direction has no hash."""
        hashes = [(direction, getattr(source, "sha256", None)) for direction, source in self._pairs.items()]
        return (
            None if any(digest is None for _, digest in hashes) else hashlib.sha256(repr(hashes).encode()).hexdigest()
        )


def language_code(language: str) -> str:
    """Return the code of a language, the name of an entry of the vocabulary, such as "<de>"."""
    return f"<{language}>"


def language_codes(languages: Sequence[str]) -> tuple[str, ...]:
    """Return the codes of languages, without repetitions."""
    return tuple(dict.fromkeys(map(language_code, languages)))


def coded_text(code: str, text: str, codes: Sequence[str], place: str) -> MarkedText:
    """Return a text after a code.

    Args:
        code: The code.
        text: The text.
        codes: All codes.
        place: The file and line of the text, for messages.

    Raises:
        InputError: The text contains a code.
    """
    if found := next((each for each in codes if each in text), None):
        raise InputError(f"{place}: {found!r} in the text could be read as a code; remove it from the text")
    return MarkedText(f"{code} {text}")


def _read(pairs: Sequence[Example], direction: Direction, codes: tuple[str, ...], index: int) -> Example:
    source, target = direction
    text, translation = pairs[index]
    coded = coded_text(language_code(target), text, codes, describe_example(pairs, index))
    return Example(coded, GroupedText(translation, (f"{source}-{target}",), target, str(index)))
