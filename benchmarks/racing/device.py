"""Where a contest is raced: on the processor, or on an accelerator."""

from typing import Literal, NamedTuple, TypeVar

import torch

from unifier.nn.precision import has_fast_bfloat16

Device = Literal["cpu", "cuda"]
"""torch's names for them."""
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
"""The environment of a program that is to see no accelerator."""

Parts = TypeVar("Parts", bound=NamedTuple)


def is_here(device: Device) -> bool:
    """Whether this machine has one."""
    return device == "cpu" or torch.cuda.is_available()


def fast_types() -> tuple[torch.dtype, ...]:
    """The types whose products this processor has instructions for."""
    return (torch.float32, torch.bfloat16) if has_fast_bfloat16("cpu") else (torch.float32,)


def sent(parts: Parts, device: Device) -> Parts:
    """The tensors of a batch, on the device."""
    return type(parts)._make(part.to(device) for part in parts)


def finish(device: Device) -> None:
    """Wait for what it still works on behind the program's back."""
    torch.get_device_module(device).synchronize()


def give_back(device: Device) -> None:
    """Let other programs have the memory of an accelerator that this one keeps and does not use."""
    if device == "cuda":
        torch.cuda.empty_cache()
