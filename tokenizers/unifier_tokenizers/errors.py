"""The one error that is the user's to mend."""

from typing import final


@final
class InputError(ValueError):
    """A mistake in what was given: names what was given, what was expected and the way out.

    The command line prints it as one line and ends with exit status 2; every other error keeps its traceback.
    """
