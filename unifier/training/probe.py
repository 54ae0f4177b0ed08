"""Representations and attention of a trained model, written into the run's folder."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unifier.analysis.activations import (
    align_examples,
    collect_attention_statistics,
    last_attention,
    representations,
    spread_indices,
)
from unifier.analysis.attention import AlignedSentence, alignment_error_rate, attention_received, chance_error_rate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.experiment import Task
from unifier.files import write_bytes, write_json
from unifier.report.plot_attention import draw_alignment, draw_over_audio, draw_over_image
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.trunk import AttentiveTrunk
from unifier_tokenizers import NO_POSITION, FrameTokenizer, PatchTokenizer
from unifier_tokenizers.image import to_array

MAX_EXAMPLES = 256
"""Maximum number of validation examples with representations. The time to compare trunks is quadratic."""

MAX_ATTENTION_EXAMPLES = 32
"""Maximum number of validation examples for attention statistics."""

MAX_LENGTH = 4096
"""Maximum number of tokens of an example for attention statistics. The attention of 4 heads takes up to 0.3 GB."""


@torch.no_grad()
def probe(
    model: UnifierModule, splits: Mapping[str, EncodedSplit], folder: Path, *, max_length: int = MAX_LENGTH
) -> None:
    """Write representations.npz. If the trunk or a head has attention, also write attention.json and figures.

    The model computes in float32 and in evaluation mode. The previous mode is restored at the end.

    Args:
        model: The trained model.
        splits: The validation split of each task.
        folder: The run's folder.
        max_length: Maximum number of tokens of an example for attention statistics.
    """
    training = model.training
    model.eval()
    trunk = model.trunk
    layers: dict[str, NDArray[np.float32]] = {}
    attention: dict[str, dict[str, Any]] = {}
    for name, split in splits.items():
        task = model.tasks[name]
        rows = spread_indices(len(split), MAX_EXAMPLES)
        for layer, means in representations(trunk, task, split, rows).items():
            layers[f"{name}/{layer}"] = means.numpy()
        sentences = align_examples(trunk, task, split, rows)
        attentive = trunk if isinstance(trunk, AttentiveTrunk) else None
        if attentive is None and not sentences:
            continue
        short = np.flatnonzero(split.lengths()[:, 0] <= max_length).tolist()
        measured = [short[k] for k in spread_indices(len(short), MAX_ATTENTION_EXAMPLES)]
        statistics = collect_attention_statistics(attentive, task, split, measured) if attentive and measured else []
        error_rates = alignment_error_rates(sentences.values())
        attention[name] = {"unit": task.tokenizer.unit, "layers": statistics, **error_rates}
        for k, row in enumerate(sorted({rows[0], rows[len(rows) // 3]})):
            path = folder / "figures" / f"attention-{name}-{k}.svg"
            if sentence := sentences.get(row):
                draw_alignment(path, sentence.source, sentence.target, sentence.attention.numpy(), sentence.gold)
            elif attentive and statistics and row in short:
                draw_attention(path, attentive, task, split, row)
    archive = io.BytesIO()
    np.savez(archive, **layers)  # pyright: ignore[reportArgumentType]
    write_bytes(folder / "representations.npz", archive.getvalue())
    if attention:
        write_json(folder / "attention.json", attention)
    model.train(training)


def alignment_error_rates(sentences: Iterable[AlignedSentence]) -> dict[str, float]:
    """Return the alignment error rate and its chance level, or {} if no sentence has a true alignment."""
    aligned = [sentence for sentence in sentences if sentence.gold]
    rates = {"alignment_error_rate": alignment_error_rate, "alignment_error_rate_chance": chance_error_rate}
    return {name: rate(aligned) for name, rate in rates.items()} if aligned else {}


def draw_attention(path: Path, trunk: AttentiveTrunk, task: Task, split: EncodedSplit, row: int) -> None:
    """Draw the attention that each token of a validation picture or sound receives in the last layer.

    Args:
        path: The path of the figure.
        trunk: The trunk whose attention is drawn.
        task: The task. A figure is drawn only if the inputs of the task are pictures or sounds.
        split: The validation split of the task.
        row: The row of the example in the split.
    """
    tokenizer = task.tokenizer
    if not isinstance(tokenizer, PatchTokenizer | FrameTokenizer):
        return
    units, (raw, target) = split.units(row), open_split(task.source, "val")[int(split.indices[row])]
    title = f"label: {', '.join(map(str, target)) if isinstance(target, tuple | list) else target}"
    weights = last_attention(trunk, task, split, row)
    querying = torch.arange(weights.shape[-1]) < (1 if task.head.trunk_output == "cls" else weights.shape[-1])
    located = units.positions[0] != NO_POSITION
    received = attention_received(weights, querying)[located]
    centers = tokenizer.position_values(units)[:, located]
    if isinstance(tokenizer, PatchTokenizer):
        height, width = (len(side.unique()) for side in centers)
        (top, bottom), (left, right) = ((float(side.min()), float(side.max())) for side in centers)
        margin = tokenizer.stride / 2
        box = (left - margin, right + margin, bottom + margin, top - margin)
        image = to_array(raw, tokenizer.channels)
        draw_over_image(path, image, received.view(height, width).numpy(), box, title)
    else:
        times, frame = centers[0].unique(return_inverse=True)  # Several patches can have the same time.
        mean = torch.zeros(len(times)).scatter_reduce(0, frame, received, "mean", include_self=False)
        spectrogram = tokenizer.spectrogram(raw)
        start, end = tokenizer.frame_times(torch.tensor([-0.5, spectrogram.shape[1] - 0.5])).tolist()
        draw_over_audio(path, spectrogram.numpy(), (start, end), times.numpy(), mean.numpy(), title)
