"""The decoder of a masked autoencoder: contract of heads, and errors against a plain loop."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_squared_error, r2_score
from torch import Tensor

from unifier.data.inputs import reader_of
from unifier.heads.masked_reconstruction import MaskedReconstructionHead, join_target, normalize_patches, split_target
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier.objectives.masked_patches import MaskedPatches
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import NO_POSITION, InputError, PatchTokenizer, Tokens

D, P, HIDDEN = 12, 6, (4, 2, 5)


def draw_target(hidden: tuple[int, ...] = HIDDEN) -> Tensor:
    is_hidden = torch.arange(max(hidden)) < torch.tensor(hidden)[:, None]
    positions = (torch.arange(max(hidden)) + 20).masked_fill(~is_hidden, NO_POSITION)[:, None]
    return join_target(torch.randint(256, (len(hidden), P, max(hidden))) * is_hidden[:, None], positions)


def test_values_are_normalized_per_patch() -> None:
    values = torch.stack([torch.arange(P).float(), torch.full((P,), 7.0), torch.randn(P)], 1)[None]
    normalized = normalize_patches(values)[0].T.numpy()
    assert not normalized[1].any()
    for patch, found in zip(values[0].T.numpy(), normalized, strict=True):
        assert found == pytest.approx((patch - patch.mean()) / math.sqrt(patch.var() + 1e-6), abs=1e-4)


@pytest.mark.slow
def test_head_overfits_a_batch(tokens: Tokens) -> None:
    head, trunk, target = MaskedReconstructionHead(P, D, width=32), Transformer(D, 1, 2, 20), draw_target()
    optimizer = torch.optim.Adam([*head.parameters(), *trunk.parameters()], lr=0.005)
    for _ in range(140):
        optimizer.zero_grad()
        head.loss(trunk(tokens), target).backward()
        optimizer.step()
    sums = head.evaluate(trunk(tokens), target)
    assert head.metrics(sums, [None] * 3)["r2"] > 90
    values, _ = split_target(target, 1)
    reconstructed = head.reconstruct(trunk(tokens), target)
    for b, count in enumerate(HIDDEN):
        assert (reconstructed - values)[b, :, :count].abs().mean() < 25
    assert head.describe(sums[0]).startswith("R2 ")


def test_answers_and_loss_ignore_the_batch(tokens: Tokens, single: Callable[[Tokens, int], Tokens]) -> None:
    head, target = MaskedReconstructionHead(P, D).eval(), draw_target()
    error = torch.tensor(0.0)
    for b, count in enumerate(HIDDEN):
        alone, alone_target = single(tokens, b), target[b : b + 1, :, :count]
        error += head.loss(alone, alone_target).detach() * count / sum(HIDDEN)
        found, expected = head.evaluate(alone, alone_target)[0], head.evaluate(tokens, target)[b]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head.loss(tokens, target), error)


def test_metrics_equal_sklearn(tokens: Tokens) -> None:
    head, target = MaskedReconstructionHead(P, D).eval(), draw_target()
    values, positions = split_target(target, 1)
    is_hidden = positions[:, 0] != NO_POSITION
    predicted, expected = (
        part.mT[is_hidden].flatten().detach().numpy()
        for part in (head.decode(tokens, positions), normalize_patches(values))
    )
    metrics = head.metrics(head.evaluate(tokens, target), [None] * 3)
    assert list(metrics) == ["r2", "mse"]
    assert metrics["r2"] == pytest.approx(100 * r2_score(expected, predicted), rel=1e-4)
    assert metrics["mse"] == pytest.approx(mean_squared_error(expected, predicted), rel=1e-5)
    assert head.loss(tokens, target).item() == pytest.approx(metrics["mse"], rel=1e-5)


def test_hidden_place_alone_distinguishes_predictions(tokens: Tokens) -> None:
    head, (_, positions) = MaskedReconstructionHead(P, D).eval(), split_target(draw_target(), 1)
    assert not torch.allclose(head.decode(tokens, positions), head.decode(tokens, positions + 3), atol=1e-3)


def test_model_folder_keeps_objective_and_answers(tmp_path: Path) -> None:
    tokenizer = PatchTokenizer(16, channels=1)
    objective = MaskedPatches(tokenizer, 0.5)
    head = MaskedReconstructionHead(objective.num_values, 16)
    units = tokenizer.encode(np.arange(256, dtype=np.uint8).reshape(16, 16))
    model = StoredModel(
        "small",
        Transformer(16, 1, 2, 16),
        {"task": ModelTask(tokenizer, head, reader_of(None, tokenizer), 16, objective=objective)},
        256,
        {"scores": {}},
    )
    write_model(tmp_path / "model", model, "card")
    again = read_model(tmp_path / "model")
    task = again.tasks["task"]
    assert isinstance(task.objective, MaskedPatches)
    assert (task.objective.share, task.objective.tokenizer) == (0.5, task.tokenizer)
    target = join_target(units.values[None, :, 8:], units.positions[None, :, 8:])
    answers = list[Tensor]()
    for trunk, part in ((model.trunk, model.tasks["task"]), (again.trunk, task)):
        matrix = part.tokenizer.embed(units.values[None, :, :8], units.positions[None, :, :8])
        tokens = Tokens(matrix, torch.ones(1, 8, dtype=torch.bool), units.positions[None, :, :8])
        answers.append(part.head.evaluate(trunk(tokens), target)[0])
    assert torch.equal(*answers)


def test_inputs_without_hidden_tokens_have_no_prediction(tokens: Tokens) -> None:
    head = MaskedReconstructionHead(P, D)
    assert head.encode("cat") == 0
    with pytest.raises(InputError, match="start=RUN"):
        head.predict(tokens)
    assert math.isnan(head.metrics([torch.tensor([0.0, 0.0, 6.0])], [None])["r2"])
