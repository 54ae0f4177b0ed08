"""Low-rank updates: rank 0 changes nothing, a merge changes no output, and only the updates learn."""

import pytest
import torch
from torch import nn

from unifier import RecurrentTrunk, Tokens, Transformer
from unifier.nn.lora import add_lora, merge_lora
from unifier_tokenizers import InputError

D = 16


def tokens() -> Tokens:
    return Tokens(torch.randn(2, D, 5), torch.ones(2, 5, dtype=torch.bool), torch.arange(5).expand(2, 1, 5))


def test_merged_update_gives_the_same_output() -> None:
    trunk, inputs = Transformer(D, 2, 2, 32), tokens()
    before, names = trunk(inputs).matrix, set(trunk.state_dict())
    add_lora(trunk, 4)
    assert torch.equal(trunk(inputs).matrix, before), "an update starts at 0"
    for name, weight in trunk.named_parameters():
        if name.endswith(".up"):
            nn.init.normal_(weight, std=0.1)
    updated = trunk(inputs).matrix
    assert (updated - before).abs().max() > 0.01
    merge_lora(trunk)
    torch.testing.assert_close(trunk(inputs).matrix, updated, atol=1e-6, rtol=1e-6)
    assert set(trunk.state_dict()) == names


def test_rank_0_has_no_parameters() -> None:
    trunk = Transformer(D, 1, 2, 32)
    count = sum(1 for _ in trunk.parameters())
    add_lora(trunk, 0)
    assert sum(1 for _ in trunk.parameters()) == count


def test_trunk_without_linear_layers_is_refused() -> None:
    with pytest.raises(InputError, match="RecurrentTrunk"):
        add_lora(RecurrentTrunk(D, 1), 4)
