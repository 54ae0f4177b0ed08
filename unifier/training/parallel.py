"""Start of several processes that train one model, with Lightning's launchers and cluster environments."""

import io
import math
import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree
from socket import gethostname
from subprocess import Popen
from threading import Thread
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.fabric.utilities.distributed import (
    _set_num_threads_if_needed,  # pyright: ignore[reportPrivateUsage]  Lightning has no public function.
)
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.subprocess_script import (
    _SubprocessScriptLauncher,  # pyright: ignore[reportPrivateUsage]  Lightning has no public launcher.
)
from torch import Tensor

from unifier.data.dataloader import TrainDataLoader
from unifier.data.encoding import end_with_parent
from unifier.distributed import WAIT_FOR_MAIN, PeerError, ValueT, World, connect, gather, stored_failure, world
from unifier.files import print_status
from unifier.folders import lock_temporary, remove_unlocked
from unifier.nn.precision import default_device
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line

SHARED_PREFIX = f"unifier-shared-{os.getuid()}-"
"""The first letters of the names of temporary folders with encoded data."""

LAUNCHED = "UNIFIER_LAUNCHED"
"""The variable with the process id of rank 0, which starts the other processes. They must end with rank 0."""

POLL_SECONDS, GRACE_SECONDS = 0.5, 3.0
"""Seconds between two looks at the other processes, and seconds until this process must have ended after a failure."""

ALIGNMENT = 64
"""Each array begins at a multiple of this number of bytes."""

_environment: ClusterEnvironment | None = None
"""The cluster environment of the connected processes."""


@final
class StepReduction(DDPStrategy):
    """Lightning's strategy for several processes, without the wrapper that reduces gradients.

    `UnifierModule` adds up the gradients once per step. The wrapper would reduce only the last batch of a step, and
    would fail if a task does not use all weights.
    """

    def setup_distributed(self) -> None:
        """Set the ranks. The processes are already connected, and Lightning would reset the random generators."""
        self.set_world_ranks()

    def configure_ddp(self) -> None:
        """Do nothing, because the model needs no wrapper."""


def trainer_options() -> dict[str, Any]:
    """Return the devices, the strategy and the cluster environment for Lightning's Trainer."""
    if world().size == 1:
        return {"devices": 1}
    return {
        "devices": world().local_size,
        "num_nodes": world().size // world().local_size,
        "strategy": StepReduction(cluster_environment=_environment),
        "use_distributed_sampler": False,
    }


