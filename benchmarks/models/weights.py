"""Rename our weights to library-neutral names, and copy weights into the model of another library.

`encoder_weights` and `sequence_weights` map the neutral names to the names of each peer.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
KINDS = ("weight", "bias")


def load_state(weights: Path) -> State:
    """Load the weights that our variant saved."""
    return torch.load(weights, weights_only=True)


def block_states(state: State, prefix: str) -> list[State]:
    """Return the weights of each block in a stack, with the names that `block_state` returns."""
    count = 1 + max(int(name.removeprefix(f"{prefix}.").partition(".")[0]) for name in state if name.startswith(prefix))
    return [block_state(state, f"{prefix}.{i}") for i in range(count)]


def block_state(state: State, prefix: str) -> State:
    """Return the weights of one of our blocks, with neutral names.

    The neutral names are, for example, `self.query.weight`, `self.qkv.bias`, `cross.out.weight`, `up.weight` and
    `down.bias`. Only this function depends on the parameter names inside our blocks.
    """
    neutral: State = {}
    for kind in KINDS:
        for ours, name in (("attention", "self"), ("cross", "cross")):
            if f"{prefix}.{ours}.query.weight" not in state:
                continue
            query, key_value = (state[f"{prefix}.{ours}.{part}.{kind}"] for part in ("query", "key_value"))
            key, value = key_value.chunk(2)
            neutral |= {f"{name}.query.{kind}": query, f"{name}.key.{kind}": key, f"{name}.value.{kind}": value}
            neutral[f"{name}.qkv.{kind}"] = torch.cat([query, key_value])
            neutral[f"{name}.out.{kind}"] = state[f"{prefix}.{ours}.out.{kind}"]
            neutral[f"{name}_norm.{kind}"] = state[f"{prefix}.{ours}_norm.{kind}"]
        neutral[f"feed_norm.{kind}"] = state[f"{prefix}.feed_forward_norm.{kind}"]
        neutral[f"up.{kind}"] = state[f"{prefix}.feed_forward.0.{kind}"]
        neutral[f"down.{kind}"] = state[f"{prefix}.feed_forward.3.{kind}"]
    return neutral


def position_table(state: State, prefix: str) -> tuple[Tensor, Tensor]:
    """Merge the tables of our learned positions, one table per axis, into one table.

    Returns:
        The encoding of a token without a position (D,), and the encodings of all grid positions (N, D).
    """
    tables: list[Tensor] = []
    while f"{prefix}.tables.{len(tables)}.weight" in state:
        tables.append(state[f"{prefix}.tables.{len(tables)}.weight"])
    grid = torch.cartesian_prod(*(torch.arange(1, len(table)) for table in tables)).view(-1, len(tables))
    encodings = torch.stack([table[grid[:, axis]] for axis, table in enumerate(tables)]).sum(0)
    return torch.stack([table[0] for table in tables]).sum(0), encodings


def rename(neutral: State, names: Mapping[str, str], prefix: str) -> State:
    """Rename weights and biases from neutral names to a peer's names.

    Args:
        neutral: Weights with neutral names.
        names: Mapping from a peer's name to a neutral name. Both names exclude "weight" and "bias".
        prefix: Prefix of all names in the peer's model.
    """
    return {f"{prefix}{theirs}{kind}": neutral[f"{name}.{kind}"] for theirs, name in names.items() for kind in KINDS}


def copy_weights(model: nn.Module, state: State) -> None:
    """Check that `state` has exactly the learned parameters of the model, and copy `state` into the model."""
    learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learned == set(state), f"not copied: {sorted(learned ^ set(state))}"
    model.load_state_dict(state, strict=False)
