"""The device of a benchmark case: the CPU or an accelerator."""

from typing import Literal, NamedTuple, TypeVar

import torch

from unifier.nn.precision import has_fast_bfloat16

Device = Literal["cpu", "cuda"]
"""The name of a device in torch."""
NO_ACCELERATOR = {"CUDA_VISIBLE_DEVICES": ""}
"""Environment variables that hide every accelerator from a process."""

BatchT = TypeVar("BatchT", bound=NamedTuple)


def is_available(device: Device) -> bool:
    """Return True if the machine has the device."""
    return device == "cpu" or torch.cuda.is_available()


def fast_dtypes() -> tuple[torch.dtype, ...]:
    """Return the floating-point types for which the CPU has fast instructions."""
    return (torch.float32, torch.bfloat16) if has_fast_bfloat16("cpu") else (torch.float32,)


def move_batch(batch: BatchT, device: Device) -> BatchT:
    """Move all tensors of a batch to the device."""
    return type(batch)._make(tensor.to(device) for tensor in batch)


def synchronize(device: Device) -> None:
    """Wait until the device has finished all queued operations."""
    torch.get_device_module(device).synchronize()


def release_memory(device: Device) -> None:
    """Release the unused cached memory of an accelerator for other processes."""
    if device == "cuda":
        torch.cuda.empty_cache()
