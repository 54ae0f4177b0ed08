"""Figures of the reconstructions of a trained masked autoencoder, written into the run's folder."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unifier.analysis.activations import spread_indices
from unifier.data.dataloader import Batch, apply_objective, collate
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Task
from unifier.heads.masked_reconstruction import MaskedReconstructionHead, split_target
from unifier.objectives.masked_patches import MaskedPatches
from unifier.report.plot_reconstruction import Reconstruction, draw_reconstructed_images, draw_reconstructed_sounds
from unifier.report.plot_series import SeriesPanel, draw_series
from unifier.report.plot_style import figures_folder
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.trunk import Trunk
from unifier_tokenizers import NO_POSITION, FrameTokenizer, PatchTokenizer, SeriesTokenizer, Tokenizer

NUM_IMAGES, NUM_SOUNDS, NUM_SERIES = 8, 2, 6
"""Number of validation examples in a figure."""


@torch.no_grad()
def draw_reconstructions(model: UnifierModule, splits: Mapping[str, EncodedSplit], folder: Path) -> None:
    """Write the figure reconstruction-TASK.svg for each task with a `MaskedReconstructionHead`.

    The hidden patches of an example are equal to the hidden patches in validation.

    Args:
        model: The trained model.
        splits: The validation split of each task.
        folder: The run's folder.
    """
    training = model.training
    model.eval()
    for name, split in splits.items():
        task = model.tasks[name]
        if not isinstance(task.head, MaskedReconstructionHead):
            continue
        tokenizer, path = task.tokenizer, figures_folder(folder) / f"reconstruction-{name}.svg"
        if isinstance(tokenizer, PatchTokenizer):
            rows = spread_indices(len(split), NUM_IMAGES)
            draw_reconstructed_images(path, [_reconstruct(model.trunk, task, split, row) for row in rows])
        elif isinstance(tokenizer, FrameTokenizer):
            rows = spread_indices(len(split), NUM_SOUNDS)
            sounds = [_reconstruct(model.trunk, task, split, row) for row in rows]
            draw_reconstructed_sounds(path, sounds, tokenizer.frame_step)
        elif isinstance(tokenizer, SeriesTokenizer):
            rows = spread_indices(len(split), NUM_SERIES)
            series = [_reconstruct(model.trunk, task, split, row) for row in rows]
            draw_series(path, [_panel(each, number) for number, each in enumerate(series)])
    model.train(training)


def _reconstruct(trunk: Trunk, task: Task, split: EncodedSplit, row: int) -> Reconstruction:
    """Reconstruct one example of a split."""
    head, objective, batch = task.head, task.objective, collate(split, [row])
    assert isinstance(head, MaskedReconstructionHead)
    assert isinstance(objective, MaskedPatches)
    visible = apply_objective(objective, batch).to(head.mask_token.device)
    tokens = head.run_trunk(trunk, visible.embed(task.tokenizer))
    predicted, (sums,) = head.reconstruct(tokens, visible.target).cpu(), head.evaluate(tokens, visible.target)
    hidden = split_target(visible.target.cpu(), batch.positions.shape[1])[1]
    # A class token has no position, as padding has none. One example has no padding.
    is_hidden = (batch.positions[0, :, :, None] == hidden[0, :, None]).all(0).any(1)
    values = batch.values[:, : objective.num_values].float()
    shown, reconstructed = values.clone(), values.clone()
    shown[..., is_hidden], reconstructed[..., is_hidden] = torch.nan, predicted
    planes = (_plane(task.tokenizer, batch, each).numpy() for each in (values, shown, reconstructed))
    return Reconstruction(*planes, r2=head.metrics([sums], [None])["r2"])


def _plane(tokenizer: Tokenizer, batch: Batch, values: Tensor) -> Tensor:
    """Join values (1, P, N) to pixels (height, width, C), a spectrogram (bands, frames) or channels (C, steps)."""
    if isinstance(tokenizer, PatchTokenizer):
        return tokenizer.to_images(values, batch.positions).pixels[0].permute(1, 2, 0)
    if isinstance(tokenizer, SeriesTokenizer):
        return values[0].T.reshape(-1, tokenizer.num_patches * tokenizer.patch)[:, : tokenizer.context]
    assert isinstance(tokenizer, FrameTokenizer)
    located = batch.positions[0, 0, batch.positions[0, 0] != NO_POSITION]
    return tokenizer.tiles.join(values, located.amax(0, keepdim=True) + 1)[0].T


def _panel(series: Reconstruction, number: int) -> SeriesPanel:
    """Return one channel of a series, which `number` chooses."""
    true, seen, reconstructed = (channels[number % len(channels)] for channels in series[:3])
    predicted = np.where(np.isnan(seen), reconstructed, np.nan)
    return SeriesPanel(f"R2 {series.r2:.0f} %", true, seen, predicted)
