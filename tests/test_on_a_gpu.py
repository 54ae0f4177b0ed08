"""Networks on a fake GPU, which computes shapes, types and devices without data, so that no GPU is needed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.cases import classification, gpu, ours, peers, translation
from benchmarks.models.sequences import Size
from benchmarks.runner.case import Case
from unifier import IGNORE_INDEX, Experiment, Network, TranslationHead
from unifier.config import build_described, check_settings, load_experiment
from unifier.data.dataloader import Batch, collate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit, encode_split
from unifier.heads.text_generation import TextGenerationHead
from unifier.nn.attention import build_attention_mask
from unifier.nn.precision import LayerNorm
from unifier_tokenizers import PatchTokenizer, Tokens, Units, Vocabulary
from unifier_tokenizers.stems import Stem
from unifier_tokenizers.tokens import is_batch_constant

GPU = torch.device("cuda", 0)
SIDE = 8
"""Side of the embedded digits, in pixels."""


class Fake(FakeTensorMode):
    """Tensors without data; a scalar that is read has a fixed value, and a mask is true in four rows."""

    waits = 0
    """Number of synchronizations: reads of a value on the GPU."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, (Tensor, torch.device))]
        if given and all(isinstance(one, Tensor) and not isinstance(one, FakeTensor) for one in given):
            return func(*args, **(kwargs or {}))  # Real tensors on the CPU are computed.
        if func is torch.ops.aten._local_scalar_dense.default:
            self.waits += args[0].device.type == "cuda"
            return SIDE if args[0].dtype == torch.int64 else False
        if func is torch.ops.aten.nonzero.default:
            self.waits += args[0].device.type == "cuda"
            return args[0].new_zeros(4, args[0].ndim, dtype=torch.int64)
        made = super().dispatch(func, types, args, kwargs)
        arrived = isinstance(made, Tensor) and made.device.type == "cpu"
        self.waits += arrived and any(isinstance(one, Tensor) and one.device.type == "cuda" for one in args)
        return made


def move_to_gpu(module: nn.Module, _: object = GPU) -> nn.Module:
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
        ("pictures.py", {"stem": None, "pooling": "cls", "positions": "rotary", "drop_path": 0.1}),
        ("genres.py", {}),
        ("genres.py", {"tokenizer": "waveform", "pooling": "attention"}),
    ],
    ids=str,
)
def on_a_gpu(request: pytest.FixtureRequest) -> OnAGpu:
    file, settings = request.param
    recipe = load_experiment(f"experiments/{file}")
    experiment = build_described(recipe, check_settings(recipe, settings), Experiment)
    ((name, task),) = experiment.tasks.items()
    split, _ = encode_split(open_split(task.source, "train")[:8], task.tokenizer, task.head)
    batch, network = collate(split, range(8)), Network.from_experiment(experiment)
    with pytest.MonkeyPatch.context() as patch, Fake(allow_non_fake_inputs=True) as fake:
        patch.setattr(Tensor, "pin_memory", lambda part: part)  # Pinning needs a driver.
        move_to_gpu(network)
        return network, name, batch.to(GPU), fake


@pytest.fixture
def with_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)


@pytest.mark.slow
@pytest.mark.usefixtures("with_autocast")
@pytest.mark.parametrize("bf16", [False, True])
def test_loss_stays_on_the_device_in_its_dtype(on_a_gpu: OnAGpu, bf16: bool) -> None:
    network, task, batch, fake = on_a_gpu
    dtypes = set[torch.dtype]()

    def note(part: nn.Module, given: Any, answer: Any) -> None:
        if isinstance(part, LayerNorm):
            dtypes.add(answer.dtype)

    with fake, torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        read = network.forward_features(task, batch)
        with register_module_forward_hook(note):
            loss = network.loss(task, batch)
    assert (read.matrix.device, loss.device, loss.dtype) == (GPU, GPU, torch.float32)
    assert dtypes == {torch.bfloat16 if bf16 else torch.float32}, "tokens between layers are of this type"


@pytest.mark.slow
def test_loss_synchronizes_for_padding_only(on_a_gpu: OnAGpu) -> None:
    network, task, batch, fake = on_a_gpu
    before, parts = fake.waits, network.tasks[task]
    with fake:
        network.loss(task, batch)
    canvas = isinstance(parts.tokenizer, PatchTokenizer) and isinstance(parts.tokenizer.project, Stem)
    # Height and width are two reads.
    assert fake.waits - before == isinstance(parts.head, TextGenerationHead) + 2 * canvas


