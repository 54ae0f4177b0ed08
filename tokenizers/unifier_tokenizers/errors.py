"""InputError, what raises it for a wrong word or share, and any error in one line."""

from collections.abc import Sequence
from typing import TypeVar, final

Option = TypeVar("Option", bound=str | int)


@final
class InputError(ValueError):
    """A mistake in what was given: names what was given, what was expected and the way out.

    The command line prints it as one line and ends with exit status 2; every other error keeps its traceback.
    """


def one_line(error: Exception) -> str:
    """What an error says, which may run over several lines, in one; its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def check_choice(what: str, given: str | int, options: Sequence[Option]) -> Option:
    """The option that was given; raises InputError that lists the options where it is none of them."""
    for option in options:
        if option == given:
            return option
    raise InputError(f"no {what} {given!r}: choose one of {', '.join(map(str, options))}")


def check_fraction(name: str, value: float) -> float:
    """The value; raises InputError where it is below 0, or not below 1."""
    if not 0 <= value < 1:
        raise InputError(f"{name}={value}: a number from 0 to below 1 is expected")
    return value
