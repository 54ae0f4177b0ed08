"""MaskedPatches hides an exact share, never class tokens, and no hidden value reaches a visible token."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unifier.data.dataloader import Batch, Objective, TrainDataLoader, apply_objective
from unifier.data.encoding import EncodedSplit
from unifier.heads.masked_reconstruction import split_target
from unifier.objectives.masked_patches import MaskedPatches
from unifier_tokenizers import (
    NO_POSITION,
    Audio,
    FrameTokenizer,
    InputError,
    PatchTokenizer,
    SeriesTokenizer,
    Tokenizer,
    Units,
    WaveformTokenizer,
    pad_columns,
)

D = 8
PICTURES = [np.random.default_rng(k).integers(0, 256, (8 * (k + 1), 16, 3), np.uint8) for k in range(3)]
SOUNDS = [Audio(torch.randn(4000 * (k + 1)) / 9, 16_000) for k in range(3)]
WINDOWS = [np.random.default_rng(k).normal(k, 3, (1 + k % 2, 18)) for k in range(3)]
CASES: dict[str, tuple[Tokenizer, list[Any]]] = {
    "patches": (PatchTokenizer(D), PICTURES),
    "class token": (PatchTokenizer(D, class_token=True), PICTURES),
    "stem": (PatchTokenizer(D, stem="pooled"), PICTURES),
    "frames": (FrameTokenizer(D, stack=4), SOUNDS),
    "spectrogram patches": (FrameTokenizer(D, patch=(8, 16), normalize="example"), SOUNDS),
    "series": (SeriesTokenizer(D, context=18, patch=4, stride=4), WINDOWS),
}


def batch_of(units: list[Units]) -> Batch:
    values, positions, mask = pad_columns(units)
    return Batch(values, positions, mask, torch.zeros(len(units), dtype=torch.int64), torch.arange(len(units)) + 5)


def columns_by_place(positions: Tensor, values: Tensor) -> dict[tuple[int, ...], list[float]]:
    return {tuple(place): column for place, column in zip(positions.T.tolist(), values.T.tolist(), strict=True)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", [0.75, 0.4])
def test_hidden_and_visible_tokens_are_the_input(case: str, share: float) -> None:
    tokenizer, raws = CASES[case]
    objective, units = MaskedPatches(tokenizer, share), [tokenizer.encode(raw) for raw in raws]
    batch = apply_objective(objective, batch_of(units), 0, 3)
    hidden_values, hidden_positions = split_target(batch.target, batch.positions.shape[1])
    rows = objective.num_values
    assert hidden_values.shape[1] == rows
    lengths = np.array([[each.values.shape[-1], 1] for each in units], np.int32)
    assert objective.planned_lengths(lengths).tolist() == [[n, 1] for n in batch.lengths()[0].tolist()]
    for b, each in enumerate(units):
        fixed = int((each.positions[0] == NO_POSITION).sum())
        hidden = hidden_positions[b, :, hidden_positions[b, 0] != NO_POSITION]
        visible = batch.positions[b, :, batch.mask[b]]
        assert hidden.shape[1] == round(share * (lengths[b, 0] - fixed))
        assert (visible[0, :fixed] == NO_POSITION).all()
        values = torch.cat([batch.values[b, :rows, batch.mask[b]], hidden_values[b, :, : hidden.shape[1]]], 1)
        found = columns_by_place(torch.cat([visible, hidden], 1), values)
        assert found == columns_by_place(each.positions, each.values[:rows])
        # An example has the same hidden tokens alone and in a batch.
        single = batch_of([each])._replace(example_indices=batch.example_indices[b : b + 1])
        alone = apply_objective(objective, single, 0, 3)
        assert torch.equal(alone.positions[0], visible)


@pytest.mark.parametrize("case", CASES)
def test_hidden_values_influence_no_visible_token(case: str) -> None:
    tokenizer, raws = CASES[case]
    objective, batch = MaskedPatches(tokenizer), batch_of([tokenizer.encode(raw) for raw in raws])
    visible = apply_objective(objective, batch)
    shown = (visible.positions[:, :, :, None] == batch.positions[:, :, None]).all(1).any(1)
    assert 0 < shown.sum() < batch.mask.sum()
    other = batch._replace(values=torch.where(shown[:, None], batch.values, batch.values + 1))
    changed = apply_objective(objective, other)
    assert not torch.equal(changed.target, visible.target)
    assert torch.equal(changed.embed(tokenizer).matrix, visible.embed(tokenizer).matrix)


def test_loader_plans_and_counts_visible_tokens() -> None:
    tokenizer = PatchTokenizer(D)
    split = EncodedSplit([tokenizer.encode(PICTURES[2])] * 8, [torch.tensor(0)] * 8, range(8))
    objectives: dict[str, Objective] = {"a": MaskedPatches(tokenizer)}
    loader = TrainDataLoader({"a": split}, max_tokens=24, seed=0, budget={"epochs": 1}, objectives=objectives)
    batches = [batch for _, batch in loader]
    assert [tuple(batch.mask.shape) for batch in batches] == [(4, 6)] * 2
    assert sum(int(batch.lengths()[0].sum()) for batch in batches) == 8 * 24 // 4


@pytest.mark.parametrize(
    ("tokenizer", "share", "message"),
    [
        (PatchTokenizer(D), 0.0, "share=0.0"),
        (PatchTokenizer(D), 1.0, "share=1.0"),
        (PatchTokenizer(D, stride=2), 0.75, "overlapping"),
        (FrameTokenizer(D, patch=(8, 8), stride=(4, 8)), 0.75, "overlapping"),
        (FrameTokenizer(D, stack=4, stem="strided"), 0.75, "stem"),
        (WaveformTokenizer(D), 0.75, "WaveformTokenizer"),
    ],
)
def test_wrong_tokenizer_or_share_is_refused(tokenizer: Tokenizer, share: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskedPatches(tokenizer, share)


@pytest.mark.parametrize(("share", "count"), [(0.01, 8), (0.99, 8), (0.75, 2), (0.5, 1)])
def test_hiding_everything_or_nothing_is_refused(share: float, count: int) -> None:
    objective = MaskedPatches(PatchTokenizer(D, class_token=True), share)
    with pytest.raises(InputError, match=f"of the {count} patches"):
        objective.planned_lengths(np.array([[count + 1, 1], [count + 1, 1]], np.int32))
