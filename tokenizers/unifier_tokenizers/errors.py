"""The error of a user's mistake, and the checks that raise it."""

from collections.abc import Sequence
from typing import TypeVar, final

Option = TypeVar("Option", bound=str | int)


@final
class InputError(ValueError):
    """A user's mistake; the message names the given value, the expected value and the way out.

    The command line prints the message on one line and exits with status 2. Every other error keeps its traceback.
    """


def one_line(error: Exception) -> str:
    """Return the error's message on one line, or its class name if the message is empty."""
    return " ".join(str(error).split()) or type(error).__name__


def check_choice(name: str, value: str | int, options: Sequence[Option]) -> Option:
    """Return the option that equals the value.

    Args:
        name: The setting's name, for the error message.
        value: The given value.
        options: All valid values.

    Raises:
        InputError: If no option equals the value; the message lists the options.
    """
    for option in options:
        if option == value:
            return option
    raise InputError(f"no {name} {value!r}: choose one of {', '.join(map(str, options))}")


def check_fraction(name: str, value: float) -> float:
    """Return the value; raise InputError unless it is at least 0 and below 1."""
    if not 0 <= value < 1:
        raise InputError(f"{name}={value}: a number from 0 to below 1 is expected")
    return value
