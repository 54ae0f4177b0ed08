"""Trials as tasks of a Ray cluster, each with its own process, CPUs and GPUs."""

import inspect
import io
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import torch

import unifier
import unifier_tokenizers
from unifier.config import experiment_reference, load_experiment, split_reference
from unifier.files import is_recoverable, print_warning
from unifier.training.experiment_copy import read_experiment
from unifier.training.result import Interrupted, Result, versions
from unifier.trials import orphans
from unifier.trials.executor import Lost, OnStart, Outcome
from unifier.trials.fitting import Job, TrialFitter
from unifier.trials.plan import Trial, describe_trial
from unifier.trials.progress import TrialTable
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

LOCAL = "local"
"""The address that starts Ray on this machine."""

ANSWER_SECONDS = 5.0
"""The time in which the address of a cluster must answer."""

POLL_SECONDS = 0.5
"""The time between two updates of the display."""

STOP_SECONDS = 30.0
"""The time in which a stopped trial writes its checkpoint."""

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_server_port_wait_time_s": "10", "RAY_worker_niceness": "0"}
"""The variables of a Ray that is started on this machine, unless the user has set them.

Ray's default niceness of 15 would delay a restarted trial by minutes on a busy machine.
"""

OBJECT_STORE_BYTES = 100 * 2**20
"""The shared memory of a Ray that is started on this machine. Trials exchange only settings and results."""


@final
class Event(NamedTuple):
    """A message from the process of a trial."""

    key: str
    kind: Literal["started", "output", "errors"]
    content: Any
    """The unfinished result and the budgets of a started trial, or a printed line."""


@final
@dataclass(frozen=True)
class RayOptions:
    """The cluster, and the resources of each trial."""

    address: str = LOCAL
    """"local" starts Ray on this machine, "auto" finds a running Ray, and HOST:PORT is the address of a cluster."""
    cpus: int = 1
    """The number of CPUs and of torch's threads of a trial."""
    gpus: float | None = None
    """The number of GPUs of a trial, such as 0.5. None means 1 if the cluster has GPUs, and 0 otherwise."""

    def check(self) -> None:
        """Raise InputError if Ray is not installed, an option is wrong, or the address does not answer."""
        try:
            import ray  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError:
            raise InputError("Ray is not installed: pip install 'unifier-torch[ray]'") from None
        if self.cpus < 1:
            raise InputError(f"trial_cpus={self.cpus}: at least 1 is needed")
        if self.gpus is not None and (self.gpus < 0 or (self.gpus > 1 and self.gpus % 1)):
            raise InputError(f"trial_gpus={self.gpus}: 0, a fraction such as 0.5, or a whole number is expected")
        if self.address in (LOCAL, "auto"):
            return
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or "//" in host:
            raise InputError(f"ray={self.address}: auto or HOST:PORT is expected, such as 10.0.0.1:6379")
        try:  # Ray itself would wait for minutes.
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise InputError(
                f"ray={self.address}: no cluster answers there ({one_line(error)}); start one with "
                "`ray start --head`, or leave out the address"
            ) from error

    @contextmanager
    def executor(self, fitter: TrialFitter) -> "Generator[RayExecutor]":
        """Connect to the cluster, and disconnect at the end. A Ray that this process uses already stays connected."""
        os.environ |= {**ENVIRONMENT, **os.environ}
        import ray

        handler = signal.getsignal(signal.SIGTERM)
        with ExitStack() as cleanup:
            if not ray.is_initialized():
                if self.address == LOCAL:
                    cleanup.enter_context(_kill_servers_with_this_process())
                cleanup.callback(ray.shutdown)
                try:
                    _connect(self.address)
                finally:
                    if threading.current_thread() is threading.main_thread():
                        signal.signal(signal.SIGTERM, handler)  # Ray has replaced the handler.
            executor = RayExecutor(self, fitter)
            cleanup.callback(executor.close)
            yield executor


def _connect(address: str) -> None:
    """Connect to a cluster."""
    import ray

    own: dict[str, Any] = {}
    if address == LOCAL:
        own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except SystemExit as error:  # Ray's handler of SIGTERM raises this error.
        raise KeyboardInterrupt from error
    except Exception as error:  # Ray raises its own errors, and errors of the connection.
        raise InputError(f"ray={address}: no connection to a cluster ({one_line(error)})") from error


