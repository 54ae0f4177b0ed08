"""A queue of jobs, which one thread computes in batches."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

MAX_BATCH_JOBS = 64
"""Maximum number of jobs that are computed together."""

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class Batcher(Generic[_Job, _Result]):
    """Worker thread that computes jobs. Jobs that arrive during a computation form the next batch.

    A job therefore never waits for other jobs to arrive, and only one thread uses the network.
    """

    def __init__(self, compute: Callable[[Sequence[_Job]], Sequence[_Result | Exception]]) -> None:
        """Start the thread.

        Args:
            compute: The function that returns one result, or the error, per job. If the function raises an error for
                several jobs, each job is computed alone, so only the job that caused the error fails.
        """
        self._compute = compute
        self._waiting = SimpleQueue[tuple[_Job, Future[_Result]] | None]()
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, job: _Job) -> Future[_Result]:
        """Return the future result of a job. A canceled future is not computed, unless its batch has started."""
        future = Future[_Result]()
        self._waiting.put((job, future))
        return future

    def close(self) -> None:
        """Compute the jobs that wait, and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        is_open = True
        while is_open:
            entries = [self._waiting.get()]
            while entries[-1] is not None and len(entries) < MAX_BATCH_JOBS:
                try:
                    entries.append(self._waiting.get_nowait())
                except Empty:
                    break
            is_open = entries[-1] is not None
            self._run([entry for entry in entries if entry and entry[1].set_running_or_notify_cancel()])
            del entries  # Otherwise, the last batch would stay in memory until the next job.

    def _run(self, batch: Sequence[tuple[_Job, Future[_Result]]]) -> None:
        if not batch:
            return
        try:
            results = self._compute([job for job, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
            else:
                for entry in batch:
                    self._run([entry])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
