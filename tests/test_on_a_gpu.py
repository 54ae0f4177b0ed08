"""A network on a GPU that computes shapes, types and devices alone, so that these need no GPU to be held right."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.contests import accelerated, classifying, ours, peers, translation
from benchmarks.models.sequences import Size
from benchmarks.racing.contest import Contest
from benchmarks.racing.device import sent
from unifier.data.loading import Batch, collate
from unifier.heads.head import IGNORED
from unifier.heads.translation import TranslationHead
from unifier.network import Network
from unifier.running.encoded import encode
from unifier.running.registry import experiment as named
from unifier.study.experiment import Experiment
from unifier_tokenizers import Tokens, Vocabulary

GPU = torch.device("cuda", 0)
SIDE = 8
"""Of the embedded digits, in pixels."""


class Fake(FakeTensorMode):
    """Tensors without numbers; what a program asks of them is answered, and what it finds in a mask is four rows."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return SIDE if args[0].dtype == torch.int64 else False
        if func is torch.ops.aten.nonzero.default:
            return args[0].new_zeros(4, args[0].ndim, dtype=torch.int64)
        return super().dispatch(func, types, args, kwargs)


def moved(module: nn.Module, _: object = GPU) -> nn.Module:
    for part in module.modules():
        for name, one in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(torch.empty_like(one, device=GPU), one.requires_grad))
        for name, one in part.named_buffers(recurse=False):
            setattr(part, name, torch.empty_like(one, device=GPU))
    return module


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


@pytest.fixture
def with_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)


@pytest.mark.usefixtures("with_autocast")
@pytest.mark.parametrize("bf16", [False, True])
def test_a_loss_stays_on_the_device(on_a_gpu: OnAGpu, bf16: bool) -> None:
    network, arm, batch, fake = on_a_gpu
    with fake, torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        read, loss = network.read(arm, batch), network.loss(arm, batch)
    assert (read.matrix.device, loss.device, loss.dtype) == (GPU, GPU, torch.float32)


class Sought(TorchDispatchMode):
    """Counts how often a program waits to be told where a mask is true."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = [one for one in tree_leaves(args[1:2]) if isinstance(one, Tensor) and one.dtype == torch.bool]
        self.count += func is torch.ops.aten.nonzero.default or (bool(masks) and "index" in str(func))
        return func(*args, **(kwargs or {}))


def test_padding_of_a_text_is_sought_once_forward_and_backward() -> None:
    head = TranslationHead(Vocabulary.fit(["a"], size=260), 8, depth=1, heads=2, hidden=16)
    columns, mask = torch.randn(2, 8, 3), torch.ones(2, 3, dtype=torch.bool)
    target = torch.tensor([[7, 8, 9], [7, 8, IGNORED]])
    with Sought() as sought:
        head.loss(Tokens(columns, mask, torch.arange(3).expand(2, 1, 3)), target).backward()
    assert sought.count == 1


def test_a_tensor_that_stayed_behind_is_found() -> None:
    with Fake(), pytest.raises(RuntimeError, match="two different devices"):
        torch.add(torch.empty(3, device=GPU), torch.empty(3))


class Watch(Fake):
    """Notes what makes a tensor on the processor."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.left: list[str] = []

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().dispatch(func, types, args, kwargs)
        if any(isinstance(one, Tensor) and one.device.type == "cpu" for one in tree_leaves(made)):
            self.left.append(str(func))
        return made


PICTURES = replace(accelerated.VIT_S16, height=16, width=16, patch=(4, 4), dim=16, depth=2, heads=2, hidden=32, steps=1)
PAIRS = accelerated.NEWS._replace(pairs=40, tokens=200, steps=1, peers=4)
RACES = [
    accelerated.vit_s16(replace(PICTURES, classes=5, batch=2)),
    accelerated.translation_base(Size(vocabulary=300, dim=16, depth=2, heads=2, hidden=32), PAIRS),
]


@pytest.mark.usefixtures("with_autocast")
@pytest.mark.filterwarnings("ignore")  # a peer's own
@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
def test_a_step_of_a_race_leaves_nothing_on_the_processor(
    race: Contest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("x_transformers")
    caught: list[tuple[Any, ...]] = []
    step = peers.training
    for module in (ours, classifying, translation):
        monkeypatch.setattr(module, "training", lambda *given, **_: caught.append(given))
    for contestant in race.contestants:
        if contestant.role != "peak" and not contestant.compiled:
            contestant.build(contestant.precision, tmp_path / "weights.pt")
    monkeypatch.setattr(nn.Module, "to", moved)
    for given in caught:
        model, batches, device = given[0], given[2], given[-2]
        assert device == "cuda"

        def backward(_: Tensor, model: nn.Module = model) -> None:  # torch's own asks for a driver
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter)

        monkeypatch.setattr(Tensor, "backward", backward)
        with Watch() as watch:
            if given[0] is caught[0][0]:
                take, batch = ours.stepper(model.to(device), device, "bf16"), sent(batches[0], device)
                watch.left.clear()
                take(batch)
            else:
                workload = step(*given, units=1, outputs=None)
                watch.left.clear()
                workload.round()
        assert not watch.left
    assert len(caught) > 4
