"""The one error that is the user's to mend, and how others are told of."""

from typing import final


@final
class InputError(ValueError):
    """A mistake in what was given: names what was given, what was expected and the way out.

    The command line prints it as one line and ends with exit status 2; every other error keeps its traceback.
    """


def one_line(error: Exception) -> str:
    """What an error says, which may run over several lines, in one; its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
