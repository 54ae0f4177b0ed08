"""A trunk whose weights are shuffled is a control: as large, and each seed's own."""

import torch
from torch import Tensor

from unifier.trials.joint import shuffle
from unifier.trunks.transformer import Transformer


def shuffled(seed: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    trunk = Transformer(8, 1, 2, 8)
    shuffle(trunk, seed)
    return trunk.state_dict()


def test_each_seed_has_an_order_of_its_own_and_always_the_same_one() -> None:
    first, again, other = shuffled(1), shuffled(1), shuffled(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name, tensor in first.items() if tensor.ndim == 2]
    assert matrices
    for name in matrices:
        assert not torch.equal(first[name], other[name])
        assert torch.equal(first[name].flatten().sort().values, other[name].flatten().sort().values)
