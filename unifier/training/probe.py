"""A run's representations and attention, written to its folder."""

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
from unifier.network import Network
from unifier.report.plot_attention import draw_alignment, draw_over_picture, draw_over_sound
from unifier.trunks.trunk import AttentiveTrunk
from unifier_tokenizers import NO_POSITION, FrameTokenizer, PatchTokenizer
from unifier_tokenizers.image import to_array

MAX_EXAMPLES = 256
"""The most validation examples whose representations are kept: to compare trunks takes time by their square."""


NUM_DRAWN = 32
"""The most whose attention is measured, which takes time by the square of N."""


MAX_LENGTH = 4096
"""The most columns of those, since it takes memory by the square of N too: 0.3 GB a layer of 4 heads."""


@torch.no_grad()
def probe(model: Network, splits: Mapping[str, EncodedSplit], folder: Path) -> None:
    """Write representations.npz and, of a trunk or a head that shows it, attention.json and figures/attention-*.svg.

    `splits` are the tasks' validation splits. A model is read in float32 and evaluation mode, and left as it was.
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
        short = np.flatnonzero(split.lengths()[:, 0] <= MAX_LENGTH).tolist()
        looked_at = [short[k] for k in spread_indices(len(short), NUM_DRAWN)]
        found = collect_attention_statistics(attentive, task, split, looked_at) if attentive and looked_at else []
        attention[name] = {"unit": task.tokenizer.unit, "layers": found, **alignment_error_rates(sentences.values())}
        for k, row in enumerate(sorted({rows[0], rows[len(rows) // 3]})):
            path = folder / "figures" / f"attention-{name}-{k}.svg"
            if sentence := sentences.get(row):
                source, target, attended, gold = sentence
                draw_alignment(path, source, target, attended.numpy(), gold)
            elif attentive and found and row in short:
                draw_attention(path, attentive, task, split, row)
    packed = io.BytesIO()
    np.savez(packed, **layers)  # pyright: ignore[reportArgumentType]
    write_bytes(folder / "representations.npz", packed.getvalue())
    if attention:
        write_json(folder / "attention.json", attention)
    model.train(training)


def alignment_error_rates(sentences: Iterable[AlignedSentence]) -> dict[str, float]:
    """The alignment error rate and its chance, where the true alignment of some sentences is known."""
    known = [one for one in sentences if one.gold]
    named = {"alignment_error_rate": alignment_error_rate, "alignment_error_rate_chance": chance_error_rate}
    return {name: rate(known) for name, rate in named.items()} if known else {}


def draw_attention(path: Path, trunk: AttentiveTrunk, task: Task, split: EncodedSplit, row: int) -> None:
    """Draw what attention the parts of one validation picture or sound receive in the last layer."""
    tokenizer = task.tokenizer
    if not isinstance(tokenizer, PatchTokenizer | FrameTokenizer):
        return
    units, (raw, target) = split.units(row), open_split(task.source, "val")[int(split.indices[row])]
    said = f"label: {', '.join(map(str, target)) if isinstance(target, tuple | list) else target}"
    weights = last_attention(trunk, task, split, row)
    asking = torch.arange(weights.shape[-1]) < (1 if task.head.trunk_output == "cls" else weights.shape[-1])
    placed = units.positions[0] != NO_POSITION
    share, middles = attention_received(weights, asking)[placed], tokenizer.position_values(units)[:, placed]
    if isinstance(tokenizer, PatchTokenizer):
        rows, columns = (len(side.unique()) for side in middles)
        (top, bottom), (left, right) = ((float(side.min()), float(side.max())) for side in middles)
        reach = tokenizer.stride / 2
        box = (left - reach, right + reach, bottom + reach, top - reach)
        draw_over_picture(path, to_array(raw, tokenizer.channels), share.view(rows, columns).numpy(), box, said)
    else:
        times, place = middles[0].unique(return_inverse=True)  # patches of several bands stand at one time
        mean = torch.zeros(len(times)).scatter_reduce(0, place, share, "mean", include_self=False)
        spectrogram = tokenizer.spectrogram(raw)
        start, end = tokenizer.time(torch.tensor([-0.5, spectrogram.shape[1] - 0.5])).tolist()
        draw_over_sound(path, spectrogram.numpy(), (start, end), times.numpy(), mean.numpy(), said)
