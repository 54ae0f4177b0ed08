"""Variants of unifier: build a network, train it and translate with it.

Peers train without Lightning, and so does unifier here. `create_step` holds the parts of unifier that this needs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from benchmarks.models.encoders import Shape
from benchmarks.runner.case import GRAD_CLIP, LEARNING_RATE, SEED, Workload, autocast
from benchmarks.runner.device import Device
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

TASK = "task"


@final
class EmptySource:
    """A source without examples, because the cases encode their data themselves."""

    name = "empty"

    def split(self, name: SplitName) -> Sequence[Example]:
        """Return no examples."""
        return []


def create_network(trunk: Trunk, tokenizer: Tokenizer, head: Head) -> Network:
    """Create the network of one task, with our allocator setting."""
    configure_allocator()
    task = Task(EmptySource(), tokenizer, head)
    return Network(Experiment(trunk, {TASK: task}, Training(steps=1), name="benchmark"))


def create_step(
    model: Network, device: Device, precision: Precision, *, steps: int = 1, compiled: bool = False
) -> Callable[[Batch], Tensor]:
    """Create the function that takes one training step of our network and returns the loss.

    Args:
        model: Our network, on the device.
        device: Device of the model and the batches.
        precision: Precision of the forward pass.
        steps: Number of steps; the learning rate rises over the first tenth of them.
        compiled: Compile everything from the batch to the loss, as `Training(compile="default")` does.
    """
    settings = Training(steps=steps, learning_rate=LEARNING_RATE, schedule="constant")
    optimizer = create_optimizer(settings, model, model.trunk)
    schedule = create_schedule(settings, optimizer, lambda: steps)
    model.train()
    compute_loss = torch.compile(model.loss) if compiled else model.loss

    def step(batch: Batch) -> Tensor:
        with autocast(device, precision):
            loss = compute_loss(TASK, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        return loss.detach()

    return step


def our_training(
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
    """Return a workload of one training step for each batch.

    Args:
        model: Our network.
        split: The split of the batches, from which FLOPs are estimated.
        batches: The batches of a round.
        device: Device of the model and the batches.
        precision: Precision of the forward pass.
        compiled: Compile everything from the batch to the loss.
        units: Amount of work in a round, in the unit of the case.
        outputs: Outputs to compare with those of the peers.
    """
    cost = flops_of_example(lambda batch: model.loss(TASK, batch), split)
    model.zero_grad()
    step = create_step(model.to(device), device, precision, compiled=compiled)
    moved_batches = [batch.to(torch.device(device)) for batch in batches]

    def run_round() -> None:
        for batch in moved_batches:
            step(batch)

    flops = sum(float(cost(*batch.lengths()).sum()) for batch in batches)
    return Workload(run_round, units, outputs, flops)


def perturb_vectors(model: nn.Module, *, all_biases: bool = True) -> None:
    """Add noise to biases and norms, which start at 0 and 1, so that a peer that omits one gives other outputs.

    Args:
        model: The model to change in place.
        all_biases: If False, keep the biases of attention and norms at 0, because x-transformers has none.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            missing_in_peer = name.endswith("bias") and ("norm" in name or "attention" in name)
            if parameter.ndim == 1 and (all_biases or not missing_in_peer):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def save_weights(model: nn.Module, weights: Path) -> None:
    """Save our weights in the file that the peers read."""
    torch.save(model.state_dict(), weights)


def build_our_classifier(
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
    """Build training steps of our classifier and save its weights.

    Args:
        tokenizer: Tokenizer that embeds the units.
        units: Encoded inputs.
        labels: Class index of each input.
        shape: Sizes of model and batches.
        precision: Precision of the forward pass.
        weights: File to write our weights to.
        compiled: Compile everything from the batch to the loss.
        all_biases: See `perturb_vectors`.
    """
    trunk = Transformer(shape.dim, shape.depth, shape.heads, shape.ffn_dim)
    pooling = "cls" if shape.class_token else "mean"
    head = ClassificationHead([str(label) for label in range(shape.classes)], shape.dim, pooling=pooling)
    model = create_network(trunk, tokenizer, head)
    perturb_vectors(model, all_biases=all_biases)
    save_weights(model, weights)
    split = EncodedSplit(units, labels, range(len(units)))
    batches = [collate(split, range(i, i + shape.batch)) for i in range(0, len(units), shape.batch)]
    with torch.no_grad():
        outputs = head.logits(model.eval().forward_features(TASK, batches[0]))
    return our_training(
        model, split, batches, shape.device, precision, compiled=compiled, units=len(units), outputs=outputs
    )


def target_logits(model: Network, batch: Batch) -> Tensor:
    """Compute the logits (B, L, V) of the targets in evaluation mode."""
    with torch.no_grad():
        features = model.eval().forward_features(TASK, batch)
        return _translation_head(model).logits(features, shift_right(batch.target))


def translate_batches(model: Network, batches: Sequence[Batch], beam_width: int) -> dict[int, list[int]]:
    """Return the token ids of each example's best translation, without the end token, by example index."""
    head = _translation_head(model)
    translations: dict[int, list[int]] = {}
    with torch.inference_mode():
        for batch in batches:
            hypotheses = head.search(model.eval().forward_features(TASK, batch), beam_width)
            best = [ranked[0].ids for ranked in hypotheses]
            translations |= zip(batch.example_indices.tolist(), best, strict=True)
    return translations


def _translation_head(model: Network) -> TranslationHead:
    head = model.tasks[TASK].head
    assert isinstance(head, TranslationHead)
    return head
