"""Check that two models with equal weights give equal outputs."""

from torch import Tensor

TOLERANCE = 1e-4
"""The allowed difference, as a share of the largest output."""
MIN_EQUAL_TEXTS = 0.99
"""The required share of texts that are equal to the token. Rounding can decide between two equal likelihoods."""


def number_mismatch(ours: Tensor, theirs: Tensor) -> str | None:
    """Describe the difference between two tensors, or return None if it is within `TOLERANCE`."""
    if ours.shape != theirs.shape:
        return f"outputs of shape {tuple(theirs.shape)}, but ours are {tuple(ours.shape)}"
    difference = ((ours - theirs).abs().max() / ours.abs().max()).item()
    if difference <= TOLERANCE:  # NaN fails this comparison.
        return None
    return f"outputs differ from ours by {difference:.1e} of the largest, and {TOLERANCE:.0e} is allowed"


def text_mismatch(ours: Tensor, theirs: Tensor) -> str | None:
    """Describe the difference between token ids (texts, L), or return None if `MIN_EQUAL_TEXTS` of the texts agree."""
    if ours.shape != theirs.shape:
        return f"texts of shape {tuple(theirs.shape)}, but ours are {tuple(ours.shape)}"
    share = (ours == theirs).all(1).double().mean().item()
    if share >= MIN_EQUAL_TEXTS:
        return None
    return f"only {share:.1%} of its texts equal ours, and {MIN_EQUAL_TEXTS:.0%} are required"
