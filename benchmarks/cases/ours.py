"""Variants of unifier: training and translation with our network.

The benchmarks train all models without Lightning. `create_step` combines our loss, optimizer and schedule.
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
from unifier.experiment import Precision, Task, Training
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
    """A data source without examples. The benchmark cases encode their own data."""

    name = "empty"

    def split(self, name: SplitName) -> Sequence[Example]:
        """Return an empty list."""
        return []


def create_network(trunk: Trunk, tokenizer: Tokenizer, head: Head) -> Network:
    """Configure the memory allocator and create a network for one task."""
    configure_allocator()
    task = Task(EmptySource(), tokenizer, head)
    return Network(trunk, {TASK: task})


def create_step(
    model: Network, device: Device, precision: Precision, *, steps: int = 1, compiled: bool = False
) -> Callable[[Batch], Tensor]:
    """Create a function that performs one training step of our network and returns the loss.

    Args:
        model: Our network, on the device.
        device: Device of the model and the batches.
        precision: Precision of the forward pass.
        steps: Number of training steps. The learning rate increases during the first 10 % of the steps.
        compiled: If True, compile the loss function, like `Training(compile="default")`.
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
    """Create a workload that performs one training step per batch.

    Args:
        model: Our network.
        split: Encoded examples from which the FLOPs of each batch are estimated.
        batches: The batches of a round.
        device: Device of the model and the batches.
        precision: Precision of the forward pass.
        compiled: If True, compile the loss function.
        units: Number of pictures or tokens per round.
        outputs: Outputs of our model, for comparison with the outputs of each peer.
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
    """Add noise to all biases and norm weights, which are initially 0 and 1.

    Without noise, the comparison of outputs could not detect a missing bias or norm in a peer.

    Args:
        model: The model to change in place.
        all_biases: If False, keep the biases of attention and norms at 0, for peers without these biases.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            missing_in_peer = name.endswith("bias") and ("norm" in name or "attention" in name)
            if parameter.ndim == 1 and (all_biases or not missing_in_peer):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def save_weights(model: nn.Module, weights: Path) -> None:
    """Save the weights of our model in the file that the peers load."""
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
    """Build the training of our classifier and save its initial weights.

    Args:
        tokenizer: Tokenizer that embeds the units.
        units: Encoded inputs.
        labels: Class index of each input.
        shape: Sizes of model and batches.
        precision: Precision of the forward pass.
        weights: Path of the file for our weights.
        compiled: If True, compile the loss function.
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
    """Compute the logits (B, L, V) of the target tokens in evaluation mode."""
    with torch.no_grad():
        features = model.eval().forward_features(TASK, batch)
        return _translation_head(model).logits(features, shift_right(batch.target))


def translate_batches(model: Network, batches: Sequence[Batch], beam_width: int) -> dict[int, list[int]]:
    """Translate all batches by beam search.

    Returns:
        Mapping from example index to the token ids of the best translation, without the end token.
    """
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
