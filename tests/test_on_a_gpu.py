"""A network on a GPU that computes shapes, types and devices alone, so that these need no GPU to be held right."""

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from unifier.data.loading import Batch, collate
from unifier.network import Network
from unifier.running.encoded import encode
from unifier.running.registry import experiment as named
from unifier.study.experiment import Experiment

GPU = torch.device("cuda", 0)
SIDE = 8
"""Of the embedded digits, in pixels."""


class Fake(FakeTensorMode):
    """Tensors without numbers; what a program asks of them is answered, and what it picks by a mask is four rows."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return SIDE if args[0].dtype == torch.int64 else False
        if func is torch.ops.aten.index.Tensor and args[1][0] is not None and args[1][0].dtype == torch.bool:
            assert args[1][0].device == args[0].device
            return args[0].flatten(0, args[1][0].ndim - 1)[:4]
        return super().dispatch(func, types, args, kwargs)


def moved(module: nn.Module) -> None:
    for part in module.modules():
        for name, one in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(torch.empty_like(one, device=GPU), one.requires_grad))
        for name, one in part.named_buffers(recurse=False):
            setattr(part, name, torch.empty_like(one, device=GPU))


OnAGpu = tuple[Network, str, Batch, Fake]


@pytest.fixture(
    scope="module",
    params=[
        ("translation.py", {}),
        ("ladder.py:one_rung", {"rung": "prefix"}),
        ("ladder.py:one_rung", {"rung": "convolutional"}),
        ("pictures.py", {}),
        ("pictures.py", {"stem": None, "pooling": "first", "positions": "rotary", "stochastic_depth": 0.1}),
        ("genres.py", {}),
        ("genres.py", {"tokenizer": "waveform", "pooling": "attention"}),
    ],
    ids=str,
)
def on_a_gpu(request: pytest.FixtureRequest) -> OnAGpu:
    file, settings = request.param
    experiment = named(f"experiments/{file}")(**settings)
    assert isinstance(experiment, Experiment)
    ((arm, encoded),) = encode(experiment, {}).items()
    batch, network = collate(encoded.splits["train"], range(8)), Network(experiment)
    with Fake(allow_non_fake_inputs=True) as fake:
        moved(network)
        return network, arm, Batch(*(torch.empty_like(part, device=GPU) for part in batch)), fake


@pytest.mark.parametrize("bf16", [False, True])
def test_a_loss_stays_on_the_device(on_a_gpu: OnAGpu, bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network, arm, batch, fake = on_a_gpu
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    with fake, torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        read, loss = network.read(arm, batch), network.loss(arm, batch)
    assert (read.matrix.device, loss.device, loss.dtype) == (GPU, GPU, torch.float32)


def test_a_tensor_that_stayed_behind_is_found() -> None:
    with Fake(), pytest.raises(RuntimeError, match="two different devices"):
        torch.add(torch.empty(3, device=GPU), torch.empty(3))