def start_processes(devices: int | str | None = None, nodes: int | None = None) -> None:
    """Start or find the processes that train together, and connect them. Do nothing for a single process.

    Under torchrun and srun, the processes exist. Otherwise, Lightning's launcher runs this program again for each
    further device of the machine.

    Args:
        devices: The number of devices of each machine, or "auto" for all accelerators. By default, the number of
            processes that torchrun or srun has started on each machine, or 1.
        nodes: The number of machines. Without torchrun and srun, the program is started on each machine.

    Raises:
        InputError: The devices do not exist, or the processes do not fit the arguments.
    """
    global _environment
    if world().size > 1:
        return
    environment = find_environment() or launch(devices, nodes)
    if environment is None:
        return
    if isinstance(environment, SLURMEnvironment):
        size = environment.world_size()
        local_size = size // _number("SLURM_NNODES", 1)
    else:
        size = _number("WORLD_SIZE", 1)
        local_size = _number("LOCAL_WORLD_SIZE", size)
    for name, given, started in (("devices", devices, local_size), ("nodes", nodes, size // local_size)):
        if given not in (None, "auto", started, str(started)):
            raise InputError(f"{name}={given}, but {size} processes with {name}={started} have been started")
    if size == 1:
        return
    environment.set_world_size(size)
    if isinstance(environment, LightningEnvironment):
        if environment.local_rank() and LAUNCHED in os.environ:
            end_with_parent()
            if os.environ[LAUNCHED] != str(os.getppid()):  # The parent has ended before the line above.
                raise PeerError("process 0 has ended")
        environment.set_global_rank(environment.node_rank() * local_size + environment.local_rank())
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
    device, backend = default_device(), "gloo"
    if device != "cpu":
        count_devices(local_size)
        torch.accelerator.set_device_index(environment.local_rank())
        backend = f"cpu:gloo,{device}:{dist.get_default_backend_for_device(device)}"
    connect(World(environment.global_rank(), size, environment.local_rank(), local_size), backend)
    _environment = environment


def find_environment() -> ClusterEnvironment | None:
    """Return the environment of a launcher that has started this process, or None.

    Raises:
        InputError: The variables of the launcher are incomplete.
    """
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning warns if srun is installed but not used.
        if SLURMEnvironment.detect():
            try:
                return SLURMEnvironment(auto_requeue=False)
            except RuntimeError as error:
                raise InputError(one_line(error)) from error
    if _number("WORLD_SIZE", 1) == 1:
        return None
    if missing := {"LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} - os.environ.keys():
        raise InputError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but {', '.join(sorted(missing))} is not set: start the processes "
            "with torchrun, srun or --devices, or unset WORLD_SIZE"
        )
    return LightningEnvironment()


def launch(devices: int | str | None, nodes: int | None) -> ClusterEnvironment | None:
    """Start this program again for each further device of the machine. Return None for a single process.

    Raises:
        InputError: The devices do not exist, or the variables for several machines are not set.
    """
    local_size, nodes = count_devices(devices), 1 if nodes is None else nodes
    if nodes < 1:
        raise InputError(f"nodes={nodes}: at least 1 is needed")
    if local_size * nodes == 1:
        return None
    if nodes > 1 and (missing := {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} - os.environ.keys()):
        raise InputError(
            f"nodes={nodes}, but {', '.join(sorted(missing))} is not set: set the variables on each machine, or use "
            "torchrun or srun"
        )
    environment = LightningEnvironment()
    os.environ |= {"LOCAL_WORLD_SIZE": str(local_size), LAUNCHED: str(os.getpid())}
    _set_num_threads_if_needed(local_size)
    launcher = _SubprocessScriptLauncher(environment, local_size, nodes)
    launcher._call_children_scripts()  # pyright: ignore[reportPrivateUsage]
    # Lightning's own observer would kill this process before the error is printed.
    Thread(target=end_after, args=(launcher.procs,), daemon=True).start()
    return environment


def end_after(processes: Sequence["Popen[bytes]"]) -> None:
    """End this process if another process of this machine has failed, and this process does not end by itself.

    Args:
        processes: The other processes.
    """
    while not any(process.poll() for process in processes):
        time.sleep(POLL_SECONDS)
    if stored_failure():  # The failed process has waited for this process, and has printed its error.
        time.sleep(GRACE_SECONDS)
    else:
        time.sleep(WAIT_FOR_MAIN.total_seconds() if world().size > 1 else GRACE_SECONDS)
        rank, status = next((rank, process.poll()) for rank, process in enumerate(processes, 1) if process.poll())
        print_status(f"unifier: process {rank} has ended with the exit status {status}", sys.stderr)
    os._exit(1)


def count_devices(devices: int | str | None) -> int:
    """Return the number of devices of this machine to use: accelerators, or else cores.

    Raises:
        InputError: The machine has not as many devices.
    """
    device = default_device()
    accelerators = 0 if device == "cpu" else torch.accelerator.device_count()
    if devices in (None, "auto"):
        return max(accelerators, 1) if devices else 1
    available = accelerators or os.cpu_count() or 1
    if not str(devices).isdecimal() or not 1 <= int(devices) <= available:
        kind = f"{device} devices" if accelerators else "cores"
        raise InputError(f"devices={devices}: auto or a number from 1 to {available} is expected ({kind})")
    return int(devices)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or text == "0":
        raise InputError(f"{name}={text}: a number above 0 is expected")
    return int(text)


def compute_once(compute: Callable[[], ValueT]) -> ValueT:
    """Call a function on one process of each machine, and return the result on all processes.

    The other processes memory-map the arrays and tensors of the result.

    Raises:
        Exception: The error of the function.
    """
    if world().local_size == 1:
        return gather(compute)[world().rank] if world().size > 1 else compute()
    with ExitStack() as cleanup:
        result: list[ValueT] = []

        def write() -> str:
            if world().local_rank:
                return ""
            result.append(compute())
            remove_unlocked(Path(tempfile.gettempdir()), SHARED_PREFIX)
            folder = Path(tempfile.mkdtemp(prefix=SHARED_PREFIX))
            cleanup.enter_context(lock_temporary(folder))
            cleanup.callback(rmtree, folder, ignore_errors=True)
            write_arrays(folder, result[0])
            return str(folder)

        folder = Path(gather(write)[world().rank - world().local_rank])
        gather(lambda: None if result else result.append(read_arrays(folder)))
    return result[0]


def write_arrays(folder: Path, value: Any) -> None:
    """Write a value into a folder, with all arrays in one file."""
    content, bounds = io.BytesIO(), list[tuple[int, int]]()
    with (folder / "arrays").open("wb") as arrays:

        def add(buffer: pickle.PickleBuffer) -> None:
            arrays.write(bytes(-arrays.tell() % ALIGNMENT))
            start = arrays.tell()
            arrays.write(buffer.raw())
            bounds.append((start, arrays.tell()))

        _Pickler(content, protocol=5, buffer_callback=add).dump(value)
        arrays.write(bytes(1))  # An empty file cannot be memory-mapped.
    (folder / "value").write_bytes(pickle.dumps((content.getvalue(), bounds)))


def read_arrays(folder: Path) -> Any:
    """Read the value that `write_arrays` has written. The file may be deleted afterwards."""
    content, bounds = pickle.loads((folder / "value").read_bytes())
    # With the mode "c", the arrays seem writable, so torch prints no warning.
    arrays = np.memmap(folder / "arrays", np.uint8, "c").data
    return pickle.loads(content, buffers=[arrays[start:stop] for start, stop in bounds])


@final
class _Pickler(pickle.Pickler):
    """Pickler that treats tensors like arrays."""

    def reducer_override(self, obj: Any) -> Any:
        return (torch.from_numpy, (obj.numpy(),)) if isinstance(obj, Tensor) else NotImplemented


def check_batch_size(batches: TrainDataLoader) -> None:
    """Raise InputError if a usual batch of a task has fewer examples than there are processes."""
    size = world().size
    for task, lengths in batches.lengths.items() if size > 1 else ():
        widths = lengths.max(1)
        width = float(widths.max() if task in batches.stream_tasks else widths.mean())
        if min(batches.max_tokens / width, len(lengths)) < size:
            raise InputError(
                f'batch_tokens={batches.max_tokens}: a batch of "{task}" ({len(lengths):,} examples of about '
                f"{width:.0f} tokens) has fewer examples than the {size} processes that share it; give at least "
                f"batch_tokens={math.ceil(width * size)}, more examples, or fewer processes"
            )


def check_equal(facts: Mapping[str, Any]) -> None:
    """Raise InputError if the processes have different code, data or settings.

    Args:
        facts: A mapping from the name of a fact to its value on this process.
    """
    first, *others = gather(lambda: (gethostname(), dict(facts)))
    for rank, (name, other) in enumerate(others, 1):
        if different := next((fact for fact in facts if other[fact] != first[1][fact]), None):
            given, expected = (values[different] or "unknown" for values in (other, first[1]))
            raise InputError(
                f"process {rank} on {name} has {different} {given}, but process 0 on {first[0]} has {expected}: use "
                "the same code, data and versions on all machines"
            )
