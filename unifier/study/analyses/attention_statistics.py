"""Statistics of attention: entropy, distance, agreement of heads."""

import torch
from torch import Tensor

from unifier.trunks.attention import visibility
from unifier.trunks.trunk import Visible

STATISTICS = ("entropy", "distance", "uniform_distance", "agreement")


def attention_statistics(
    weights: Tensor, mask: Tensor, visible: Visible, coordinates: Tensor, placed: Tensor
) -> dict[str, Tensor]:
    """What each real column of a batch does with attention (B, H, N, N) under mask (B, N): (columns,) for each name.

    - entropy: over the logarithm of the number of columns seen, mean over heads: 0 for one column, 1 for all alike
    - distance: the mean one attended to, between coordinates (B, A, N), among the columns that are placed (B, N)
    - uniform_distance: the same if attention were spread evenly over what is seen
    - agreement: 1 less the heads' Jensen-Shannon divergence (Lin 1991, section 5) over the logarithm of their number

    NaN stands where there is nothing to say: a column that sees itself alone has no entropy, a lone head no agreement.
    """
    n, heads = weights.shape[-1], weights.shape[1]
    allowed = visibility(mask, visible)
    seen = mask[:, None, :].expand(-1, n, -1) if allowed is None else allowed[:, 0].expand(-1, n, -1)
    weights = weights.float()
    entropies = torch.special.entr(weights).sum(-1)  # B, H, N
    divergence = torch.special.entr(weights.mean(1)).sum(-1) - entropies.mean(1)
    points = coordinates.float().mT
    between = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    near = seen & placed[:, None, :]
    within = weights.mean(1) * near
    found = (
        entropies.mean(1) / seen.sum(-1).log(),
        (within * between).sum(-1) / within.sum(-1),
        (near * between).sum(-1) / near.sum(-1),
        1 - divergence / torch.tensor(float(heads)).log(),
    )
    found = dict(zip(STATISTICS, found, strict=True))
    for name in ("distance", "uniform_distance"):
        found[name] = found[name].masked_fill(~placed, torch.nan)
    return {name: each[mask].where(each[mask].isfinite(), torch.nan) for name, each in found.items()}


def received(weights: Tensor, asking: Tensor) -> Tensor:
    """How much attention each column receives, mean over heads and over the columns that ask: (H, N, N) -> (N,).

    `asking` (N,) says which: all real ones before a mean, the first one alone before a class token's head. In units of
    an even share, so that 1 is neither much nor little.
    """
    return weights.float().mean(0)[asking].mean(0) * weights.shape[-1]
