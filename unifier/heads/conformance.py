"""Checks of the contract of heads, for heads of unifier and of other packages."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unifier.heads.head import IGNORE_INDEX, Head
from unifier_tokenizers import ContractError, InputError, Tokens
from unifier_tokenizers.errors import one_line

MIN_TOKENS = 3
"""The number of tokens of the shortest random example."""


def check_head(head: Head, targets: Sequence[Any], dim: int) -> None:
    """Check on raw targets and random tokens that a head fulfills the contract. The head is not modified.

    Args:
        head: A head that reads the trunk's output.
        targets: At least two different raw targets.
        dim: D, the width of the trunk's tokens.

    Raises:
        ContractError: A check fails.
        InputError: There are not two different targets, or the head runs the trunk itself.
    """
    if len(targets) < 2 or all(repr(target) == repr(targets[0]) for target in targets):
        raise InputError(f"{len(targets)} targets are given, but no two are different: give two different targets")
    if head.trunk_output == "input":
        raise InputError(f"{type(head).__name__} runs the trunk itself, so it cannot be checked without a trunk")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        subject = deepcopy(head)
        encoded = _encode(subject, targets)
        sizes = [target.shape[-1] if target.ndim else 0 for target in encoded]
        # Targets of different lengths may have one entry per token.
        lengths = sizes if len(set(sizes)) > 1 else [MIN_TOKENS + i for i in range(len(encoded))]
        batches = [_random_tokens(lengths, dim, fill) for fill in (0.0, 1.0)]
        same = len(set(sizes)) == 1
        target = torch.stack(encoded) if same else _pad_targets(encoded)
        _check_loss(subject, batches, target)
        _check_predictions(subject.eval(), batches, targets)


def _encode(head: Head, targets: Sequence[Any]) -> list[Tensor]:
    encoded = list[Tensor]()
    for i, raw in enumerate(targets):
        tensors: list[object] = [head.encode(raw) for _ in range(2)]
        first, second = tensors
        if not (isinstance(first, Tensor) and isinstance(second, Tensor)) or first.requires_grad:
            raise ContractError(f"encode of target {i} returned a {type(first).__name__}: return a tensor, no gradient")
        if not torch.equal(first, second):
            raise ContractError(f"the second encode of target {i} gives another tensor: encode must be deterministic")
        encoded.append(first)
    return encoded


def _pad_targets(targets: Sequence[Tensor]) -> Tensor:
    """Return targets (..., L) with different lengths as one tensor (B, ..., L)."""
    rows = [target.movedim(-1, 0) for target in targets]
    return pad_sequence(rows, batch_first=True, padding_value=IGNORE_INDEX).movedim(1, -1)


def _random_tokens(lengths: Sequence[int], dim: int, fill: float) -> Tokens:
    """Return random tokens. The padding has a given value."""
    n = max(lengths)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    matrix = torch.randn(len(lengths), dim, n, generator=torch.Generator().manual_seed(1))
    return Tokens(matrix.masked_fill(~mask[:, None], fill), mask, torch.arange(n).expand(len(lengths), 1, -1))


def _check_loss(head: Head, batches: Sequence[Tokens], target: Tensor) -> None:
    head.eval()  # Dropout would make two losses different.
    try:
        losses = [head.loss(tokens, target) for tokens in batches]
    except Exception as error:
        raise ContractError(f"loss fails for a batch ({type(error).__name__}: {one_line(error)})") from error
    if losses[0].ndim or not losses[0].isfinite():
        raise ContractError(f"loss returned a tensor of shape {tuple(losses[0].shape)}: return a finite scalar")
    if not torch.allclose(losses[0], losses[1]):
        raise ContractError(f"the loss depends on padding ({losses[0]:.4g}, {losses[1]:.4g}): use tokens.mask")
    losses[0].backward()
    for name, parameter in head.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ContractError(f"parameter {name!r} gets no gradient: use the parameter in the loss")


@torch.no_grad()
def _check_predictions(head: Head, batches: Sequence[Tokens], targets: Sequence[Any]) -> None:
    predictions, others = (head.predict(tokens) for tokens in batches)
    if len(predictions) != len(targets):
        raise ContractError(f"predict returned {len(predictions)} predictions for {len(targets)} examples")
    if repr(list(predictions)) != repr(list(others)):
        raise ContractError("the predictions depend on padding: use tokens.mask")
    texts: list[object] = [head.describe(prediction) for prediction in predictions]
    if not all(isinstance(text, str) for text in texts):
        raise ContractError("describe must return a text for a prediction")
    if not head.checked_metrics(predictions, targets):
        raise ContractError("metrics must return at least one metric, because the first metric selects the weights")
