"""Whether two models that hold the same weights say the same."""

from torch import Tensor

TOLERANCE = 1e-4
"""Of the largest output."""
EQUAL_TEXTS = 0.99
"""The least share of texts that must be the same to the token; two equal likelihoods may fall either way."""


def far_apart(ours: Tensor, theirs: Tensor) -> str | None:
    """What is wrong between numbers of one shape."""
    if ours.shape != theirs.shape:
        return f"outputs of shape {tuple(theirs.shape)} where ours are {tuple(ours.shape)}"
    difference = ((ours - theirs).abs().max() / ours.abs().max()).item()
    if difference <= TOLERANCE:  # NaN is not
        return None
    return f"outputs differ from ours by {difference:.1e} of the largest, and {TOLERANCE:.0e} is allowed"


def texts_differ(ours: Tensor, theirs: Tensor) -> str | None:
    """What is wrong between the ids (texts, L) of as many texts."""
    if ours.shape != theirs.shape:
        return f"texts of shape {tuple(theirs.shape)} where ours are {tuple(ours.shape)}"
    share = (ours == theirs).all(1).double().mean().item()
    if share >= EQUAL_TEXTS:
        return None
    return f"only {share:.1%} of its texts are ours, and {EQUAL_TEXTS:.0%} are needed"
