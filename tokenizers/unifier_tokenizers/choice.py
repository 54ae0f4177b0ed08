"""One of a few, or a share: an error that says what there is."""

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


def check_share(name: str, value: float) -> float:
    """The value; raises InputError where it is below 0, or not below 1."""
    if not 0 <= value < 1:
        raise InputError(f"{name}={value}: a number from 0 to below 1 is expected")
    return value
