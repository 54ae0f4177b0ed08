"""One of a few: an error that says which there are."""

from collections.abc import Sequence
from typing import TypeVar

from unifier_tokenizers.errors import InputError

Option = TypeVar("Option", bound=str | int)


def choose(what: str, given: str | int, options: Sequence[Option]) -> Option:
    """The option that was given; raises InputError that lists the options where it is none of them."""
    for option in options:
        if option == given:
            return option
    raise InputError(f"no {what} {given!r}: choose one of {', '.join(map(str, options))}")