@contextmanager
def _kill_servers_with_this_process() -> Generator[None]:
    """Kill the processes of the local Ray at the end, also if this process is killed while Ray starts.

    Two agents would otherwise live for a minute.
    """
    folders = rf"/.*/session_[^/\0]*_{os.getpid()}"  # Ray's folder ends with the id of the process that starts Ray.
    command = [sys.executable, "-S", orphans.__file__, folders, str(os.getsid(0)), str(os.getpid())]
    # The pipe closes at the end of this process. The guard has a session of its own, so that it does not kill itself.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


@final
class RayExecutor:
    """Executor that runs each trial in a process of a Ray cluster."""

    def __init__(self, options: RayOptions, fitter: TrialFitter) -> None:
        """Prepare to run trials on the connected cluster.

        Args:
            options: The resources of each trial.
            fitter: The object with the comparison and the context of the runs.

        Raises:
            InputError: No machine of the cluster has the resources of a trial.
        """
        import ray
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.fitter, self.cpus = fitter, options.cpus
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        self.gpus = float(has_gpus) if options.gpus is None else options.gpus
        if not self._num_places():
            raise InputError(
                f"trial_cpus={self.cpus}, trial_gpus={self.gpus:g}: no machine of the cluster has as many CPUs and GPUs"
            )
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._events = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self._common = ray.put(pack_common(fitter, self.cpus))
        self._run = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(run_job)
        self._jobs: dict[Any, Job] = {}
        self._on_start: OnStart = lambda *_: None
        self._table = TrialTable()
        self._table.start()

    @property
    def slots(self) -> int:
        """The number of trials that the machines of the cluster can run at a time."""
        return max(self._num_places(), 1)

    def _num_places(self) -> int:
        import ray

        places = 0
        for node in ray.nodes():
            resources = node["Resources"] if node["Alive"] else {}
            by_gpus = resources.get("GPU", 0) // self.gpus if self.gpus else sys.maxsize
            places += int(min(resources.get("CPU", 0) // self.cpus, by_gpus))
        return places

    def submit(self, job: Job) -> None:
        """Submit the task of a trial."""
        self._table.add(job.trial.key, describe_trial(job.trial))
        self._jobs[self._run.remote(self._common, dump(self.fitter, job), self._events)] = job

    def wait(self, on_start: OnStart) -> tuple[Trial, Outcome | Lost]:
        """Show the progress of all trials until one of them ends."""
        import ray

        self._on_start = on_start
        while True:
            ended, _ = ray.wait(list(self._jobs), num_returns=1, timeout=POLL_SECONDS)
            self._read_events(on_start)
            for task in ended:
                trial, outcome = self._jobs.pop(task).trial, _outcome_of(task)
                ending = outcome.status if isinstance(outcome, Result) else "stopped"
                self._table.remove(trial.key, ending)
                return trial, outcome

    def _read_events(self, on_start: OnStart) -> None:
        trials = {job.trial.key: job.trial for job in self._jobs.values()}
        event: Event
        for event in self._events.get_nowait_batch(self._events.qsize()):
            if event.kind == "started" and event.key in trials:
                result, budgets = event.content
                self.fitter.check_budgets(budgets)
                on_start(trials[event.key], result)
            elif event.kind == "output":
                self._table.update(event.key, event.content)
            elif event.kind == "errors":
                self._table.warn(event.key, event.content)

    def stop(self) -> None:
        """Stop the tasks after their current step, and kill tasks that do not stop in time."""
        import ray

        tasks = list(self._jobs)
        try:
            for task in tasks:
                ray.cancel(task)
            _, slow = ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS) if tasks else ([], [])
        except KeyboardInterrupt:  # The second Ctrl-C stops immediately.
            slow = tasks
        for task in slow:
            ray.cancel(task, force=True)
        with suppress(Exception):  # A trial may have started just before, and can only resume if its folder is written.
            self._read_events(self._on_start)
        self._jobs.clear()

    def close(self) -> None:
        """Remove the display, and end the process of the queue."""
        self._table.stop()
        with suppress(Exception):  # The connection may be lost.
            self._events.shutdown()


def _outcome_of(task: Any) -> Outcome | Lost:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return ray.get(task)
    except RayTaskError as error:
        if "failed to import on the worker" in str(error):  # Ray has no class for this error.
            reason = str(error).splitlines()[-1].strip()
            return InputError(
                f"a machine of the cluster cannot load unifier ({reason}): install the same version everywhere"
            )
        return error  # An error of the code, whose traceback is printed.
    except RayError as error:
        return Lost(one_line(error))


@final
class _Common(NamedTuple):
    """What all trials of a comparison need in their processes."""

    machine: str
    directory: str
    """The working directory, to which relative paths refer."""
    environment: dict[str, str]
    cpus: int
    facts: dict[str, Any]
    """The versions, and the hashes of the library's code and of `files`."""
    files: set[str]
    """The files of experiments."""
    fitter: bytes


def pack_common(fitter: TrialFitter, cpus: int) -> bytes:
    """Return the bytes of `_Common`."""
    names = ("UNIFIER_", "WANDB_", "MLFLOW_")
    environment = {
        name: value for name, value in os.environ.items() if name.startswith(names) and name != "WANDB_API_KEY"
    }
    files = {split_reference(experiment_reference(make))[0] for make in _makes(fitter)}
    content = dump(fitter, (fitter.comparison, fitter.context, fitter.fit))
    return pickle.dumps(
        _Common(socket.gethostname(), str(Path.cwd()), environment, cpus, _facts(files), files, content)
    )


def _facts(files: set[str]) -> dict[str, Any]:
    hashes = {file: sha256(read_experiment(file) or b"").hexdigest() for file in sorted(files)}
    return {
        "the versions": versions(),
        "code with the hash": _code_hash(),
        **{f"{file} with the hash": digest for file, digest in hashes.items()},
    }


@cache
def _code_hash() -> str:
    """Return the hash of the library's code."""
    digest = sha256()
    for package in (unifier, unifier_tokenizers):
        root = Path(inspect.getfile(package)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _makes(fitter: TrialFitter) -> list[Callable[..., Any]]:
    showcase = fitter.comparison.showcase
    return [*fitter.comparison.experiments, *([] if showcase is None else [showcase])]


def dump(fitter: TrialFitter, value: Any) -> bytes:
    """Pickle a value. The functions of experiments become FILE:name, because their files are no importable modules."""
    from ray import cloudpickle

    makes = _makes(fitter)

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if inspect.isfunction(obj) and obj in makes:
                return load_experiment, (experiment_reference(obj),)
            return super().reducer_override(obj)

    content = io.BytesIO()
    Pickler(content).dump(value)
    return content.getvalue()


def run_job(common: bytes, job: bytes, events: Any) -> Outcome | Lost:
    """Train a trial in a process of the cluster.

    Args:
        common: The bytes of `_Common`.
        job: The pickled `Job`.
        events: The queue for events.

    Returns:
        The result, an error that ends the comparison, or `Lost` if a signal stopped the trial.
    """
    shared: _Common = pickle.loads(common)
    try:
        _prepare(shared)
        fitter = _fitter(shared.fitter)
        given: Job = pickle.loads(job)
        if not (given.folder / "comparison.json").exists():
            raise InputError(
                f"{given.folder}: not visible on {socket.gethostname()}; give a folder that all machines share with "
                "--out"
            )
        return _run(fitter, given, events)
    except InputError as error:
        return error
    except OSError as error:
        if is_recoverable(error):
            return error
        raise
    except Interrupted:
        return Lost("a signal stopped its process")


def _prepare(shared: _Common) -> None:
    """Make this process equal to the process that has started the comparison.

    Raises:
        InputError: The working directory does not exist here, or the versions or the files of experiments differ.
    """
    os.environ.update(shared.environment)
    name = socket.gethostname()
    try:
        os.chdir(shared.directory)
    except OSError as error:
        raise InputError(
            f"{shared.directory}: not visible on {name} ({error.strerror}); use a shared folder"
        ) from error
    torch.set_num_threads(shared.cpus)
    here = _facts(shared.files)
    for fact, value in shared.facts.items():
        if here[fact] != value:
            raise InputError(
                f"{name} has {fact} {here[fact]}, but {shared.machine} has {value}: use the same code and versions on "
                "all machines, and do not change files while a comparison runs"
            )


@lru_cache(maxsize=1)
def _fitter(content: bytes) -> TrialFitter:
    """Return the fitter of this process, which keeps the encoded data for the next trial."""
    return TrialFitter(*pickle.loads(content))


def _run(fitter: TrialFitter, job: Job, events: Any) -> Result:
    key = job.trial.key

    def send(kind: Literal["started", "output", "errors"], content: Any) -> None:
        events.put(Event(key, kind, content))

    with (
        redirect_stdout(_Lines(lambda line: send("output", line))),
        redirect_stderr(_Lines(lambda line: send("errors", line))),
        warnings.catch_warnings(),
    ):
        warnings.showwarning = print_warning
        send("output", f"starts on {socket.gethostname()}")
        return fitter.run(job, lambda result: send("started", (result, dict(fitter.budgets))))


@final
class _Lines(io.TextIOBase):
    """A text stream that passes each whole line to a function."""

    def __init__(self, send: Callable[[str], object]) -> None:
        self._send, self._rest = send, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._send(line.strip())
        return len(text)
