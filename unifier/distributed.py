"""The processes that train one model together: the rank of this process, and the exchange of values and errors."""

import atexit
import io
import os
import pickle
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, final

from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

if TYPE_CHECKING:  # The command line must start fast, so torch is imported inside the functions.
    from torch import Tensor

ValueT = TypeVar("ValueT")

FAILURE_KEY = "unifier/failure"
"""The key under which a failing process stores its error for the other processes."""

INTERRUPTED = "interrupted"
"""The stored error of an interrupted process."""

TIMEOUT = timedelta(hours=12)
"""The time that a process waits for the others. Rank 0 may encode a large data set, while the others wait."""

ENDED_KEY = "unifier/ended"
"""The key that rank 0 stores at its end, after it has reported all errors and written all files."""

WAIT_FOR_MAIN = timedelta(seconds=8)
"""The time that a failed process waits for the end of rank 0, because launchers stop all processes after the first."""


@final
@dataclass(frozen=True)
class World:
    """The processes that train one model together, one process per device."""

    rank: int = 0
    """The number of this process, from 0 to `size` - 1. Rank 0 writes all files and prints."""
    size: int = 1
    """The number of processes on all machines."""
    local_rank: int = 0
    """The number of this process on its machine."""
    local_size: int = 1
    """The number of processes on each machine."""


@final
class PeerError(Exception):
    """Exception for the failure of another process. Only rank 0 prints the message."""


class AgreedError(Exception):
    """Exception that all processes raise at the same step, so they remain connected."""


_world = World()
_store: Any = None  # The torch.distributed.Store of the connected processes.
_has_failed = False  # True after an error or a requested stop.
_is_ending = False  # True after an error that ends the program on all of several processes.


def world() -> World:
    """Return the processes that train together. By default, the only process is this process."""
    return _world


def is_main() -> bool:
    """Return True for the process with rank 0, which writes all files and prints."""
    return _world.rank == 0 and (_world.size > 1 or not is_helper(os.environ))


def is_launched(environment: Mapping[str, str]) -> bool:
    """Return True if torchrun, srun or another process has started this process as one of several processes.

    Args:
        environment: The environment variables of the process.
    """
    return any(environment.get(size, "1") != "1" for size in ("WORLD_SIZE", "SLURM_NTASKS"))


def is_helper(environment: Mapping[str, str]) -> bool:
    """Return True if a launcher has given a process a rank above 0, before the processes are connected.

    Args:
        environment: The environment variables of the process.
    """
    names = {"WORLD_SIZE": ("RANK", "LOCAL_RANK", "NODE_RANK"), "SLURM_NTASKS": ("SLURM_PROCID",)}
    return any(
        environment.get(size, "1") != "1" and environment.get(name, "0") != "0"
        for size, ranks in names.items()
        for name in ranks
    )


def is_ending() -> bool:
    """Return True after an error that ends the program on all of several processes. Each process still reports it."""
    return _is_ending


def connect(members: World, backend: str) -> None:
    """Connect this process with the other processes, at the address in $MASTER_ADDR and $MASTER_PORT.

    Args:
        members: The processes.
        backend: The backend of torch.distributed, such as "gloo" for the CPU.

    Raises:
        InputError: The other processes do not answer.
    """
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    global _world, _store
    try:
        store, *_ = next(rendezvous("env://", members.rank, members.size, timeout=timedelta(minutes=5)))
        dist.init_process_group(backend, store=store, rank=members.rank, world_size=members.size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise InputError(
            f"the {members.size} processes cannot be connected at {address} ({one_line(error)}): check the number of "
            "processes on each machine, and that the address can be reached"
        ) from error
    _world, _store = members, store
    atexit.register(_end)


def from_main(compute: Callable[[], ValueT]) -> ValueT:
    """Call a function on rank 0, and return its result on every rank.

    Raises:
        Exception: The error of the function on rank 0, and PeerError on all other ranks.
    """
    if _world.size == 1:
        return compute()
    import torch.distributed as dist

    outcome: list[Any] = [None]
    failure = None
    if _world.rank == 0:
        try:
            outcome = [("", compute())]
        except Exception as error:
            failure, outcome = error, [(one_line(error), None)]
    dist.broadcast_object_list(outcome, 0)
    message, result = outcome[0]
    if failure is not None:
        raise failure
    if message:
        raise PeerError(message)
    return result


def gather(compute: Callable[[], ValueT]) -> list[ValueT]:
    """Call a function on every rank, and return the results of all ranks on every rank.

    Raises:
        Exception: The error of this rank, or else the first error of another rank: InputError on rank 0, and PeerError
            on all other ranks.
    """
    if _world.size == 1:
        return [compute()]
    import torch.distributed as dist

    failure, outcome = None, ("", None)
    try:
        outcome = ("", compute())
    except Exception as error:
        failure, outcome = error, (f"process {_world.rank}: {one_line(error)}", None)
    outcomes: list[Any] = [None] * _world.size
    dist.all_gather_object(outcomes, outcome)
    if failure is not None:
        raise failure
    if messages := [message for message, _ in outcomes if message]:
        raise InputError(messages[0]) if _world.rank == 0 else PeerError(messages[0])
    return [result for _, result in outcomes]


def gather_on_main(value: ValueT) -> list[ValueT]:
    """Return the values of all ranks on rank 0, and only the own value on all other ranks."""
    if _world.size == 1:
        return [value]
    import torch.distributed as dist

    contents: list[Any] | None = [None] * _world.size if _world.rank == 0 else None
    dist.gather_object(to_bytes(value), contents)
    return [value] if contents is None else [value, *map(pickle.loads, contents[1:])]


def to_bytes(value: object) -> bytes:
    """Pickle a value. A tensor that is a part of a larger tensor is stored without the rest of the larger tensor."""
    import torch

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if not isinstance(obj, torch.Tensor):
                return NotImplemented
            try:  # NumPy arrays are pickled faster than tensors.
                return torch.from_numpy, (obj.detach().numpy(),)
            except TypeError:  # NumPy has no such type, or the tensor is on an accelerator.
                return obj.detach().clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)

    content = io.BytesIO()
    Pickler(content, pickle.HIGHEST_PROTOCOL).dump(value)
    return content.getvalue()


