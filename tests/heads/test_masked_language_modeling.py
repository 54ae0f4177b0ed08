"""Masked language modeling: loss and scores against torch, padding, gaps of new texts, and the model's folder."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unifier as uf
from unifier.cli import main
from unifier.data.dataset import Examples
from unifier.data.source import Example, SplitName
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.masked_language_modeling import MASK, MaskedLanguageModelingHead, Teacher
from unifier.objectives.masked_tokens import MaskedTokens
from unifier_tokenizers import InputError, SubwordTokenizer, Tokens, Vocabulary

D = 12
TEXTS = ["the cat sat on the mat", "a dog ran to the park", "birds fly over a quiet lake"]
VOCABULARY = Vocabulary.fit(TEXTS, level="word", extra=(MASK,))


def make_head() -> MaskedLanguageModelingHead:
    return MaskedLanguageModelingHead(VOCABULARY, D, embedding=SubwordTokenizer(VOCABULARY, D).embedding)


@torch.no_grad()
def test_loss_and_scores_equal_torch(tokens: Tokens, hidden_target: Tensor) -> None:
    head = make_head().eval()
    logits = head.transform(tokens.matrix.mT) @ head.embedding.weight.T
    loss = functional.cross_entropy(logits.flatten(0, 1), hidden_target.flatten(), ignore_index=IGNORE_INDEX)
    torch.testing.assert_close(head.loss(tokens, hidden_target), loss)
    scores = head.metrics(head.evaluate(tokens, hidden_target), [None] * 3)
    right = (logits.argmax(-1) == hidden_target)[hidden_target != IGNORE_INDEX].double().mean().item()
    examples = [head.example_score(answer, None) for answer in head.evaluate(tokens, hidden_target)]
    assert sum(score * weight for score, weight in examples) / 6 == pytest.approx(100 * right)
    nats = loss.item()
    losses = {"nats": nats, "bits": nats / np.log(2), "perplexity": np.exp(nats)}
    assert scores == pytest.approx({"accuracy": 100 * right} | losses)


@torch.no_grad()
def test_answers_ignore_the_batch(
    tokens: Tokens, hidden_target: Tensor, single: Callable[[Tokens, int], Tokens]
) -> None:
    head = make_head().eval()
    values = torch.where(hidden_target != IGNORE_INDEX, head.mask_id, 5)
    together, filled = head.evaluate(tokens, hidden_target), head.predict_inputs(tokens, values)
    for b in range(3):
        alone = single(tokens, b)
        length = alone.mask.shape[1]
        (scored,) = head.evaluate(alone, hidden_target[b : b + 1, :length])
        assert (scored.expected, scored.predicted) == (together[b].expected, together[b].predicted)
        assert scored.nats == pytest.approx(together[b].nats, rel=1e-5)
        (gaps,) = head.predict_inputs(alone, values[b : b + 1, :length])
        assert len(gaps) == (hidden_target[b] != IGNORE_INDEX).sum()
        for one, other in zip(gaps, filled[b], strict=True):
            assert [word for word, _ in one] == [word for word, _ in other]
            assert [p for _, p in one] == pytest.approx([p for _, p in other], rel=1e-4)
    assert len(head.predict(tokens)[1]) == 3


def test_teacher_adds_the_cross_entropy_to_its_predictions(tokens: Tokens, hidden_target: Tensor) -> None:
    student, teacher, trunk = make_head().eval(), make_head(), uf.Transformer(D, 1, 2, 20)
    tokenizer = SubwordTokenizer(VOCABULARY, D)
    parameters, values = set(student.parameters()), torch.randint(4, 10, tokens.mask.shape) * tokens.mask
    assert torch.equal(student.loss_inputs(tokens, hidden_target, values), student.loss(tokens, hidden_target))
    student.learn_from(Teacher(tokenizer, trunk, teacher))
    assert set(student.parameters()) == parameters
    loss = student.loss_inputs(tokens, hidden_target, values)
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    output = trunk(Tokens(tokenizer.embed(values, tokens.positions), tokens.mask, tokens.positions))
    soft, own = (
        (head.logits(part.matrix.mT)[hidden_target != IGNORE_INDEX] / 2).log_softmax(-1)
        for head, part in ((teacher, output), (student, tokens))
    )
    torch.testing.assert_close(loss, student.loss(tokens, hidden_target) - 4 * (soft.exp() * own).sum(-1).mean())
    other = Vocabulary.fit(TEXTS[:1], level="word", extra=(MASK,))
    embedding = SubwordTokenizer(other, D).embedding
    with pytest.raises(InputError, match="another vocabulary"):
        MaskedLanguageModelingHead(other, D, embedding=embedding).learn_from(Teacher(tokenizer, trunk, teacher))


def test_candidates_are_the_likeliest_words(tokens: Tokens) -> None:
    head = make_head().eval()
    with torch.no_grad():
        head.embedding.weight[[0, 1, 2, 3, head.mask_id]] *= 100  # Special entries get the largest logits.
    values = torch.full(tokens.mask.shape, 5)
    values[:, 1] = head.mask_id
    logits = head.transform(tokens.matrix[:, :, 1]) @ head.embedding.weight.T
    for row, (candidates,) in zip(logits, head.predict_inputs(tokens, values), strict=True):
        words = sorted(range(4, head.mask_id), key=lambda i: -row[i].item())
        assert [word for word, _ in candidates] == VOCABULARY.tokens(words)
    values[1] = 5
    with pytest.raises(InputError, match=MASK):
        head.predict_inputs(tokens, values)
    with pytest.raises(InputError, match=r"\(3, 12\).*\(20, 12\)"):
        MaskedLanguageModelingHead(VOCABULARY, D, embedding=torch.nn.Embedding(3, D))


class Sentences:
    """A few sentences, whose targets nobody reads."""

    name = "sentences"

    def split(self, name: SplitName) -> Examples[str]:
        return Examples(TEXTS, lambda text: Example(text, ""), str)


def sentences() -> uf.Experiment:
    """Hide words of a few sentences."""
    tokenizer = SubwordTokenizer(VOCABULARY, 32)
    head = MaskedLanguageModelingHead(VOCABULARY, 32, embedding=tokenizer.embedding)
    task = uf.Task(Sentences(), tokenizer, head, objective=MaskedTokens(VOCABULARY, 0.2))
    training = uf.Training(steps=300, learning_rate=0.01, num_validations=1)
    return uf.Experiment(uf.Transformer(32, 1, 2, 64), {"text": task}, training)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_trained_model_fills_gaps_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = uf.run(sentences, out=tmp_path, track="off")
    assert result.metrics["test/text/accuracy"] > 60
    model = uf.load(result.folder)
    assert model.tasks["text"].head.embedding is model.tasks["text"].tokenizer.embedding
    answers = model.predict(["a dog <mask> to the park", "birds fly over a quiet <mask>"])
    assert [answer.split()[0] for answer in answers] == ["ran", "lake"]
    with pytest.raises(InputError, match=MASK):
        model.predict(["a dog ran"])
    folder = str(result.folder)
    capsys.readouterr()
    assert main(["predict", folder, "a dog <mask> to the park", "the cat <mask> on the <mask>", "--top-k", "2"]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert [row["input"][:5] for row in rows] == ["a dog"] * 2 + ["the c"] * 4
    assert rows[0]["word"] == "ran"
    assert float(rows[0]["probability"]) > float(rows[1]["probability"])
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    assert main(["evaluate", folder, str(tmp_path / "texts.txt"), "--out", str(tmp_path / "scores")]) == 0
    scores = json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"]
    assert scores.keys() == {"accuracy", "nats", "bits", "perplexity"}
    assert scores["nats"]["lower_is_better"]
    assert scores["accuracy"]["score"] > 60
    for command in (
        ["embed", folder, str(tmp_path / "texts.txt"), "--out", str(tmp_path / "v.npy")],
        ["report", folder],
    ):
        assert main(command) == 0
