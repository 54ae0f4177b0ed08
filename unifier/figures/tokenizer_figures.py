"""Figures of what each tokenizer of a run has learned, written into the run's folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from unifier.experiment import Task
from unifier.report.plot_style import figures_folder
from unifier.report.plot_tokenizers import draw_responses, draw_tiles
from unifier_tokenizers import FrameTokenizer, Mixture, PatchTokenizer, Tokenizer, WaveformTokenizer
from unifier_tokenizers.stems import LinearProjection, Stem


@torch.no_grad()
def draw_tokenizers(tasks: Mapping[str, Task], folder: Path) -> None:
    """Write figures/tokenizer-TASK-K.svg for each tokenizer with patches or learned filters.

    Args:
        tasks: A mapping from task name to task.
        folder: The run's folder.
    """
    for name, task in tasks.items():
        for number, (member, tokenizer) in enumerate(_members("", task.tokenizer)):
            path = folder / "figures" / f"tokenizer-{name}-{number}.svg"
            if isinstance(tokenizer, WaveformTokenizer):
                figures_folder(folder)
                cosine, sine = tokenizer.bank.chunk(2, dim=1)
                filters = cosine.numpy(force=True), sine.numpy(force=True)
                draw_responses(path, *filters, tokenizer.sample_rate, f"Learned filters{member}")
            elif (weights := projection_tiles(tokenizer)) is not None:
                figures_folder(folder)
                kind = "Patches of the spectrogram" if isinstance(tokenizer, FrameTokenizer) else "Patches"
                draw_tiles(path, weights.numpy(force=True), f"{kind}{member}")


def projection_tiles(tokenizer: Tokenizer) -> torch.Tensor | None:
    """Return the weights (D, C, height, width) that map a patch to a token, or None for other tokenizers.

    For a convolutional stem, the first convolution is returned. The low bands of a spectrogram are at the bottom.
    """
    if isinstance(tokenizer, PatchTokenizer):
        if isinstance(tokenizer.project, Stem):
            convolution = next(module for module in tokenizer.project.modules() if isinstance(module, torch.nn.Conv2d))
            return convolution.weight
        weights = tokenizer.project.out.weight
        return weights.unflatten(1, (tokenizer.channels, tokenizer.patch, tokenizer.patch))
    if isinstance(tokenizer, FrameTokenizer) and isinstance(tokenizer.project, LinearProjection):
        frames, bands = tokenizer.tiles.patch
        return tokenizer.project.out.weight.unflatten(1, (1, frames, bands)).mT.flip(2)
    return None


def _members(name: str, tokenizer: Tokenizer) -> Iterator[tuple[str, Tokenizer]]:
    """Yield a tokenizer, or the members of a mixture with their names."""
    if not isinstance(tokenizer, Mixture):
        yield name, tokenizer
        return
    for member, part in tokenizer.members.items():
        yield from _members(f" of {member}", part)
