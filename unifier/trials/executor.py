"""The interface through which a comparison runs its trials, and the executor that runs one trial after another."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

from unifier.training.result import Result
from unifier.trials.fitting import Job, TrialFitter
from unifier.trials.plan import Trial


@final
@dataclass(frozen=True)
class Lost:
    """The end of a trial whose process has died, so that the trial must run again."""

    reason: str


Outcome = Result | BaseException
"""The result of a trial, or the error that ends the comparison."""

OnStart = Callable[[Trial, Result], object]
"""A function that is called with the unfinished result of a trial when the run's folder has been created."""


class Executor(Protocol):
    """A way to run trials, one after another or several at a time."""

    @property
    def slots(self) -> int:
        """The number of trials that can run at a time."""
        ...

    def submit(self, job: Job) -> None:
        """Start a trial, or place the trial in a queue."""
        ...

    def wait(self, on_start: OnStart) -> tuple[Trial, Outcome | Lost]:
        """Wait until a submitted trial ends, and return the trial and its outcome."""
        ...

    def stop(self) -> None:
        """Stop all running trials, which can then resume."""
        ...


@final
class SerialExecutor:
    """Executor that trains one trial at a time in this process."""

    def __init__(self, fitter: TrialFitter) -> None:
        """Create the executor. `fitter` trains the trials."""
        self.slots = 1
        self._fitter = fitter
        self._jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        """Place the trial in the queue."""
        self._jobs.append(job)

    def wait(self, on_start: OnStart) -> tuple[Trial, Outcome | Lost]:
        """Train the first trial of the queue."""
        job = self._jobs.pop(0)
        try:
            return job.trial, self._fitter.run(job, lambda result: on_start(job.trial, result))
        except BaseException as error:
            return job.trial, error

    def stop(self) -> None:
        """Do nothing, because no trial is running."""
