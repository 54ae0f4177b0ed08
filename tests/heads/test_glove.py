"""GloVe: the counts and the loss against plain loops, training on a tiny text, and the tests of validation."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from unifier.data.dataloader import Batch, apply_objective
from unifier.data.inputs import RawReader
from unifier.datasets.cooccurrences import Cooccurrences, count_pairs
from unifier.datasets.plain_text import TextFile
from unifier.datasets.word_vectors import WordVectorTexts
from unifier.heads.glove import GloVeHead
from unifier.models.folder import ModelTask
from unifier.network import Network
from unifier.objectives.words_as_targets import WordsAsTargets
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary, pad_columns

TEXTS = ["the king and the queen", "the man and the woman zebra", "king"]
VOCABULARY = Vocabulary.fit(TEXTS[:1] + TEXTS[:2] * 2, level="word", lowercase=True)


def make_network() -> tuple[Network, GloVeHead]:
    tokenizer = SubwordTokenizer(VOCABULARY, 8, positions="none", end=False)
    head = GloVeHead(VOCABULARY, 8, embedding=tokenizer.embedding, max_count=1.5)
    task = ModelTask(tokenizer, head, RawReader(), 9, objective=WordsAsTargets())
    return Network(Transformer(8, 0, norm="post"), {"words": task}).eval(), head


def test_counts_equal_a_plain_loop() -> None:
    wanted = Counter[tuple[int, int]]()
    for text in TEXTS:
        ids = VOCABULARY.encode(text)
        for i, j in np.ndindex(len(ids), len(ids)):
            if 0 < abs(i - j) <= 3 and not (VOCABULARY.is_special(ids[i]) or VOCABULARY.is_special(ids[j])):
                wanted[ids[i], ids[j]] += 1 / abs(i - j)
    counts = count_pairs(VOCABULARY, TEXTS, window=3).toarray()
    assert {place: counts[place] for place in wanted} == pytest.approx(wanted)
    assert counts.sum() == pytest.approx(sum(wanted.values()))


def test_loss_equals_a_plain_loop_and_ignores_padding() -> None:
    network, head = make_network()
    torch.nn.init.normal_(head.input_bias.weight)
    torch.nn.init.normal_(head.output_bias.weight)
    rows = [np.array([[5, 5], [6, 7], [0.5, 4.0]], np.float32), np.array([[6], [5], [1.0]], np.float32)]
    parts = pad_columns([network.tasks["words"].tokenizer.encode(VOCABULARY.tokens([k])[0]) for k in (5, 6)])
    target = torch.full((2, 3, 2), -100.0)
    for k, row in enumerate(rows):
        target[k, :, : row.shape[1]] = head.encode(row)
    errors = list[torch.Tensor]()
    for row in rows:
        for word, other, count in row.T:
            vector = head.embedding.weight[int(word)] * 8**0.5
            bias = head.input_bias.weight[int(word), 0] + head.output_bias.weight[int(other), 0]
            error = vector @ head.output.weight[int(other)] + bias - np.log(count)
            errors.append(min((count / 1.5) ** 0.75, 1) * error**2)
    loss = network.loss("words", Batch(*parts, target))
    assert loss.item() == pytest.approx(torch.stack(errors).mean().item(), rel=1e-5)
    assert head.target_counts(target).tolist() == [2, 1]


def make_source(folder: Path, **options: int) -> Cooccurrences:
    path = folder / "texts.txt"
    path.write_text("\n".join(TEXTS * 9))
    return Cooccurrences(WordVectorTexts([TextFile(path, words=64)]), VOCABULARY, **options)


@pytest.mark.slow
def test_rows_hold_all_counts_and_train_the_head(tmp_path: Path) -> None:
    network, head = make_network()
    source = make_source(tmp_path, window=2, row_length=2)
    train = [*source.split("train")]
    rows = np.concatenate([example.target for example in train], 1)
    texts = [example.input for example in WordVectorTexts([TextFile(tmp_path / "texts.txt", words=64)]).split("train")]
    counts = count_pairs(VOCABULARY, texts, window=2)
    assert counts.toarray()[rows[0].astype(int), rows[1].astype(int)].tolist() == rows[2].tolist()
    assert rows.shape[1] == counts.nnz
    assert max(example.target.shape[1] for example in train) == 2
    parts = pad_columns([network.tasks["words"].tokenizer.encode(example.input) for example in train])
    target = torch.full((len(train), 3, 2), -100.0)
    for k, example in enumerate(train):
        target[k, :, : example.target.shape[1]] = head.encode(example.target)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    losses = list[float]()
    for _ in range(100):
        optimizer.zero_grad()
        (loss := network.loss("words", Batch(*parts, target))).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.02 * losses[0]


@torch.no_grad()
def test_judged_words_are_scored_by_their_ids() -> None:
    network, head = make_network()
    parts = pad_columns([network.tasks["words"].tokenizer.encode("king queen")])
    batch = apply_objective(WordsAsTargets(), Batch(*parts, head.encode(3.5)[None]))
    assert batch.target.tolist() == [VOCABULARY.encode("king queen")]
    (cosine,) = network.evaluate_batch("words", batch).values()
    first, second = head.embedding.weight[batch.target[0]].detach()
    assert cosine == pytest.approx(torch.cosine_similarity(first, second, 0).item(), abs=1e-5)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="window=0"):
        make_source(tmp_path, window=0)
    tokenizer = SubwordTokenizer(VOCABULARY, 8, positions="none", end=False)
    with pytest.raises(InputError, match="max_count=0"):
        GloVeHead(VOCABULARY, 8, embedding=tokenizer.embedding, max_count=0)
