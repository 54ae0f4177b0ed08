"""Texts after their label as a control code, for language models whose texts can be steered."""

import re
from collections.abc import Sequence
from functools import partial
from typing import final

from unifier.data.dataset import Examples, open_split
from unifier.data.source import Example, LabeledSource, SplitName, describe_example
from unifier_tokenizers import InputError
from unifier_tokenizers.text import MarkedText


@final
class CodedTexts:
    """The texts of a data set with labels, each after its label as a control code: "<positive> a fine film".

    The input is a `MarkedText`, and the target is an equal text for the report (CTRL, Keskar et al. 2019).
    """

    def __init__(self, source: LabeledSource) -> None:
        self.name, self._source = source.name, source
        self.sha256: str | None = getattr(source, "sha256", None)

    @property
    def codes(self) -> tuple[str, ...]:
        """One code per label."""
        return tuple(map(_code, self._source.labels))

    def split(self, name: SplitName) -> Examples[int]:
        """Return the texts of one split, or raise InputError later for a text that contains a code."""
        examples = open_split(self._source, name)
        read, locate = partial(_read, examples, self.codes), partial(describe_example, examples)
        return Examples(range(len(examples)), read, locate)


def _code(label: str) -> str:
    # A prompt's codes contain no spaces.
    return "<" + re.sub(r"[\s<>]+", "_", label) + ">"


def _read(examples: Sequence[Example], codes: tuple[str, ...], index: int) -> Example:
    text, label = examples[index]
    if found := next((code for code in codes if code in text), None):
        raise InputError(f"{describe_example(examples, index)}: {found!r} in the text could be read as a code")
    coded = MarkedText(f"{_code(label)} {text}")
    return Example(coded, str(coded))
