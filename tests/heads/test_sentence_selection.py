"""The head that chooses a sentence: scores against a plain loop, the contract of heads, and the model folder."""

from pathlib import Path

import pytest
import torch

from unifier.data.dataloader import Batch
from unifier.data.inputs import TextReader, reader_of
from unifier.heads.rouge import rouge_statistics
from unifier.heads.sentence_selection import SentenceSelectionHead, SummaryTarget, split_sentences
from unifier.models.folder import ModelTask, StoredModel, read_model, write_model
from unifier.network import Network
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, SubwordTokenizer, Vocabulary, pad_columns

TEXTS: list[tuple[str, ...]] = [
    ("We like cats.", "Dogs are loud animals.", "In short, birds sing."),
    ("Nothing here.", "We show a new model of birds."),
    ("A single sentence.",),
]
TARGETS = [SummaryTarget(*pair) for pair in zip(TEXTS, [("birds sing",), ("a new model",), ("one",)], strict=True)]
VOCABULARY = Vocabulary.fit((" ".join(text) for text in TEXTS), size=300)


@pytest.fixture
def network() -> Network:
    tokenizer = SubwordTokenizer(VOCABULARY, 16, sentences=True)
    task = ModelTask(tokenizer, SentenceSelectionHead(16), reader_of(None, tokenizer), 40)
    return Network(Transformer(16, 1, 2, 16), {"papers": task})


def make_batch(network: Network, chosen: slice = slice(None)) -> Batch:
    parts = pad_columns([network.tasks["papers"].tokenizer.encode(text) for text in TEXTS[chosen]])
    return Batch(*parts, torch.stack([SentenceSelectionHead(16).encode(target) for target in TARGETS[chosen]]))


def test_rouge_counts_common_words_and_takes_the_best_reference() -> None:
    texts, references = ["the cat sat", "a b"], ["The cat ran!", ("x y z", "b a c")]
    rows = rouge_statistics(texts, references)
    # Two of three words are common, then two of two and of three.
    assert rows[:, 0].tolist() == pytest.approx([200 / 3, 80])
    assert rows[:, 1].tolist() == pytest.approx([50, 0])
    assert rows[:, 2].tolist() == pytest.approx([200 / 3, 40])


def test_scores_are_means_of_sentences_alone_and_in_a_batch(network: Network) -> None:
    head, batch = network.eval().tasks["papers"].head, make_batch(network)
    assert isinstance(head, SentenceSelectionHead)
    assert batch.target.tolist() == [2, 1, 0]
    scores = head.logits(network.forward_features("papers", batch))
    for b in range(len(TEXTS)):
        tokens = network.forward_features("papers", make_batch(network, slice(b, b + 1)))
        for k in range(len(TEXTS[b])):
            expected = head.out(tokens.matrix[0, :, tokens.positions[0, 1] == k].mean(1))
            torch.testing.assert_close(scores[b, k : k + 1], expected)
        assert scores[b, len(TEXTS[b]) :].isneginf().all()


@pytest.mark.slow
def test_head_overfits_a_batch_and_its_folder_answers_with_sentences(network: Network, tmp_path: Path) -> None:
    batch = make_batch(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        network.loss("papers", batch).backward()
        optimizer.step()
    head = network.eval().tasks["papers"].head
    predictions = list(network.evaluate_batch("papers", batch).values())
    best = [
        float(row.max()) for row in (rouge_statistics(t.sentences, [t.references] * len(t[0]))[:, 0] for t in TARGETS)
    ]
    assert head.checked_metrics(predictions, TARGETS)["rouge1"] == pytest.approx(sum(best) / 3)
    write_model(tmp_path / "m", StoredModel("papers", network.trunk, network.tasks, 64, {}), "")  # pyright: ignore[reportArgumentType]
    import unifier as uf

    model = uf.load(tmp_path / "m")
    assert model.predict([" ".join(TEXTS[0]), TEXTS[1]]) == [TEXTS[0][2], TEXTS[1][1]]
    assert read_model(tmp_path / "m").tasks["papers"].reader == TextReader(sentences=True)


def test_wrong_inputs_are_named(network: Network) -> None:
    head, tokenizer = SentenceSelectionHead(16), network.tasks["papers"].tokenizer
    with pytest.raises(InputError, match="SummaryTarget"):
        head.encode("a text")  # pyright: ignore[reportArgumentType]
    text = SubwordTokenizer(VOCABULARY, 16)
    for units, target in ((text.encode(" ".join(TEXTS[0])), 0), (tokenizer.encode(TEXTS[0]), 3)):
        with pytest.raises(InputError, match="sequence of sentences"):
            head.check_target(units, torch.tensor(target))
    for raw in ((), "One. Two.", 3):
        with pytest.raises(InputError, match="sequence of sentences"):
            tokenizer.encode(raw)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="a text is expected"):
        text.encode(TEXTS[0])


def test_sentences_end_at_punctuation() -> None:
    assert split_sentences(" One (1.5). Two! Is it three?  Yes ") == ("One (1.5).", "Two!", "Is it three?", "Yes")
