"""Recurrent layers over padded inputs: packed for speed, or as a scan for exported graphs."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from unifier_tokenizers import InputError


def run_padded(layer: nn.LSTM | nn.GRU, x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Run one recurrent layer on x (B, N, D). Padding changes nothing, and the output at padding is 0.

    Args:
        layer: The layer, with one or two directions.
        x: The input.
        mask: (B, N), True for real tokens, which come first.
        lengths: The numbers of real tokens (B,), on the CPU.
    """
    if torch.compiler.is_exporting():
        return _scan_directions(layer, x, mask)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])[0]


def _scan_directions(layer: nn.LSTM | nn.GRU, x: Tensor, mask: Tensor) -> Tensor:
    outputs = [_scan(layer, x, "")]
    if layer.bidirectional:
        places, lengths = torch.arange(x.shape[1], device=x.device), mask.sum(1, keepdim=True)
        mirrored = torch.where(mask, lengths - 1 - places, places)[..., None]  # Only the real tokens change places.
        backward = _scan(layer, x.gather(1, mirrored.expand(-1, -1, x.shape[2])), "_reverse")
        outputs.append(backward.gather(1, mirrored.expand(-1, -1, layer.hidden_size)))
    return torch.cat(outputs, -1) * mask[..., None]


def _scan(layer: nn.LSTM | nn.GRU, x: Tensor, suffix: str) -> Tensor:
    """Run one direction on x (B, N, D) as a loop whose number of steps may vary in a graph.

    The gates are those of torch's LSTM and GRU. torch.export would write a packed layer as a fixed number of steps.
    """
    try:
        from torch._higher_order_ops.scan import scan  # torch 2.11 to 2.14 have no public name for this operator.
    except ImportError as error:
        raise InputError(
            "a recurrent trunk cannot be exported as a graph with this version of torch: use --format folder"
        ) from error
    names = (f"{name}_l0{suffix}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    input_weight, weight, input_bias, bias = (getattr(layer, name) for name in names)
    zero = x.new_zeros(x.shape[0], layer.hidden_size)

    def lstm_step(state: Any, gates: Tensor) -> Any:
        hidden, cell = state
        write, keep, new, show = (gates + hidden @ weight.T + bias).chunk(4, -1)
        cell = keep.sigmoid() * cell + write.sigmoid() * new.tanh()
        hidden = show.sigmoid() * cell.tanh()
        return (hidden, cell), hidden.clone()

    def gru_step(state: Any, gates: Tensor) -> Any:
        (hidden,), parts = state, gates.chunk(3, -1)
        reset, keep, new = (hidden @ weight.T + bias).chunk(3, -1)
        keep = (parts[1] + keep).sigmoid()
        hidden = (1 - keep) * (parts[2] + (parts[0] + reset).sigmoid() * new).tanh() + keep * hidden
        return (hidden,), hidden.clone()

    gates = (x @ input_weight.T + input_bias).transpose(0, 1)
    is_lstm = isinstance(layer, nn.LSTM)
    _, outputs = scan(*(lstm_step, (zero, zero.clone())) if is_lstm else (gru_step, (zero,)), gates)
    return outputs.transpose(0, 1)
