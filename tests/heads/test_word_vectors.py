"""Word vectors: the objective and the loss against plain loops, the tests by pairs and analogies, the model folder."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr

from unifier.data.dataloader import Batch, apply_objective
from unifier.data.inputs import RawReader
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.skip_gram import SkipGramHead
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier.network import Network
from unifier.objectives.skip_gram import SkipGram, count_words
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary, pad_columns

TEXTS = ["the king and the queen", "the man and the woman", "an apple the tree", "a man a plan a canal"]
VOCABULARY = Vocabulary.fit(TEXTS * 2, level="word", lowercase=True)

OBJECTIVE = SkipGram(VOCABULARY, count_words(VOCABULARY, TEXTS), window=2, subsample=0.05)


def make_network(**options: int) -> Network:
    tokenizer = SubwordTokenizer(VOCABULARY, 8, positions="none", end=False)
    head = SkipGramHead(VOCABULARY, 8, embedding=tokenizer.embedding, **options)
    torch.nn.init.normal_(head.output.weight)
    task = ModelTask(tokenizer, head, RawReader(), 9, objective=OBJECTIVE)
    return Network(Transformer(8, 0, norm="post"), {"words": task}).eval()


def make_batch(network: Network, texts: list[str]) -> Batch:
    parts = pad_columns([network.tasks["words"].tokenizer.encode(text) for text in texts])
    return Batch(*parts, torch.zeros(len(texts)))


def test_loss_equals_a_plain_loop() -> None:
    network = make_network(negatives=3)
    head = network.tasks["words"].head
    assert isinstance(head, SkipGramHead)
    batch = apply_objective(OBJECTIVE, make_batch(network, TEXTS), 0)
    total, count = torch.zeros(()), 0
    for ids, windows, others in batch.target.tolist():
        size = sum(i != IGNORE_INDEX for i in ids)
        for i in range(size):
            center = head.embedding.weight[ids[i]] * math.sqrt(8)
            near = [j for j in range(size) if 0 < abs(i - j) <= windows[i]]
            total -= sum(torch.sigmoid(center @ head.output.weight[ids[j]]).log() for j in near)
            wrong = sum(torch.sigmoid(-(center @ head.output.weight[others[j]])).log() for j in range(size))
            total -= wrong * 3 * len(near) / size
            count += len(near)
    assert network.loss("words", batch).item() == pytest.approx(float(total.detach()) / count, rel=1e-5)
    assert head.target_counts(batch.target).sum() == count


def test_objective_drops_frequent_and_unknown_words_but_not_in_validation() -> None:
    network = make_network()
    batch = make_batch(network, ["the zebra queen", *TEXTS])
    counts = torch.zeros(len(VOCABULARY))
    for step in range(300):
        changed = apply_objective(OBJECTIVE, batch, 0, step)
        assert changed.target[:, 0].equal(changed.values.long().masked_fill(~changed.mask, IGNORE_INDEX))
        assert changed.target[:, 1][changed.mask].unique().tolist() == [1, 2]
        counts += torch.bincount(changed.target[1:, 0][changed.mask[1:]], minlength=len(counts))
    the, queen = (VOCABULARY.encode(word)[0] for word in ("the", "queen"))
    total = sum(len(text.split()) for text in TEXTS)
    assert counts[the] / 300 == pytest.approx(5 * math.sqrt(0.05 * total / 5), rel=0.1)
    assert counts[queen] == 300
    kept = apply_objective(OBJECTIVE, batch)
    assert kept.values is batch.values
    assert kept.target.equal(batch.values.masked_fill(~batch.mask, IGNORE_INDEX))


@torch.no_grad()
def test_pairs_and_analogies() -> None:
    network = make_network()
    head, texts = network.tasks["words"].head, ["king queen", "man woman", "apple tree", "man king woman", "man zebra"]
    assert isinstance(head, SkipGramHead)
    found = [*network.evaluate_batch("words", apply_objective(OBJECTIVE, make_batch(network, texts))).values()]
    vectors = {w: head.embedding.weight[VOCABULARY.encode(w)[0]].detach() for t in TEXTS for w in t.split()}
    unit = {word: vector / vector.norm() for word, vector in vectors.items()}
    cosines = [float(unit[a] @ unit[b]) for a, b in (text.split() for text in texts[:3])]
    assert found[:3] == pytest.approx(cosines, abs=1e-5)
    wanted = unit["king"] - unit["man"] + unit["woman"]
    best = max(unit.keys() - {"man", "king", "woman"}, key=lambda word: float(wanted @ unit[word]))
    assert found[3:] == [best, None]
    scores = head.checked_metrics(found, [7.0, 6.5, 1.0, best, 3.0])
    ranks: Any = spearmanr(cosines, [7.0, 6.5, 1.0])
    assert scores["similarity"] == pytest.approx(100 * ranks[0])
    assert scores["analogies"] == 100
    assert head.checked_metrics([best, best], ["zebra", "tree"])["analogies"] == (100 if best == "tree" else 0)
    scores = head.checked_metrics([None, None], [7.0, "tree"])
    assert (scores["similarity"], math.isnan(scores["analogies"])) == (0, True)


@pytest.mark.slow
def test_head_overfits_a_batch() -> None:
    network = make_network().train()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    losses = list[float]()
    for step in range(40):
        optimizer.zero_grad()
        loss = network.loss("words", apply_objective(OBJECTIVE, make_batch(network, TEXTS), 0, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])


def test_model_folder_and_batches_give_equal_answers(tmp_path: Path) -> None:
    network, texts = make_network(), ["king", "the man", "queen and king"]
    write_model(tmp_path, StoredModel("words", network.trunk, network.tasks, 64, {}), "")  # pyright: ignore[reportArgumentType]
    stored = read_model(tmp_path)
    again = Network(stored.trunk, stored.tasks).eval()
    assert again.tokenizers["words"].embedding is again.heads["words"].embedding
    answers = network.predict("words", texts)
    assert again.predict("words", texts) == answers
    assert [c.word for c in network.predict("words", texts[1:2])[0]] == [c.word for c in answers[1]]
    assert not {"the", "man"} & {c.word for c in answers[1]}


def test_bad_settings_are_refused() -> None:
    counts = torch.ones(len(VOCABULARY))
    with pytest.raises(InputError, match="window=0"):
        SkipGram(VOCABULARY, counts, window=0)
    with pytest.raises(InputError, match="subsample=0"):
        SkipGram(VOCABULARY, counts, subsample=0.0)
    for wrong, hint in ((counts[1:], "one count per entry"), (torch.zeros_like(counts), "no word of the vocabulary")):
        with pytest.raises(InputError, match=hint):
            SkipGram(VOCABULARY, wrong)
