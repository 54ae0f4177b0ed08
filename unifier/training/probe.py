"""Representations, attention and experts of a trained model, written into the run's folder."""

import io
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unifier.analysis.activations import (
    align_examples,
    collect_attention_statistics,
    iterate_batches,
    representations,
    spread_indices,
)
from unifier.analysis.attention import AlignedSentence, alignment_error_rate, chance_error_rate
from unifier.data.dataset import open_split
from unifier.data.encoding import EncodedSplit
from unifier.data.source import target_of
from unifier.experiment import Task
from unifier.figures.attention_figures import (
    describe_missing_attention,
    draw_attention,
    draw_attention_heads,
    layer_lines,
)
from unifier.figures.reference_figures import draw_reference
from unifier.files import print_status, write_bytes, write_json
from unifier.nn.experts import record_experts
from unifier.report.plot_attention import draw_alignment
from unifier.report.plot_experts import EXPERTS_FILE, unused_experts
from unifier.report.plot_style import figures_folder
from unifier.training.lightning_module import UnifierModule
from unifier.trunks.trunk import AttentiveTrunk, Trunk

REPRESENTATIONS_FILE = "representations.npz"
"""A run's file with the mean output of each layer for validation examples."""

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

    If the trunk has experts, also write experts.json, and print a warning about experts that no token reaches.

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
    experts: dict[str, list[list[int]]] = {}
    for name, split in splits.items():
        task = model.tasks[name]
        rows = spread_indices(len(split), MAX_EXAMPLES)
        with record_experts(trunk) as count_tokens:
            for layer, means in representations(trunk, task, split, rows).items():
                layers[f"{name}/{layer}"] = means.numpy()
            if counts := count_tokens():
                experts[name] = [layer.tolist() for layer in counts]
        sentences = align_examples(trunk, task, split, rows)
        attentive = trunk if isinstance(trunk, AttentiveTrunk) else None
        if attentive is None and not sentences:
            continue
        short = np.flatnonzero(split.lengths()[:, 0] <= max_length).tolist()
        measured = [short[k] for k in spread_indices(len(short), MAX_ATTENTION_EXAMPLES)]
        statistics = collect_attention_statistics(attentive, task, split, measured) if attentive and measured else []
        error_rates = alignment_error_rates(sentences.values())
        attention[name] = {"unit": task.tokenizer.unit, "layers": statistics, **error_rates}
        if attentive and (reference := draw_reference(folder, name, attentive, task, split, rows)):
            attention[name]["reference"] = reference
        for k, row in enumerate(sorted({rows[0], rows[len(rows) // 3]})):
            path = figures_folder(folder) / f"attention-{name}-{k}.svg"
            if sentence := sentences.get(row):
                draw_alignment(path, sentence.source, sentence.target, sentence.attention.numpy(), sentence.gold)
            elif row in short:
                draw_example(path, trunk, task, split, row)
            if k == 0 and row in short:
                heads = _draw_heads(figures_folder(folder) / f"attention-{name}-heads.svg", trunk, task, split, row)
                attention[name] |= {"heads": heads} if heads else {}
    archive = io.BytesIO()
    np.savez(archive, **layers)  # pyright: ignore[reportArgumentType]
    write_bytes(folder / REPRESENTATIONS_FILE, archive.getvalue())
    if attention:
        write_json(folder / "attention.json", attention)
    if experts:
        write_json(folder / EXPERTS_FILE, experts)
        if unused := unused_experts(experts):
            print_status(f"warning: {folder}: no token of the validation split reaches {', '.join(unused)}", sys.stderr)
    model.train(training)


def alignment_error_rates(sentences: Iterable[AlignedSentence]) -> dict[str, float]:
    """Return the alignment error rate and its chance level, or {} if no sentence has a true alignment."""
    aligned = [sentence for sentence in sentences if sentence.gold]
    rates = {"alignment_error_rate": alignment_error_rate, "alignment_error_rate_chance": chance_error_rate}
    return {name: rate(aligned) for name, rate in rates.items()} if aligned else {}


def draw_example(path: Path, trunk: Trunk, task: Task, split: EncodedSplit, row: int) -> None:
    """Draw the attention to a validation example, if the model has attention to the inputs of the task.

    Args:
        path: The path of the figure.
        trunk: The trained trunk.
        task: The task of the example.
        split: The validation split of the task.
        row: The row of the example in the split.
    """
    if describe_missing_attention(trunk, task):
        return
    raw, target = open_split(task.source, "val")[int(split.indices[row])]
    plain = ", ".join(map(str, target)) if isinstance(target, tuple | list) else str(target)
    title = f"label: {task.head.describe_target(target) or plain}"
    ((_, tokens, _),) = iterate_batches(task, split, [row])
    text = target if isinstance(target, str) else ""
    draw_attention(path, trunk, task, raw, split.units(row), tokens, title, text)


def _draw_heads(path: Path, trunk: Trunk, task: Task, split: EncodedSplit, row: int) -> list[dict[str, Any]]:
    """Draw the attention of each layer and head to a validation example, and return the lines between its words.

    Nothing is drawn if the inputs of the task cannot be drawn.
    """
    if describe_missing_attention(trunk, task):
        return []
    target = target_of(open_split(task.source, "val"), int(split.indices[row]))
    ((_, tokens, _),) = iterate_batches(task, split, [row])
    text = target if isinstance(target, str) else ""
    layers = draw_attention_heads(path, trunk, task, split.units(row), tokens, text, lines=False)
    return [asdict(layer) for layer in layer_lines(layers)]
