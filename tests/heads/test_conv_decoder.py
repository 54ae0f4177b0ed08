"""The reach of the convolutional decoder; the contract is proven in test_text_generation.py."""

import pytest
import torch

from tests.heads.conftest import randomize, replace_column
from unifier.heads.conv_decoder import ConvDecoderHead
from unifier_tokenizers import InputError, Tokens, Vocabulary

B, D = 3, 12


@torch.no_grad()
def test_reach_is_depth_times_kernel_size(vocabulary: Vocabulary, tokens: Tokens) -> None:
    head = randomize(ConvDecoderHead(vocabulary, D, depth=2, kernel_size=3))
    ids = torch.randint(4, len(vocabulary), (B, 9))
    other = replace_column(vocabulary, ids, 1)
    is_changed = (head.hidden_states(tokens, ids) - head.hidden_states(tokens, other)).abs().amax((0, 2)) > 1e-5
    assert is_changed.tolist() == [1 <= position <= 1 + 2 * (3 - 1) for position in range(9)]
    with pytest.raises(InputError, match="kernel_size=0"):
        ConvDecoderHead(vocabulary, D, depth=1, kernel_size=0)
