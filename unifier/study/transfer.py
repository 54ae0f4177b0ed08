"""Transfer: which trunk an experiment starts from, and which part of it is trained."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from unifier.study.experiment import Experiment
from unifier.study.freezing import PARTS, parts_of
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import InputError

Tuned = Literal["none", "norms", "all"]
"""What of a trunk is trained: nothing; its norms, with the positions and the rest of the tokenizer (Lu et al. 2021,
section 2); everything."""


def tune(experiment: Experiment, tuned: Tuned) -> Experiment:
    """The experiment, with the rest of its trunk frozen."""
    trained = {"none": (), "norms": ("norms",), "all": PARTS}[tuned]
    parts = parts_of(experiment.trunk)
    if tuned == "norms" and not parts["norms"]:
        raise InputError(f'tuned="norms": the trunk of "{experiment.name}" has no norms that learn: leave it out')
    frozen = tuple(part for part, parameters in parts.items() if parameters and part not in trained)
    training = experiment.training
    return replace(experiment, training=replace(training, frozen=tuple({*training.frozen, *frozen})))


def load_weights(trunk: Trunk, weights: Mapping[str, Tensor], *, start: str) -> None:
    """Give a trunk the weights of the experiment `start`'s; raises InputError where they are of another shape."""
    own = {name: tensor.shape for name, tensor in trunk.state_dict().items()}
    if own != {name: tensor.shape for name, tensor in weights.items()}:
        raise InputError(f"the trunk of {start} has another shape than this one: give the comparison one dim and depth")
    trunk.load_state_dict(weights)


def shuffle(trunk: Trunk, seed: int) -> None:
    """Permute the entries within each tensor: this keeps the distribution of values and destroys what was learned.

    A norm's running means and variances are permuted too.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in (*trunk.parameters(), *(buffer for buffer in trunk.buffers() if buffer.is_floating_point())):
            order = torch.randperm(weights.numel(), generator=generator)
            weights.copy_(weights.flatten()[order].view_as(weights))
