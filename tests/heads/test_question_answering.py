"""Spans of answers: scores, the best legal span against a plain loop, the contract of heads, and the model folder."""

from itertools import product
from pathlib import Path

import pytest
import torch

import unifier as uf
from tests.heads.conftest import randomize
from tests.small_models import VOCABULARY, save_model
from unifier.data.dataloader import Batch
from unifier.heads.question_answering import QuestionAnsweringHead, SpanTarget, mark_spans, span_text, word_span
from unifier.network import Network
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Mixture, WordTokenizer, pad_columns

D = 16
CONTEXT = "Ann's dog (in Rome) ate 3,000 bones. Bo slept."
EXAMPLES = [
    ({"question": "who slept", "context": CONTEXT}, "Bo"),
    ({"question": "where", "context": CONTEXT}, "in Rome"),
    ({"question": "how many bones were eaten", "context": "Ten. Ann ate ten."}, "Ten"),
]


def target_of(context: str, answer: str) -> SpanTarget:
    return SpanTarget((word_span(context, context.find(answer), answer),), (answer,), context)


TARGETS = [target_of(raw["context"], answer) for raw, answer in EXAMPLES]


@pytest.fixture
def network() -> Network:
    words = WordTokenizer(VOCABULARY, D)
    task = uf.Task.__new__(uf.Task)
    object.__setattr__(task, "tokenizer", Mixture({"question": words, "context": words}))
    object.__setattr__(task, "head", QuestionAnsweringHead(D, max_length=4))
    object.__setattr__(task, "tta", None)
    return Network(Transformer(D, 1, 2, D), {"qa": task})


def make_batch(network: Network, chosen: slice = slice(None)) -> Batch:
    task = network.tasks["qa"]
    parts = pad_columns([task.tokenizer.encode(raw) for raw, _ in EXAMPLES[chosen]])
    return Batch(*parts, torch.stack([task.head.encode(target) for target in TARGETS[chosen]]))


def test_words_of_an_answer_and_their_text() -> None:
    for _, answer in EXAMPLES[:2]:
        assert span_text(CONTEXT, *word_span(CONTEXT, CONTEXT.find(answer), answer)) == answer
    assert mark_spans("a b c d", {"true": (1, 2), "predicted": (2, 3)}) == (
        "a [b: true] [c: true+predicted] [d: predicted]"
    )
    for begin, text in ((-1, "Rome"), (3, "Rome"), (0, "")):
        with pytest.raises(InputError, match="answer"):
            word_span(CONTEXT, begin, text)


def test_answers_are_the_best_legal_spans_alone_and_in_a_batch(network: Network) -> None:
    randomize(network)
    head, tokens = network.tasks["qa"].head, network.forward_features("qa", make_batch(network))
    assert isinstance(head, QuestionAnsweringHead)
    predictions, logits = head.predict(tokens), head.logits(tokens)
    for b, (raw, _) in enumerate(EXAMPLES):
        single = make_batch(network, slice(b, b + 1))
        alone = network.forward_features("qa", single)
        assert torch.equal(head.predict(alone)[0], predictions[b])
        torch.testing.assert_close(head.logits(alone)[0], logits[b, :, : alone.mask.shape[1]], rtol=1e-3, atol=1e-3)
        words = network.tasks["qa"].tokenizer.members["context"].words(raw["context"])  # pyright: ignore
        scores = head.out(alone.matrix[0].mT)[-len(words) :].tolist()
        legal = [(i, j) for i, j in product(range(len(words)), repeat=2) if i <= j < i + 4]
        best = max(legal, key=lambda span: scores[span[0]][0] + scores[span[1]][1])
        assert tuple(predictions[b].tolist()) == best
    total = head.loss(tokens, make_batch(network).target)
    parts = [
        head.loss(network.forward_features("qa", one := make_batch(network, slice(b, b + 1))), one.target)
        for b in range(3)
    ]
    torch.testing.assert_close(total, torch.stack(parts).mean(), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_head_overfits_a_batch(network: Network) -> None:
    batch = make_batch(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        network.loss("qa", batch).backward()
        optimizer.step()
    predictions = [*network.eval().evaluate_batch("qa", batch).values()]
    assert network.tasks["qa"].head.checked_metrics(predictions, TARGETS) == {"f1": 100, "exact_match": 100}


def test_scores_follow_the_rules_of_squad() -> None:
    head = QuestionAnsweringHead(D)
    target = SpanTarget(((2, 4), (2, 2)), ("the cat", "A Dog!"), "A cat the dog sat")
    # "dog" equals the second answer without article, case and punctuation. "cat the" has the word "cat" of the first.
    assert head.statistics([torch.tensor([2, 3])], [target]).tolist() == [[100, 100, 1]]
    assert head.statistics([torch.tensor([1, 3])], [target])[0, :2].tolist() == pytest.approx([200 / 3, 0])
    frames = SpanTarget(((2, 5), (9, 9)))
    scores = head.statistics([torch.tensor(span) for span in ((2, 5), (4, 7), (9, 10), (0, 0))], [frames] * 4)
    assert scores[:, 0].tolist() == pytest.approx([100, 50, 200 / 3, 0])
    assert scores[:, 1].tolist() == [100, 0, 0, 0]


def test_wrong_targets_are_named(network: Network) -> None:
    head, units = network.tasks["qa"].head, network.tasks["qa"].tokenizer.encode(EXAMPLES[0][0])
    for target in ("Bo", SpanTarget(()), SpanTarget(((3, 2),))):
        with pytest.raises(InputError, match=r"(?i)span"):
            head.encode(target)
    with pytest.raises(InputError, match="outside its context"):
        head.check_target(units, torch.tensor([1, 99]))


def test_folder_answers_with_the_words_of_the_context(tmp_path: Path) -> None:
    model = uf.load(save_model(tmp_path, "questions"))
    raws = [raw for raw, _ in EXAMPLES]
    expected = [model.predict([raw])[0] for raw in raws]
    assert model.predict(raws) == expected
    assert all(answer in raw["context"] for answer, raw in zip(expected, raws, strict=True))
