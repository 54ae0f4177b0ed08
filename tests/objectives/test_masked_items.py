"""Hidden items: random items in training, and only the last item in validation and test, without its history."""

import pytest
import torch

from unifier.data.dataloader import Batch, apply_objective
from unifier.data.inputs import RawReader
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.next_item import NextItemHead
from unifier.models.folder import ModelTask
from unifier.network import Network
from unifier.objectives.masked_items import MaskedItems
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, pad_columns
from unifier_tokenizers.items import ItemTokenizer

NUM_ITEMS = 15
MASK = NUM_ITEMS + 1
SEQUENCES = [[3, 1, 7, 2], [5], [4, 14, 13, 12, 11, 10, 9, 8, 4, 2]]
OBJECTIVE = MaskedItems(NUM_ITEMS, 0.3)


@pytest.fixture
def network() -> Network:
    tokenizer = ItemTokenizer(NUM_ITEMS, 16, mask=True)
    head = NextItemHead(tokenizer.embedding, hidden=True)
    return Network(
        Transformer(16, 1, 2, 16), {"films": ModelTask(tokenizer, head, RawReader(), 12, objective=OBJECTIVE)}
    )


def make_batch(network: Network, sequences: list[list[int]]) -> Batch:
    parts = pad_columns([network.tasks["films"].tokenizer.encode(sequence) for sequence in sequences])
    return Batch(*parts, torch.zeros(len(sequences)))


def test_training_hides_a_share_of_the_items(network: Network) -> None:
    batch = apply_objective(OBJECTIVE, make_batch(network, SEQUENCES), 0, 7)
    hidden = batch.target != IGNORE_INDEX
    assert hidden.sum(1).tolist() == [1, 1, 3]
    assert torch.equal(hidden, batch.values == MASK)
    original = batch.values.where(~hidden, batch.target)
    assert [row[1 : 1 + len(s)].tolist() for row, s in zip(original, SEQUENCES, strict=True)] == SEQUENCES
    lengths = OBJECTIVE.planned_lengths(torch.tensor([[len(s) + 2, 1] for s in SEQUENCES]).numpy())
    assert lengths.tolist() == [[len(s) + 1, n] for s, n in zip(SEQUENCES, (1, 1, 3), strict=True)]
    assert not torch.equal(batch.values, apply_objective(OBJECTIVE, make_batch(network, SEQUENCES), 0, 8).values)


def test_evaluation_ranks_the_last_item_without_the_history(network: Network) -> None:
    head = network.eval().tasks["films"].head
    assert isinstance(head, NextItemHead)
    ranks = network.evaluate_batch("films", apply_objective(OBJECTIVE, make_batch(network, SEQUENCES)))
    for k, (*history, answer) in enumerate(SEQUENCES):
        batch = make_batch(network, [[*history, answer]])
        ids = torch.tensor([[0, *history, MASK]])
        tokens = network.forward_features("films", batch._replace(
            values=ids, positions=batch.positions[..., : ids.shape[1]], mask=ids >= 0
        ))  # fmt: skip
        scores = head.embedding.weight @ tokens.matrix[0, :, -1]
        candidates = [item for item in range(1, NUM_ITEMS + 1) if item == answer or item not in history]
        assert ranks[k] == 1 + sum(scores[item] > scores[answer] for item in candidates)


def test_prediction_is_made_at_the_mask(network: Network) -> None:
    (best,) = network.eval().predict("films", [[1, 2, 3]])
    assert not set(best) & {0, 1, 2, 3, MASK}
    batch = apply_objective(OBJECTIVE, make_batch(network, [[1, 2, 3, 9]]))
    tokens = network.forward_features("films", batch)
    expected = network.tasks["films"].head.predict_inputs(tokens, torch.tensor([[0, 1, 2, 3, MASK]]))
    assert [best] == expected


@pytest.mark.slow
def test_head_overfits(network: Network) -> None:
    batch = make_batch(network, SEQUENCES)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(150):
        optimizer.zero_grad()
        network.loss("films", apply_objective(OBJECTIVE, batch, 0, step)).backward()
        optimizer.step()
    ranks = network.eval().evaluate_batch("films", apply_objective(OBJECTIVE, batch))
    assert [ranks[0], ranks[2]] == [1, 1]


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan")])
def test_share_and_tokenizer_are_checked(share: float) -> None:
    with pytest.raises(InputError, match="share="):
        MaskedItems(NUM_ITEMS, share)
    with pytest.raises(InputError, match="mask=True"):
        OBJECTIVE.check(ItemTokenizer(NUM_ITEMS, 16).encode([1, 2]))
    with pytest.raises(InputError, match="item 16 is outside the catalog"):
        ItemTokenizer(NUM_ITEMS, 16, mask=True).encode([16])
