"""Check that two models with equal weights return equal outputs."""

from torch import Tensor

TOLERANCE = 1e-4
"""The maximum difference between two outputs, relative to the largest output."""
MIN_EQUAL_TEXTS = 0.99
"""The required fraction of texts with identical tokens. Rounding can reverse the order of two equal likelihoods."""


def number_mismatch(ours: Tensor, theirs: Tensor) -> str | None:
    """Describe the difference between two tensors, or return None if the difference is at most `TOLERANCE`."""
    if ours.shape != theirs.shape:
        return f"outputs have the shape {tuple(theirs.shape)}, but our outputs have the shape {tuple(ours.shape)}"
    difference = ((ours - theirs).abs().max() / ours.abs().max()).item()
    if difference <= TOLERANCE:  # NaN fails this comparison.
        return None
    return f"the relative difference from our outputs is {difference:.1e}, but at most {TOLERANCE:.0e} is allowed"


def text_mismatch(ours: Tensor, theirs: Tensor) -> str | None:
    """Describe the difference between token ids (texts, L), or return None if `MIN_EQUAL_TEXTS` of the texts agree."""
    if ours.shape != theirs.shape:
        return f"token ids have the shape {tuple(theirs.shape)}, but our token ids have the shape {tuple(ours.shape)}"
    share = (ours == theirs).all(1).double().mean().item()
    if share >= MIN_EQUAL_TEXTS:
        return None
    return f"only {share:.1%} of the texts are equal to our texts, but {MIN_EQUAL_TEXTS:.0%} must be equal"
