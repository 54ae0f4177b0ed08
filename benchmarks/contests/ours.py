"""Ours: how a model of this project is put together, stepped and read here.

What the inside of `unifier` asks of one who trains without Lightning, as the peers do here, stands in `stepper`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.models.encoders import Shape
from benchmarks.racing.contest import CLIP, LEARNING_RATE, SEED, Workload, autocast
from benchmarks.racing.device import Device
from unifier.data.dataloader import Batch, collate
from unifier.data.encoding import EncodedSplit
from unifier.data.source import Example, SplitName
from unifier.experiment import Experiment, Precision, Task, Training
from unifier.heads.classification import ClassificationHead
from unifier.heads.head import Head
from unifier.heads.text_generation import shift_right
from unifier.heads.transformer_decoder import TranslationHead
from unifier.network import Network
from unifier.training.cost import flops_of_example
from unifier.training.memory import configure_allocator
from unifier.training.optimizers import create_optimizer, create_schedule
from unifier.trunks.transformer import Transformer
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import Tokenizer, Units

ARM = "task"


@final
class Ready:
    """A source of nothing: what is trained on here is encoded already."""

    name = "ready"

    def split(self, name: SplitName) -> Sequence[Example]:
        return []


def assemble(trunk: Trunk, tokenizer: Tokenizer, head: Head) -> Network:
    """The network of one task."""
    configure_allocator()
    return Network(Experiment(trunk, {ARM: Task(Ready(), tokenizer, head)}, Training(steps=1), name="benchmark"))


def stepper(
    model: Network, device: Device, precision: Precision, *, steps: int = 1, compiled: bool = False
) -> Callable[[Batch], Tensor]:
    """How ours, which lies on the device, takes one training step; returns the loss.

    The learning rate rises over the first tenth of `steps`. What is compiled is what `Unifier` compiles.
    """
    settings = Training(steps=steps, learning_rate=LEARNING_RATE, schedule="constant")
    optimizer = create_optimizer(settings, model, model.trunk)
    schedule = create_schedule(settings, optimizer, lambda: steps)
    model.train()
    loss_of = torch.compile(model.loss) if compiled else model.loss

    def step(batch: Batch) -> Tensor:
        with autocast(device, precision):
            loss = loss_of(ARM, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        return loss.detach()

    return step


def training(
    model: Network,
    split: EncodedSplit,
    batches: Sequence[Batch],
    device: Device,
    precision: Precision,
    *,
    compiled: bool,
    units: float,
    outputs: Tensor,
) -> Workload:
    """A round of training steps on a device, one for each of the split's batches."""
    cost = flops_of_example(lambda batch: model.loss(ARM, batch), split)
    model.zero_grad()
    step = stepper(model.to(device), device, precision, compiled=compiled)
    ready = [batch.to(torch.device(device)) for batch in batches]

    def work() -> None:
        for batch in ready:
            step(batch)

    flops = sum(float(cost(*batch.lengths()).sum()) for batch in batches)
    return Workload(work, units, outputs, flops)


def stir(model: nn.Module, *, all_biases: bool = True) -> None:
    """Move biases and norms off the 0 and 1 they start at, so that no peer agrees by having left one out.

    `all_biases` False leaves those of attention and norms at 0, since x-transformers has none there.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            bare = name.endswith("bias") and ("norm" in name or "attention" in name)
            if parameter.ndim == 1 and (all_biases or not bare):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def save(model: nn.Module, weights: Path) -> None:
    """Write our weights where the peers read them."""
    torch.save(model.state_dict(), weights)


def classifier(
    tokenizer: Tokenizer,
    units: Sequence[Units],
    labels: Sequence[Tensor],
    shape: Shape,
    precision: Precision,
    weights: Path,
    *,
    compiled: bool = False,
    all_biases: bool = True,
) -> Workload:
    """Training steps of a classifier of the units, `shape.batch` of them at a time."""
    trunk = Transformer(shape.dim, shape.depth, shape.heads, shape.hidden)
    pooling = "cls" if shape.class_token else "mean"
    head = ClassificationHead([str(label) for label in range(shape.classes)], shape.dim, pooling=pooling)
    model = assemble(trunk, tokenizer, head)
    stir(model, all_biases=all_biases)
    save(model, weights)
    split = EncodedSplit(units, labels, range(len(units)))
    batches = [collate(split, range(i, i + shape.batch)) for i in range(0, len(units), shape.batch)]
    with torch.no_grad():
        outputs = head.logits(model.eval().forward_features(ARM, batches[0]))
    return training(
        model, split, batches, shape.device, precision, compiled=compiled, units=len(units), outputs=outputs
    )


def translation_logits(model: Network, batch: Batch) -> Tensor:
    """What each token of the target was thought to be (B, L, V), in evaluation."""
    head = model.tasks[ARM].head
    assert isinstance(head, TranslationHead)
    with torch.no_grad():
        return head.logits(model.eval().forward_features(ARM, batch), shift_right(batch.target))


def decode(model: Network, batches: Sequence[Batch], width: int) -> dict[int, list[int]]:
    """The best text's ids, end mark left off, by the places of the batches' examples."""
    head = model.tasks[ARM].head
    assert isinstance(head, TranslationHead)
    found: dict[int, list[int]] = {}
    with torch.inference_mode():
        for batch in batches:
            best = [texts[0].ids for texts in head.search(model.eval().forward_features(ARM, batch), width)]
            found |= zip(batch.example_indices.tolist(), best, strict=True)
    return found
