"""How a run or a comparison ends early, as exceptions."""

from pathlib import Path
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from unifier.running.result import Result


@final
class Interrupted(BaseException):
    """The user asked a run or a comparison to stop; the last checkpoint is whole. Says the folder to resume from.

    Like KeyboardInterrupt it passes by all who handle errors; and unlike that, Lightning does not end the program.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's or the comparison's."""
        super().__init__(str(folder))
        self.folder = folder


@final
class DivergedError(Exception):
    """A loss is no number any more, and nothing that follows would be."""


@final
class RunFailed(Exception):  # noqa: N818  "failed" says it
    """A run broke on its way, for the reason that is this exception's cause; its result says so too."""

    def __init__(self, result: "Result") -> None:
        super().__init__(f"{result.folder}: {result.error}")
        self.result = result
