"""Batch norms whose statistics are those of the whole batch, while each process computes a share of the batch."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  Batch norms derive from it.

from unifier_tokenizers.shares import is_shared, sum_over_shares


def share_statistics(module: nn.Module) -> None:
    """Let all batch norms in a module compute the statistics of the whole batch during training.

    torch's own `SyncBatchNorm` works only on accelerators.
    """
    for norm in module.modules():
        if isinstance(norm, _BatchNorm):
            norm.forward = MethodType(_forward, norm)


def _forward(norm: Any, x: Tensor) -> Tensor:
    """Normalize a share (B, C, ...) like `torch.nn.functional.batch_norm` normalizes the whole batch.

    Raises:
        ValueError: The whole batch has a single value per channel, so there is no variance.
    """
    if not (norm.training and is_shared()):
        return type(norm).forward(norm, x)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    values = x.float()
    count = sum_over_shares(values.new_tensor(x.numel() / x.shape[1]))
    if count < 2:
        raise ValueError("a batch norm needs more than 1 value per channel in training")
    mean = sum_over_shares(values.sum(axes)) / count
    centered = values - mean.view(shape)
    variance = sum_over_shares(centered.square().sum(axes)) / count
    if norm.track_running_stats:
        norm.num_batches_tracked += 1
        factor = 1 / norm.num_batches_tracked.item() if norm.momentum is None else norm.momentum
        with torch.no_grad():
            norm.running_mean.lerp_(mean, factor)
            norm.running_var.lerp_(variance * count / (count - 1), factor)
    normalized = centered * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        normalized = normalized * norm.weight.view(shape) + norm.bias.view(shape)
    return normalized.to(x.dtype)
