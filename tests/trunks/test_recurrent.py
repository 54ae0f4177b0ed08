"""The recurrent trunk against torch's LSTM and GRU, and its refusals."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from unifier.nn.attention import AttentionMode
from unifier.trunks.recurrent import CELLS, Cell, RecurrentTrunk, rnn_layers
from unifier_tokenizers import InputError, Tokens

D, N = 12, 9


@pytest.mark.parametrize("cell", CELLS)
def test_layer_equals_torch_rnn_and_residual(cell: Cell, random_tokens: Callable[..., Tokens]) -> None:
    trunk, tokens = RecurrentTrunk(D, 1, cell=cell), random_tokens([N, N])
    reference = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](D, D // 2, batch_first=True, bidirectional=True)
    reference.load_state_dict(trunk.layers[0].state_dict())
    x = tokens.matrix.mT
    expected = trunk.norm(x + reference(trunk.norms[0](x))[0])
    torch.testing.assert_close(trunk(tokens).matrix.mT, expected)


@torch.no_grad()
def test_attention_follows_the_layers_and_is_causal(random_tokens: Callable[..., Tokens]) -> None:
    trunk, tokens = RecurrentTrunk(D, 1, bidirectional=False, attention_heads=1), random_tokens([N, 5])
    assert trunk.block is not None
    x = tokens.matrix.mT
    x = x + trunk.layers[0](trunk.norms[0](x))[0]
    past = torch.ones(N, N).tril().bool() & tokens.mask[:, None, None]
    output = trunk(tokens, "causal").matrix
    expected = trunk.norm(trunk.block(x, past)).mT
    torch.testing.assert_close(output[0], expected[0])
    torch.testing.assert_close(output[1, :, :5], expected[1, :, :5])
    later = torch.cat([tokens.matrix[:, :, :3], torch.randn(2, D, N - 3)], 2)
    torch.testing.assert_close(trunk(tokens._replace(matrix=later), "causal").matrix[:, :, :3], output[:, :, :3])


@pytest.mark.parametrize("bidirectional", [True, False])
def test_lstm_forget_bias_starts_at_1(bidirectional: bool) -> None:
    layers = rnn_layers("lstm", 3, D, 2, bidirectional=bidirectional)
    biases = {name: bias.unflatten(0, (4, D)) for name, bias in layers.named_parameters() if "bias" in name}
    sums = [biases[name] + biases[name.replace("ih", "hh")] for name in biases if "ih" in name]
    assert len(sums) == (4 if bidirectional else 2)
    for input_gate, forget_gate, *_ in sums:  # The second of torch's four gates is the forget gate.
        assert torch.equal(forget_gate, torch.ones(D))
        assert not torch.equal(input_gate, torch.ones(D))


@pytest.mark.parametrize(
    ("bidirectional", "mode"), [(True, "causal"), (False, "bidirectional"), (False, torch.tensor([2]))]
)
def test_unsupported_mode_is_refused(
    bidirectional: bool, mode: AttentionMode, random_tokens: Callable[..., Tokens]
) -> None:
    with pytest.raises(InputError, match=mode if isinstance(mode, str) else "prefix"):
        RecurrentTrunk(D, 1, bidirectional=bidirectional)(random_tokens([4]), mode)


def test_unknown_cell_and_odd_dim_are_refused() -> None:
    with pytest.raises(InputError, match="cell 'rnn'"):
        RecurrentTrunk(D, 1, cell="rnn")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="dim=7"):
        RecurrentTrunk(7, 1)
