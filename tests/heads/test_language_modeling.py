"""Language modeling: loss, scores and answers against torch, padding, characters, and the model's folder."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unifier as uf
from unifier.data.dataset import Examples
from unifier.data.source import Example, SplitName
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.language_modeling import LanguageModelingHead
from unifier_tokenizers import InputError, SubwordTokenizer, Tokens, Vocabulary
from unifier_tokenizers.subwords import BOS, EOS

D = 12
TEXTS = ["to be or not to be", "that is the question", "to sleep, to dream"]
LETTERS = Vocabulary.fit(TEXTS, level="character")
PARTS = Vocabulary.fit(TEXTS, level="bpe")


def make_head(vocabulary: Vocabulary = LETTERS, unit: str = "character") -> LanguageModelingHead:
    head = LanguageModelingHead(len(vocabulary), D, vocabulary=vocabulary, unit=unit)
    torch.nn.init.normal_(head.output.weight)
    return head.eval()


@pytest.fixture
def target(tokens: Tokens) -> Tensor:
    return torch.randint(264, 270, tokens.mask.shape).masked_fill(~tokens.mask, IGNORE_INDEX)


@torch.no_grad()
def test_loss_and_scores_equal_torch(tokens: Tokens, target: Tensor) -> None:
    head = make_head()
    logits = tokens.matrix.mT @ head.output.weight.T
    loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORE_INDEX)
    torch.testing.assert_close(head.loss(tokens, target), loss)
    scores = head.metrics(head.evaluate(tokens, target), [None] * 3)
    nats = loss.item()
    assert scores == pytest.approx(
        {"nats_per_character": nats, "bits_per_character": nats / math.log(2), "perplexity": math.exp(nats)}, rel=1e-5
    )
    assert head.lower_is_better == scores.keys()
    assert head.checked_metrics(head.evaluate(tokens, target), [None] * 3) == scores
    pairs = [head.example_score(score, None) for score in head.evaluate(tokens, target)]
    assert sum(score * weight for score, weight in pairs) / sum(weight for _, weight in pairs) == pytest.approx(nats)


@torch.no_grad()
def test_answers_ignore_the_batch(tokens: Tokens, target: Tensor, single: Callable[[Tokens, int], Tokens]) -> None:
    head = make_head()
    values = target.masked_fill(target == IGNORE_INDEX, 0)
    together, answers = head.evaluate(tokens, target), head.predict_inputs(tokens, values)
    for b in range(3):
        alone = single(tokens, b)
        length = alone.mask.shape[1]
        (scored,) = head.evaluate(alone, target[b : b + 1, :length])
        assert scored.nats == pytest.approx(together[b].nats, rel=1e-5)
        (answer,) = head.predict_inputs(alone, values[b : b + 1, :length])
        assert answer.nats == pytest.approx(answers[b].nats, rel=1e-5)
        assert [token for token, _ in answer.following] == [token for token, _ in answers[b].following]
        # The answer for a new text is the loss of its ids, and the likeliest ids after its last id.
        logs = (alone.matrix[0].mT @ head.output.weight.T).log_softmax(-1)
        expected = -logs[range(length - 1), values[b, 1:length]].sum().item()
        assert answer.nats == pytest.approx(expected, rel=1e-5)
        best = logs[-1].argsort(descending=True)[:5].tolist()
        assert [p for _, p in answer.following] == pytest.approx(logs[-1, best].exp().tolist(), rel=1e-4)


@torch.no_grad()
def test_end_token_is_no_part_of_a_new_text(tokens: Tokens) -> None:
    head, ids = make_head(), torch.full(tokens.mask.shape, 266)
    (answer, *_) = head.predict_inputs(tokens, ids)
    longer = Tokens(*(functional.pad(part, (0, 1), value=1) for part in tokens))
    ends = functional.pad(ids, (0, 1), value=EOS)
    same = head.predict_inputs(longer, ends)[0]
    assert (same.tokens, same.nats) == (answer.tokens, pytest.approx(answer.nats))
    assert [token for token, _ in same.following] == [token for token, _ in answer.following]


@pytest.mark.parametrize(("vocabulary", "unit"), [(LETTERS, "character"), (PARTS, "token")])
def test_characters_are_those_of_the_text(vocabulary: Vocabulary, unit: str) -> None:
    """Neither the space that a vocabulary adds nor the end token is a character."""
    head, tokenizer = make_head(vocabulary, unit), SubwordTokenizer(vocabulary, D, begin=True)
    for text in (*TEXTS, "an é b", *([" a"] if unit == "character" else [])):
        ids = tokenizer.encode(text).values
        assert ids[0] == BOS
        tokens = Tokens(torch.randn(1, D, len(ids) - 1), torch.ones(1, len(ids) - 1, dtype=torch.bool), ids[None, None])
        (score,) = head.evaluate(tokens, ids[None, 1:])
        assert (score.characters, score.tokens) == (len(text), len(ids) - 1)
        scores = head.metrics([score], [None])
        assert scores["bits_per_character"] == pytest.approx(score.nats / score.characters / math.log(2))
        count = score.characters if unit == "character" else score.tokens
        assert scores[f"nats_per_{unit}"] == pytest.approx(score.nats / count)


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(InputError, match=r"\(3, 12\).*\(5, 12\)"):
        LanguageModelingHead(5, D, embedding=torch.nn.Embedding(3, D))
    with pytest.raises(InputError, match="num_ids=5"):
        LanguageModelingHead(5, D, vocabulary=LETTERS)
    with pytest.raises(InputError, match="unit=character"):
        LanguageModelingHead(5, D, unit="character")


class Lines:
    """A few lines of a play."""

    name = "lines"

    def split(self, name: SplitName) -> Examples[str]:
        return Examples(TEXTS, lambda text: Example(text, text), str)


def lines() -> uf.Experiment:
    """Predict the next character of each line."""
    tokenizer = SubwordTokenizer(LETTERS, 32, begin=True)
    head = LanguageModelingHead(len(LETTERS), 32, vocabulary=LETTERS, unit="character")
    task = uf.Task(Lines(), tokenizer, head, objective=uf.NextToken())
    training = uf.Training(steps=150, learning_rate=0.01, num_validations=1)
    return uf.Experiment(uf.Transformer(32, 2, 2, 64), {"text": task}, training)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_trained_model_scores_texts_from_its_folder(tmp_path: Path) -> None:
    (result,) = uf.run(lines, out=tmp_path, track="off")
    assert result.metrics["test/text/nats_per_character"] < 0.3
    model = uf.load(result.folder)
    known, unknown, started = model.predictions(["to be or not to be", "xq zzz", "that is the questio"])
    assert known.nats < 0.3 * known.tokens < unknown.nats
    assert started.following[0][0] == "n"
    assert "nats per character; next: n" in model.predict(["that is the questio"])[0]
