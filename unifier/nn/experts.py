"""A mixture of experts: several feed-forward networks, of which a router selects one or two for each token."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from unifier.nn.feed_forward import Activation, FeedForward
from unifier_tokenizers import Dropout, InputError
from unifier_tokenizers.shares import sum_over_shares
from unifier_tokenizers.tokens import has_no_padding

BALANCE_WEIGHT = 0.01
"""Default factor of the load-balancing loss (Fedus et al. 2021, section 2.2)."""

LOAD_MOMENTUM = 0.9
"""Momentum of the mean load of the experts over batches.

A batch contains one task. If the load of each batch were balanced, each task would use all experts equally, and no
expert could specialize (Qiu et al. 2025, arXiv 2501.11873). Therefore, the mean load of about ten batches is balanced.
"""

MAX_PER_TOKEN = 2
"""Maximum number of experts of one token."""

ROUTER_SCALE = 0.1
"""Variance of the router's initial logits, for tokens with variance 1 (Fedus et al. 2021, section 2.4)."""


@final
class MixtureOfExperts(nn.Module):
    """Feed-forward networks, of which each token uses only the most likely network or the two most likely networks.

    With one expert per token, the output is p E(x), with the router's probability p of the expert E (Switch, Fedus et
    al. 2021, eq. 2). With two experts per token, the two probabilities are divided by their sum (Shazeer et al. 2017,
    section 2.1).

    An expert has no capacity, so no token is dropped, and the prediction for an example does not depend on the other
    examples of a batch. Padding is not routed.
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        activation: Activation,
        dropout: float,
        num_experts: int,
        per_token: int = 1,
        *,
        balance_weight: float = BALANCE_WEIGHT,
    ) -> None:
        """Create the router and the experts.

        Args:
            dim: D, the width of the tokens.
            ffn_dim: The width of each expert's hidden layer.
            activation: The nonlinearity of the experts.
            dropout: The dropout probability of the hidden layers.
            num_experts: E, the number of experts.
            per_token: K, the number of experts that each token uses, 1 or 2.
            balance_weight: The factor of the load-balancing loss.
        """
        super().__init__()
        check_experts(num_experts, per_token)
        if not 0 <= balance_weight < math.inf:
            raise InputError(f"balance_weight={balance_weight}: a finite number of at least 0 is needed")
        self.per_token, self.balance_weight, self.ffn_dim, self.dropout = per_token, balance_weight, ffn_dim, dropout
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(dim, ffn_dim, activation, dropout) for _ in range(num_experts))
        self.register_buffer("load", torch.zeros(num_experts))
        self.load: Tensor
        """The mean share (E,) of the tokens that each expert gets in training, with the momentum `LOAD_MOMENTUM`."""
        self.balance_losses: list[Tensor] | None = None
        """The list for the weighted balance loss of each pass, or None outside of `collect_balance_losses`."""
        self.recorded: list[Tensor] | None = None
        """The list for the number of tokens (E,) of each expert in each pass, or None outside of `record_experts`."""

    def reset_router(self) -> None:
        """Draw the router's initial weights, which give each expert about the same probability."""
        nn.init.normal_(self.router.weight, std=(ROUTER_SCALE / self.router.in_features) ** 0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map tokens (B, N, D) to tokens (B, N, D). The output for padding is 0.

        Args:
            x: The tokens.
            mask: (B, N), True for real tokens. None means that all tokens are real.
        """
        if torch.compiler.is_exporting():
            return self._run_all_experts(x, mask)
        rows = None if mask is None or has_no_padding(mask) else mask.flatten().nonzero()[:, 0]
        keep = self._dropout_factors(x)
        tokens = x.flatten(0, 1)
        if rows is not None:
            tokens = tokens.index_select(0, rows)
            keep = keep if keep is None else keep.index_select(0, rows)
        probabilities, gates, chosen = self._route(tokens)
        if self.balance_losses is not None:
            load, likelihood = expert_shares(probabilities, chosen)
            self.load = torch.where(self.load.any(), self.load.lerp(load.detach(), 1 - LOAD_MOMENTUM), load.detach())
            self.balance_losses.append(self.balance_weight * balance_loss(self.load, likelihood))
        num_tokens = chosen.flatten().bincount(minlength=len(self.experts))
        if self.recorded is not None:
            self.recorded.append(num_tokens)
        # The tokens of each expert follow each other, so each expert computes one matrix product per layer.
        order = chosen.flatten().argsort(stable=True)
        sources, counts = order // self.per_token, num_tokens.tolist()
        parts = tokens.index_select(0, sources).split(counts)
        factors = [None] * len(parts) if keep is None else keep.index_select(0, sources).split(counts)
        # An expert without tokens computes, too, so that all processes have gradients of the same parameters.
        outputs = [_run_expert(*each) for each in zip(self.experts, parts, factors, strict=True)]
        sorted_back = torch.cat(outputs).index_select(0, order.argsort()).unflatten(0, chosen.shape)
        output = (sorted_back * gates[..., None].to(sorted_back.dtype)).sum(1)
        if rows is not None:
            output = output.new_zeros(x.shape[0] * x.shape[1], output.shape[1]).index_copy(0, rows, output)
        return output.unflatten(0, x.shape[:2])

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the probabilities (..., E) of the experts, and the gates and indices (..., K) of the chosen experts.

        The router computes in float32, because its softmax is sensitive to rounding (Fedus et al. 2021, section 2.4).
        """
        with torch.autocast(tokens.device.type, enabled=False):
            probabilities = self.router(tokens.float()).softmax(-1)
        gates, chosen = probabilities.topk(self.per_token)
        if self.per_token > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        return probabilities, gates, chosen

    def _dropout_factors(self, x: Tensor) -> Tensor | None:
        """Return the dropout's factor (B N, ffn_dim) for each hidden feature of each token, or None without dropout.

        The factors are drawn before the tokens are sorted by expert, so they do not depend on the number of processes.
        """
        if not self.training or self.dropout == 0:
            return None
        dropout = next(part for part in self.experts[0].modules() if isinstance(part, Dropout))
        return dropout(x.new_ones(*x.shape[:2], self.ffn_dim)).flatten(0, 1)

    def _run_all_experts(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the same function with all experts for all tokens, because the shapes in a graph are fixed."""
        probabilities, gates, chosen = self._route(x)
        weights = torch.zeros_like(probabilities).scatter(-1, chosen, gates)
        if mask is not None:
            weights = weights * mask[..., None]
        outputs = [weights[..., k, None].to(x.dtype) * expert(x) for k, expert in enumerate(self.experts)]
        return torch.stack(outputs).sum(0)


def _run_expert(expert: nn.Module, tokens: Tensor, dropout_factors: Tensor | None) -> Tensor:
    """Run one expert on tokens (T, D), with factors (T, ffn_dim) in place of its dropout."""
    assert isinstance(expert, FeedForward)
    up, nonlinearity, _, down = expert
    hidden = nonlinearity(up(tokens))
    return down(hidden if dropout_factors is None else hidden * dropout_factors)


def check_experts(num_experts: int, per_token: int = 1) -> None:
    """Raise InputError if there is no such mixture of experts."""
    if num_experts < 1:
        raise InputError(f"experts={num_experts}: at least 1 is needed")
    if not 1 <= per_token <= min(num_experts, MAX_PER_TOKEN):
        raise InputError(
            f"experts_per_token={per_token}: a number from 1 to {min(num_experts, MAX_PER_TOKEN)} is needed for "
            f"experts={num_experts}"
        )


def expert_shares(probabilities: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the share (E,) of the tokens that each expert gets, and the expected share (E,) given the probabilities.

    With several processes, both are means over the tokens of the whole batch.

    Args:
        probabilities: The router's probabilities (T, E).
        chosen: The experts (T, K) of each token.
    """
    counts = chosen.flatten().bincount(minlength=probabilities.shape[1]).to(probabilities.dtype)
    sums = torch.stack([counts, probabilities.sum(0)])
    counts, likelihood = sum_over_shares(sums)
    total = counts.sum().clamp(min=1)
    return counts / total, likelihood / total * chosen.shape[1]


def balance_loss(load: Tensor, likelihood: Tensor) -> Tensor:
    """Return the load-balancing loss, which is 1 if all experts get equally many tokens (Fedus et al. 2021, eq. 4).

    The loss is the E-fold sum of the products f_i P_i, with the share f_i of the tokens that use expert i, and the mean
    probability P_i of expert i.

    Args:
        load: The shares (E,).
        likelihood: The mean probabilities (E,).
    """
    return len(load) * (load * likelihood).sum()


def mixtures_of(module: nn.Module) -> list[MixtureOfExperts]:
    """Return the mixtures of experts in a module, from the first layer to the last layer."""
    return [part for part in module.modules() if isinstance(part, MixtureOfExperts)]


@contextmanager
def collect_balance_losses(mixtures: Sequence[MixtureOfExperts]) -> Generator[list[Tensor]]:
    """Collect the weighted balance losses of all passes within the context, in the list that the context returns."""
    losses: list[Tensor] = []
    for mixture in mixtures:
        mixture.balance_losses = losses
    try:
        yield losses
    finally:
        for mixture in mixtures:
            mixture.balance_losses = None


@contextmanager
def record_experts(module: nn.Module) -> Generator[Callable[[], list[Tensor]]]:
    """Count the tokens of each expert within the context.

    The context's function returns the counts (E,) of each mixture of experts in the module.
    """
    mixtures = mixtures_of(module)
    passes: list[list[Tensor]] = [[torch.zeros(len(mixture.experts), dtype=torch.long)] for mixture in mixtures]
    for mixture, own in zip(mixtures, passes, strict=True):
        mixture.recorded = own
    try:
        yield lambda: [torch.stack([part.cpu() for part in own]).sum(0) for own in passes]
    finally:
        for mixture in mixtures:
            mixture.recorded = None
