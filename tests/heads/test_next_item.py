"""The head that recommends items: ranks against a plain loop, the contract of heads, and the model folder."""

import json
from pathlib import Path

import pytest
import torch

from unifier.cli import main
from unifier.data.dataloader import Batch
from unifier.data.inputs import ItemReader
from unifier.heads.next_item import TOP, NextItemHead
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier.network import Network
from unifier.objectives.next_token import NextToken
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import pad_columns
from unifier_tokenizers.items import ItemTokenizer

NUM_ITEMS = 15
SEQUENCES = [[3, 1, 7, 2], [5, 5], [9, 8, 9], [4, 14, 13, 12, 11, 10]]


def make_network() -> Network:
    tokenizer = ItemTokenizer(NUM_ITEMS, 16)
    task = ModelTask(tokenizer, NextItemHead(tokenizer.embedding), ItemReader(), 9, objective=NextToken())
    return Network(Transformer(16, 1, 2, 16), {"products": task}).eval()


def make_batch(network: Network, sequences: list[list[int]] = SEQUENCES) -> Batch:
    parts = pad_columns([network.tasks["products"].tokenizer.encode(sequence) for sequence in sequences])
    return NextToken()(Batch(*parts, torch.zeros(len(sequences))), [])


@pytest.mark.slow
def test_evaluate_ranks_the_last_item_of_each_line(tmp_path: Path) -> None:
    network = make_network()
    tasks = {name: task for name, task in network.tasks.items() if isinstance(task, ModelTask)}
    write_model(tmp_path / "shop", StoredModel("shop", network.trunk, tasks, 18, {"scores": {}}), "card")
    (tmp_path / "carts.txt").write_text("".join(f"{' '.join(map(str, each))}\n" for each in SEQUENCES))
    out = tmp_path / "evaluation"
    assert main(["evaluate", str(tmp_path / "shop"), str(tmp_path / "carts.txt"), "--out", str(out)]) == 0
    ranks = network.evaluate_batch("products", make_batch(network))
    hits = sum(rank <= TOP for rank in ranks.values()) / len(SEQUENCES)
    scores = json.loads((out / "evaluation.json").read_text())["scores"]
    assert 0 < scores[f"hit_rate_{TOP}"]["score"] == pytest.approx(hits)


def test_rank_equals_a_plain_loop_without_the_history() -> None:
    network = make_network()
    head = network.tasks["products"].head
    assert isinstance(head, NextItemHead)
    found = network.evaluate_batch("products", make_batch(network))
    for k, sequence in enumerate(SEQUENCES):
        *history, answer = sequence
        batch = make_batch(network, [sequence])
        hidden = network.forward_features("products", batch).matrix[0, :, -1]
        scores = head.embedding.weight @ hidden
        candidates = [item for item in range(1, NUM_ITEMS + 1) if item == answer or item not in history]
        ranked = sorted(candidates, key=lambda item: -scores[item].item())
        assert found[k] == ranked.index(answer) + 1


@pytest.mark.slow
def test_head_overfits_and_never_recommends_the_history() -> None:
    network = make_network().train()
    batch = make_batch(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(120):
        optimizer.zero_grad()
        network.loss("products", batch).backward()
        optimizer.step()
    ranks = list(network.eval().evaluate_batch("products", batch).values())
    head = network.tasks["products"].head
    assert head.metrics(ranks, [None] * len(ranks)) == {f"hit_rate_{TOP}": 1.0, f"ndcg_{TOP}": 1.0}
    with torch.no_grad():
        parts = pad_columns([network.tasks["products"].tokenizer.encode(SEQUENCES[3][:4])])
        tokens = network.forward_features("products", Batch(*parts, torch.zeros(1)))
        (best,) = head.predict_inputs(tokens, parts[0])
    assert best[0] == SEQUENCES[3][4]
    assert not set(best) & {0, *SEQUENCES[3][:4]}


def test_metrics_of_known_ranks() -> None:
    metrics = make_network().tasks["products"].head.metrics([1, 3, 10, 11], [None] * 4)
    assert metrics[f"hit_rate_{TOP}"] == 0.75
    assert metrics[f"ndcg_{TOP}"] == pytest.approx((1 + 0.5 + 0.289064826) / 4)


def test_model_folder_keeps_the_tied_embedding_and_the_answers(tmp_path: Path) -> None:
    network = make_network()
    write_model(tmp_path / "m", StoredModel("beauty", network.trunk, network.tasks, 64, {}), "")  # pyright: ignore[reportArgumentType]
    stored = read_model(tmp_path / "m")
    again = Network(stored.trunk, stored.tasks)
    assert again.tokenizers["products"].embedding is again.heads["products"].embedding
    assert network.predict("products", SEQUENCES) == again.predict("products", SEQUENCES)
