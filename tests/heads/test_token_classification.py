"""Labels of tokens: loss and predictions against plain loops, and entities against seqeval."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from seqeval.metrics import classification_report, f1_score, precision_score, recall_score
from torch.nn.utils.rnn import pad_sequence

from unifier.data.encoding import encode_split
from unifier.data.source import Example
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.score_intervals import score_intervals
from unifier.heads.summed_metrics import percent
from unifier.heads.token_classification import TokenClassificationHead, best_paths
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import InputError, Tokens, Vocabulary, WordTokenizer

D = 12
BIO, CLASSES = ("B-x", "B-y", "I-x", "I-y", "O"), ("C", "E", "H")
BIO_TARGETS = [
    ["O", "B-x", "I-x", "I-x", "O", "B-y", "B-y", "I-y", "O"],
    ["O", "O", "B-x"],
    ["B-y", "O", "B-x", "I-x", "O"],
]
CLASS_TARGETS = ["CCEEEHHCC", ("C", None, "H"), [0, 1, 2, None, "C"]]
BOTH = pytest.mark.parametrize(("labels", "targets"), [(BIO, BIO_TARGETS), (CLASSES, CLASS_TARGETS)])


def padded(head: TokenClassificationHead, targets: Sequence[Sequence[str]]) -> torch.Tensor:
    return pad_sequence([head.encode(target) for target in targets], batch_first=True, padding_value=IGNORE_INDEX)


@pytest.mark.slow
@BOTH
def test_head_overfits_a_batch(labels: Sequence[str], targets: Sequence[Sequence[str]], tokens: Tokens) -> None:
    head, trunk = TokenClassificationHead(labels, D), Transformer(D, 1, 2, 20)
    optimizer = torch.optim.Adam([*head.parameters(), *trunk.parameters()], lr=0.02)
    for _ in range(80):
        optimizer.zero_grad()
        head.loss(trunk(tokens), padded(head, targets)).backward()
        optimizer.step()
    predictions = head.predict(trunk(tokens))
    assert set(head.checked_metrics(predictions, targets).values()) == {100}
    assert [len(prediction) for prediction in predictions] == [len(target) for target in targets]


@BOTH
def test_loss_and_predictions_ignore_padding(
    labels: Sequence[str],
    targets: Sequence[Sequence[str]],
    tokens: Tokens,
    single: Callable[[Tokens, int], Tokens],
) -> None:
    head = TokenClassificationHead(labels, D, label_smoothing=0.1)
    target, total, count = padded(head, targets), torch.tensor(0.0), 0
    for b, prediction in enumerate(head.predict(tokens)):
        alone, own = single(tokens, b), head.encode(targets[b])
        assert torch.equal(head.predict(alone)[0], prediction)
        labeled = int((own != IGNORE_INDEX).sum())
        total, count = total + head.loss(alone, own[None]) * labeled, count + labeled
    torch.testing.assert_close(head.loss(tokens, target), total / count)
    assert head.loss(tokens, torch.full_like(target, IGNORE_INDEX)) == 0, "no token has a label"


def test_entities_are_scored_as_by_seqeval(random_tokens: Callable[..., Tokens]) -> None:
    head, generator = TokenClassificationHead(BIO, D), torch.Generator().manual_seed(0)
    lengths = tuple(range(1, 12)) * 5
    targets = [[BIO[i] for i in torch.randint(5, (n,), generator=generator)] for n in lengths]
    guesses = [torch.where(torch.rand(n) < 0.6, head.encode(t), 4) for n, t in zip(lengths, targets, strict=True)]
    named = [[BIO[i] for i in guess.tolist()] for guess in guesses]
    expected = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    metrics = head.checked_metrics(guesses, targets)
    assert metrics == {name: pytest.approx(100 * score(targets, named)) for name, score in expected.items()}
    interval = score_intervals(head, guesses, targets)["f1"]
    assert 0 < interval.low < metrics["f1"] < interval.high < 100


def test_accuracy_counts_labeled_tokens_only() -> None:
    head = TokenClassificationHead(CLASSES, D)
    guesses = [torch.tensor([0] * 9), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2, 2, 0])]
    assert head.checked_metrics(guesses, CLASS_TARGETS) == {"accuracy": pytest.approx(100 * (4 + 1 + 4) / 15)}
    scores = [head.example_score(*pair) or (0, 0) for pair in zip(guesses, CLASS_TARGETS, strict=True)]
    assert sum(score * weight for score, weight in scores) / 15 == pytest.approx(100 * (4 + 1 + 4) / 15)
    assert head.describe(guesses[1]) == "CEE"


def test_types_of_entities_are_counted_as_by_seqeval() -> None:
    head, generator = TokenClassificationHead(BIO, D), torch.Generator().manual_seed(0)
    guesses = [torch.where(torch.rand(len(t), generator=generator) < 0.6, head.encode(t), 4) for t in BIO_TARGETS * 5]
    named = [[BIO[i] for i in guess.tolist()] for guess in guesses]
    report: Any = classification_report(BIO_TARGETS * 5, named, output_dict=True)
    counts = head.class_counts(guesses, BIO_TARGETS * 5)
    assert list(counts) == ["x", "y"]
    for kind, (right, predicted, true) in counts.items():
        assert true == report[kind]["support"]
        assert percent(right, predicted) == pytest.approx(100 * report[kind]["precision"])
        assert percent(right, true) == pytest.approx(100 * report[kind]["recall"])


def test_labels_of_tokens_without_a_true_label_are_not_counted() -> None:
    head = TokenClassificationHead(CLASSES, D)
    counts = head.class_counts([torch.tensor([0, 1, 1]), torch.tensor([2, 2])], [["C", None, "H"], ["H", "C"]])
    assert counts == {"C": (1, 1, 2), "E": (0, 1, 0), "H": (1, 2, 2)}


def test_best_paths_equal_a_search_over_all_paths() -> None:
    rng, head = np.random.default_rng(0), TokenClassificationHead(BIO, D)
    transitions = head._transitions()  # pyright: ignore[reportPrivateUsage]
    scores, mask = rng.normal(size=(30, 4, 5)).astype(np.float32), np.arange(4) < rng.integers(1, 5, (30, 1))
    for path, score, real in zip(best_paths(scores, mask, transitions), scores, mask, strict=True):
        n = int(real.sum())
        own = score[:n]

        def total(labels: tuple[int, ...], own: np.ndarray = own) -> float:
            pairs = zip((-1, *labels), labels, strict=False)
            return own[range(len(own)), labels].sum() + sum(transitions[pair] for pair in pairs)

        assert tuple(path[:n]) == max(itertools.product(range(5), repeat=n), key=total)


def test_entities_are_marked_in_the_text() -> None:
    head = TokenClassificationHead(BIO, D)
    words, labels = ["He", "saw", "New", "York", "and", "Rome"], ["O", "O", "B-x", "I-x", "O", "B-y"]
    assert head.mark(words, head.encode(labels)) == "He saw [New York: x] and [Rome: y]"
    assert head.describe(head.encode(labels)) == "O O B-x I-x O B-y"


def test_labels_must_fit_the_words() -> None:
    head = TokenClassificationHead(BIO, D)
    tokenizer = WordTokenizer(Vocabulary.fit(["a b"], size=260), D)
    for bad in ([Example(("a", "b"), ["O"])], [Example(("a", "b"), ["O", "B-z"])], [Example("a", 3)]):
        with pytest.raises(InputError, match=r"example 0.*label"):
            encode_split(bad, tokenizer, head)
    split, skipped = encode_split([*bad, Example("a", ["O"])], tokenizer, head, bad_examples="skip")
    assert (len(split), len(skipped)) == (1, 1)
    with pytest.raises(InputError, match="2 predicted labels for a target of 1"):
        head.metrics([torch.zeros(2)], [["O"]])
    wrong: list[Any] = [(), ("a",), ("a", "a"), (1, 2)]
    for labels in wrong:
        with pytest.raises(InputError, match="label"):
            TokenClassificationHead(labels, D)


def test_training_labels_are_checked() -> None:
    head, tokenizer = TokenClassificationHead(BIO, D), WordTokenizer(Vocabulary.fit(["a"], size=260), D)
    for wrong in (("I-x",), ("B-y", "I-x"), ("B-x", "O", "I-x")):
        with pytest.raises(InputError, match=r"example 0.*I-x after .* continues no entity: begin .* with B-x"):
            encode_split([Example(("a",) * len(wrong), wrong)], tokenizer, head)
    for own, targets in ((head, [["B-x", "I-x"], ["B-y", "I-y"]]), (TokenClassificationHead(CLASSES, D), [["C", "E"]])):
        with pytest.raises(InputError, match=r"no training example has the class [OH]:"):
            own.check_trained([own.encode(target) for target in targets])
    head.check_trained([head.encode(["B-x", "I-x", "O", "B-y", "I-y"])])
