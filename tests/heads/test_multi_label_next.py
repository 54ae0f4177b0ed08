"""The head that predicts the notes of the next step: its targets, its loss against plain loops, and the contract."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unifier.augmentation.transpose import Transpose
from unifier.data.dataloader import Batch
from unifier.data.inputs import RawReader
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.multi_label_next import MultiLabelNextHead
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier.network import Network
from unifier.objectives.next_token import NextToken
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Tokens, pad_columns
from unifier_tokenizers.piano_roll import NUM_NOTES, PianoRollTokenizer

PIECES = [[[60], [64, 67], [60]], [[62], [65], [69], [62, 65], [69]]]


def make_batch(tokenizer: PianoRollTokenizer) -> Batch:
    values, positions, mask = pad_columns([tokenizer.encode(piece) for piece in PIECES])
    return NextToken()(Batch(values, positions, mask, torch.zeros(len(PIECES))), [])


def make_network(dim: int = 16) -> tuple[Network, Batch]:
    tokenizer, head = PianoRollTokenizer(dim), MultiLabelNextHead(NUM_NOTES, dim)
    task = ModelTask(tokenizer, head, RawReader(), 5, objective=NextToken())
    return Network(Transformer(dim, 1, 2, 16), {"music": task}), make_batch(tokenizer)


def test_target_is_the_next_step() -> None:
    target = make_batch(PianoRollTokenizer(8)).target
    for piece, rolls in zip(PIECES, target, strict=True):
        for n, notes in enumerate(piece[1:]):
            assert (rolls[:, n].nonzero()[:, 0] + 21).tolist() == notes
        assert (rolls[:, len(piece) - 1 :] == IGNORE_INDEX).all()


def test_loss_and_metric_equal_plain_loops() -> None:
    network, batch = make_network()
    network.eval()
    head = network.tasks["music"].head
    assert isinstance(head, MultiLabelNextHead)
    probabilities = head.logits(network.forward_features("music", batch)).sigmoid()
    nats = [
        -sum(math.log(p if note + 21 in notes else 1 - p) for note, p in enumerate(probabilities[b, :, n].tolist()))
        for b, piece in enumerate(PIECES)
        for n, notes in enumerate(piece[1:])
    ]
    assert network.loss("music", batch).item() == pytest.approx(sum(nats) / len(nats), rel=1e-4)
    sums = list(network.evaluate_batch("music", batch).values())
    assert head.metrics(sums, [None] * 2)["nats_per_step"] == pytest.approx(sum(nats) / len(nats), rel=1e-4)
    assert head.describe(sums[0]).endswith("nats per step")
    assert MultiLabelNextHead(3, 8, first_label=21).describe(torch.tensor([0.2, 0.9, 0.6])) == "22 (90%), 23 (60%)"


@pytest.mark.slow
def test_head_overfits_a_batch() -> None:
    network, batch = make_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        network.loss("music", batch).backward()
        optimizer.step()
    assert network.loss("music", batch) < 0.5
    *_, (probabilities,) = ([p] for p in network.predict("music", [piece[:-1] for piece in PIECES]))
    assert (probabilities > 0.5).nonzero()[:, 0].tolist() == [note - 21 for note in PIECES[1][-1]]


def test_future_and_padding_change_nothing(tokens: Tokens, single: Callable[[Tokens, int], Tokens]) -> None:
    head = MultiLabelNextHead(4, tokens.matrix.shape[1])
    target = torch.randint(2, (len(tokens.mask), 4, tokens.mask.shape[1])).masked_fill(
        ~tokens.mask[:, None], IGNORE_INDEX
    )
    for b, length in enumerate(tokens.mask.sum(1).tolist()):
        alone = head.evaluate(single(tokens, b), target[b : b + 1, :, :length])[0]
        torch.testing.assert_close(alone, head.evaluate(tokens, target)[b], rtol=1e-5, atol=0)
    network, batch = make_network()
    changed = batch.values.clone()
    changed[:, :, 2:] = 1
    before, after = (
        network.eval().forward_features("music", part).matrix[:, :, :2]
        for part in (batch, batch._replace(values=changed))
    )
    torch.testing.assert_close(before, after)


def test_model_folder_gives_equal_predictions(tmp_path: Path) -> None:
    network, _ = make_network()
    write_model(tmp_path / "m", StoredModel("music", network.trunk, network.tasks, 64, {}), "")  # pyright: ignore[reportArgumentType]
    stored = read_model(tmp_path / "m")
    again = Network(stored.trunk, stored.tasks)
    for before, after in zip(network.predict("music", PIECES), again.predict("music", PIECES), strict=True):
        assert torch.equal(before, after)


def test_transposition_moves_all_notes_alike_and_keeps_them_on_the_keyboard() -> None:
    batch = make_batch(PianoRollTokenizer(8))
    edges = batch._replace(values=batch.values.index_fill(1, torch.tensor([0]), 1))
    shifts = set[int]()
    for seed in range(40):
        moved = Transpose(3)(batch, torch.Generator().manual_seed(seed)).values
        for before, after in zip(batch.values, moved, strict=True):
            (shift,) = {int(k) for k in after.nonzero()[:, 0].unique() - before.nonzero()[:, 0].unique()}
            assert torch.equal(after, before.roll(shift, 0))
            shifts.add(shift)
        assert not (Transpose(3)(edges, torch.Generator().manual_seed(seed)).values.sum() - edges.values.sum())
    assert shifts == set(range(-3, 4))
    with pytest.raises(InputError, match="0"):
        Transpose(0)
