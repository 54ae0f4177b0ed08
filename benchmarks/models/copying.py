"""Our weights under plain names, from which each peer's own are made."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
KINDS = ("weight", "bias")


def read(weights: Path) -> State:
    """What ours saved."""
    return torch.load(weights, weights_only=True)


def block(state: State, prefix: str) -> State:
    """One of our blocks: `self.query.weight`, `self.qkv.bias`, `cross.out.weight`, `up.weight`, `down.bias` and so on.

    No other place knows how ours are named inside a block.
    """
    plain: State = {}
    for kind in KINDS:
        for ours, name in (("attention", "self"), ("cross", "cross")):
            if f"{prefix}.{ours}.query.weight" not in state:
                continue
            query, both = (state[f"{prefix}.{ours}.{part}.{kind}"] for part in ("query", "key_value"))
            key, value = both.chunk(2)
            plain |= {f"{name}.query.{kind}": query, f"{name}.key.{kind}": key, f"{name}.value.{kind}": value}
            plain[f"{name}.qkv.{kind}"] = torch.cat([query, both])
            plain[f"{name}.out.{kind}"] = state[f"{prefix}.{ours}.out.{kind}"]
            plain[f"{name}_norm.{kind}"] = state[f"{prefix}.{ours}_norm.{kind}"]
        plain[f"feed_norm.{kind}"] = state[f"{prefix}.feed_forward_norm.{kind}"]
        plain[f"up.{kind}"] = state[f"{prefix}.feed_forward.0.{kind}"]
        plain[f"down.{kind}"] = state[f"{prefix}.feed_forward.3.{kind}"]
    return plain


def blocks(state: State, prefix: str) -> list[State]:
    """A stack of our blocks, each as `block` gives it."""
    count = 1 + max(int(name.removeprefix(f"{prefix}.").partition(".")[0]) for name in state if name.startswith(prefix))
    return [block(state, f"{prefix}.{i}") for i in range(count)]


def positions(state: State, prefix: str) -> tuple[Tensor, Tensor]:
    """Our learned positions, one table an axis, as one: that of a column nowhere (D,), and those of the grid (N, D)."""
    tables: list[Tensor] = []
    while f"{prefix}.tables.{len(tables)}.weight" in state:
        tables.append(state[f"{prefix}.tables.{len(tables)}.weight"])
    grid = torch.cartesian_prod(*(torch.arange(1, len(table)) for table in tables)).view(-1, len(tables))
    places = torch.stack([table[grid[:, axis]] for axis, table in enumerate(tables)]).sum(0)
    return torch.stack([table[0] for table in tables]).sum(0), places


def renamed(plain: State, names: Mapping[str, str], prefix: str) -> State:
    """Parts under a peer's names; `names` holds for each of the peer's ours, `weight` and `bias` left off both."""
    return {f"{prefix}{theirs}{kind}": plain[f"{ours}.{kind}"] for theirs, ours in names.items() for kind in KINDS}


def fill(model: nn.Module, state: State) -> None:
    """Give a model its learned parameters, every one of them and no other."""
    learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learned == set(state), f"not copied: {sorted(learned ^ set(state))}"
    model.load_state_dict(state, strict=False)
