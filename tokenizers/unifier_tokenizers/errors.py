"""The class InputError for a user's mistakes, and checks that raise InputError."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, final

Option = TypeVar("Option", bound=str | int)


@final
class InputError(ValueError):
    """Error that reports a user's mistake.

    The message contains the given value, the expected value and a remedy. The command line prints only this message, on
    one line, and exits with status 2. For an error of another class, the command line prints the traceback.
    """


def one_line(error: BaseException) -> str:
    """Return the error's message on one line. If the message is empty, return the name of the error's class."""
    return " ".join(str(error).split()) or type(error).__name__


def check_choice(name: str, value: str | int, options: Sequence[Option]) -> Option:
    """Return the option that equals the value.

    Args:
        name: The setting's name, for the error message.
        value: The given value.
        options: All valid values.

    Raises:
        InputError: If no option equals the value. The message lists all options.
    """
    for option in options:
        if option == value:
            return option
    raise InputError(f"there is no {name} {value!r}: choose one of {', '.join(map(str, options))}")


def check_share(name: str, value: float) -> float:
    """Return the value, or raise InputError unless the value is above 0 and below 1."""
    if not 0 < value < 1:
        raise InputError(f"{name}={value}: a share above 0 and below 1 is expected")
    return value


def check_fraction(name: str, value: float) -> float:
    """Return the value, or raise InputError if the value is below 0, or is 1 or more."""
    if not 0 <= value < 1:
        raise InputError(f"{name}={value}: give a number that is at least 0 and less than 1")
    return value


def check_file(path: str | Path) -> None:
    """Raise InputError if a file is missing, or is a pipe or a device, which may never end."""
    if not os.path.isfile(path):  # noqa: PTH113  Path.is_file would raise OSError for a name of 300 letters.
        raise InputError(f"{path}: no such file, or not a regular file; give the path of a file")