class MaskReads(TorchDispatchMode):
    """A counter of the operations that read where a mask is true."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = [one for one in tree_leaves(args[1:2]) if isinstance(one, Tensor) and one.dtype == torch.bool]
        self.count += func is torch.ops.aten.nonzero.default or (bool(masks) and "index" in str(func))
        return func(*args, **(kwargs or {}))


def test_padding_of_a_text_is_found_once() -> None:
    head = TranslationHead(Vocabulary.fit(["a"], size=260), 8, depth=1, heads=2, ffn_dim=16)
    columns, mask = torch.randn(2, 8, 3), torch.ones(2, 3, dtype=torch.bool)
    target = torch.tensor([[7, 8, 9], [7, 8, IGNORE_INDEX]])
    with MaskReads() as reads:
        head.loss(Tokens(columns, mask, torch.arange(3).expand(2, 1, 3)), target).backward()
    assert reads.count == 1


@pytest.mark.parametrize(("columns", "same"), [([3, 3], True), ([1, 1], True), ([3], True), ([3, 2], False)])
def test_batch_constants_are_known_on_the_device(
    columns: list[int], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda part: part)
    units = [Units(torch.zeros(2, n), torch.arange(n)[None]) for n in columns]
    batch = collate(EncodedSplit(units, [torch.tensor(0)] * len(units), range(len(units))), range(len(units)))
    here = batch.to(torch.device("cpu"))
    assert all(torch.equal(*parts) for parts in zip(here, batch, strict=True))
    with Fake(allow_non_fake_inputs=True) as fake:
        there = batch.to(GPU)
        assert (build_attention_mask(there.mask, "bidirectional") is None) == is_batch_constant(there.positions) == same
    for sent, part in zip(there, batch, strict=True):
        assert (sent.device, sent.shape, sent.dtype) == (GPU, part.shape, part.dtype)
    assert fake.waits == 0


@pytest.mark.parametrize(("device", "waits"), [("mps", True), ("cpu", True), ("cuda", False)])
def test_transfer_waits_unless_memory_is_pinned(device: str, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, non_blocking_calls = list[Tensor](), list[bool]()
    send = Tensor.to

    def send_to_cpu(part: Tensor, *given: Any, non_blocking: bool = False) -> Tensor:
        non_blocking_calls.append(non_blocking)
        return send(part, torch.device("cpu"))

    monkeypatch.setattr(Tensor, "pin_memory", lambda part: pinned.append(part) or part)
    monkeypatch.setattr(Tensor, "to", send_to_cpu)
    batch = Batch(*(torch.zeros(2, 1, 1) for _ in Batch._fields))
    batch.to(torch.device(device))
    assert non_blocking_calls == [not waits] * 5
    assert len(pinned) == (0 if waits else 5)


def test_tensor_left_on_the_cpu_is_found() -> None:
    with Fake(), pytest.raises(RuntimeError, match="devices"):
        torch.add(torch.empty(3, device=GPU), torch.empty(3))


class Watch(Fake):
    """A fake GPU that records the operations whose result is on the CPU."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.left: list[str] = []

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().dispatch(func, types, args, kwargs)
        if any(isinstance(one, Tensor) and one.device.type == "cpu" for one in tree_leaves(made)):
            self.left.append(str(func))
        return made


PICTURES = replace(gpu.VIT_S16, height=16, width=16, patch=(4, 4), dim=16, depth=2, heads=2, ffn_dim=32, steps=1)
PAIRS = gpu.NEWS._replace(pairs=40, max_tokens=200, steps=1, peer_batch=4)
RACES = [
    gpu.vit_s16_case(replace(PICTURES, classes=5, batch=2)),
    gpu.translation_base_case(Size(vocabulary=300, dim=16, depth=2, heads=2, ffn_dim=32), PAIRS),
]


@pytest.mark.slow
@pytest.mark.usefixtures("with_autocast")
@pytest.mark.filterwarnings("ignore")  # Peers warn.
@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
def test_step_of_a_race_stays_on_the_gpu(race: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[tuple[Any, ...]] = []
    step = peers.peer_training
    for module, name in ((ours, "our_training"), (classification, "peer_training"), (translation, "peer_training")):
        monkeypatch.setattr(module, name, lambda *given, **_: caught.append(given))
    for variant in race.variants:
        if variant.role != "peak" and not variant.compiled:
            variant.build(variant.precision, tmp_path / "weights.pt")
    monkeypatch.setattr(nn.Module, "to", move_to_gpu)
    monkeypatch.setattr(Tensor, "pin_memory", lambda part: part)
    for given in caught:
        model, batches, device = given[0], given[2], given[-2]
        assert device == "cuda"

        def backward(_: Tensor, model: nn.Module = model) -> None:  # torch needs a driver.
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter)

        monkeypatch.setattr(Tensor, "backward", backward)
        with Watch() as watch:
            if given[0] is caught[0][0]:
                take, batch = ours.create_step(model.to(device), device, "bf16"), batches[0].to(GPU)
                watch.left.clear()
                take(batch)
            else:
                workload = step(*given, units=1, outputs=None)
                watch.left.clear()
                workload.round()
        assert not watch.left
    assert len(caught) > 4