def sum_over_processes(*tensors: "Tensor") -> None:
    """Replace each tensor by its sum over all processes. All tensors are sent as one message.

    Args:
        tensors: Tensors on one device. Each process has tensors of the same shapes.
    """
    if _world.size == 1:
        return
    import torch
    import torch.distributed as dist

    flat = torch.cat([tensor.detach().flatten().to(tensors[0].dtype) for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


def broadcast(tensors: Iterable["Tensor"]) -> None:
    """Replace the content of each tensor by the content on rank 0."""
    if _world.size > 1:
        import torch.distributed as dist

        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


@contextmanager
def failing_together() -> Generator[None]:
    """Store an error for the other processes. If another process has failed before, raise PeerError with its error.

    The system closes the connections of a failed process, so that the processes that wait for an answer fail too. A
    requested stop is no error, because all processes agree on the stop.
    """
    global _has_failed, _is_ending
    try:
        yield
    except BaseException as error:
        _has_failed = True
        is_agreed = isinstance(error, PeerError | AgreedError) or not isinstance(error, Exception | KeyboardInterrupt)
        if _world.size == 1 or is_agreed:
            raise
        _is_ending = True
        cause = "" if isinstance(error, InputError) else stored_failure()
        # Ctrl-C interrupts all processes, but torchrun interrupts a process after the failure of another one.
        if isinstance(error, KeyboardInterrupt) and cause.endswith(INTERRUPTED):
            cause = ""
        if cause or _is_lost_connection(error):
            raise PeerError(cause or f"another process has ended ({one_line(error)})") from error
        _store_failure(error)
        raise


def disconnect() -> None:
    """Close the connections of a failed process, so that the processes that wait for an answer fail too."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def stored_failure() -> str:
    """Return the stored error of another process, or "". Before the processes are connected, no error is stored."""
    if _store is None:
        return ""
    with suppress(RuntimeError):
        if _store.check([FAILURE_KEY]) and not (line := _store.get(FAILURE_KEY).decode()).startswith(
            f"process {_world.rank}:"
        ):
            return line
    return ""


def main_has_reported() -> bool:
    """Wait a few seconds for the end of rank 0. Return True if rank 0 has reported the failure of this process."""
    if _world.size == 1:
        return False
    try:
        disconnect()
        assert _store is not None
        _store.wait([ENDED_KEY], WAIT_FOR_MAIN)
    except RuntimeError:  # Rank 0 has been killed, or is busy.
        return False
    return True


def _end() -> None:
    """Disconnect at the end of the program. Rank 0 lets the failed processes end, which wait for its report."""
    if _world.rank == 0:
        with suppress(RuntimeError):  # The process with the store may have ended.
            assert _store is not None
            _store.set(ENDED_KEY, "")
            _store.get(ENDED_KEY)  # The answer shows that the store has received the key.
    elif _has_failed:
        main_has_reported()
    disconnect()


def _store_failure(error: BaseException) -> None:
    reason = INTERRUPTED if isinstance(error, KeyboardInterrupt) else one_line(error) or type(error).__name__
    with suppress(RuntimeError):  # The process with the store may have ended.
        assert _store is not None
        _store.set(FAILURE_KEY, f"process {_world.rank}: {reason}")


def _is_lost_connection(error: BaseException) -> bool:
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
