"""Replaced token detection: loss against its definition, samples of the generator, padding, and the model's folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unifier as uf
from unifier.cli import main
from unifier.config import load_experiment
from unifier.heads.head import IGNORE_INDEX
from unifier.heads.masked_language_modeling import MASK
from unifier.heads.replaced_token_detection import ReplacedTokenDetectionHead
from unifier_tokenizers import InputError, PatchTokenizer, SubwordTokenizer, Tokens, Vocabulary

D = 12
VOCABULARY = Vocabulary.fit(["the cat sat on the mat and a dog ran to the park"], level="word", extra=(MASK,))


def make_head() -> tuple[ReplacedTokenDetectionHead, SubwordTokenizer, uf.Transformer]:
    tokenizer, trunk = SubwordTokenizer(VOCABULARY, D), uf.Transformer(D, 1, 2, 20)
    head = ReplacedTokenDetectionHead(VOCABULARY, D, embedding=tokenizer.embedding, generator_depth=1)
    head.attach_trunk(trunk)
    head.attach_tokenizer(tokenizer)
    return head.eval(), tokenizer.eval(), trunk.eval()


@torch.no_grad()
def test_loss_adds_generator_and_fifty_times_the_answers(tokens: Tokens, hidden_target: Tensor) -> None:
    head, tokenizer, trunk = make_head()
    embedded: list[Tensor] = []
    embed = tokenizer.embed
    tokenizer.embed = lambda values, positions: embedded.append(values) or embed(values, positions)
    loss = head.loss(tokens, hidden_target)
    (ids,) = embedded
    is_hidden = hidden_target != IGNORE_INDEX
    assert (ids[~is_hidden] == 0).all()
    generated = head.generator(tokens._replace(matrix=head.shrink(tokens.matrix.mT).mT))
    logits = head.hidden_words.transform(head.expand(generated.matrix.mT)) @ tokenizer.embedding.weight.T
    expected = functional.cross_entropy(logits.flatten(0, 1), hidden_target.flatten())
    matrix = tokens.matrix.clone()
    for b, n in is_hidden.nonzero().tolist():
        matrix[b, :, n] = embed(ids[b : b + 1], tokens.positions[b : b + 1])[0, :, n]
    answers = head.detect(trunk(tokens._replace(matrix=matrix)).matrix.mT)[..., 0]
    replaced = (is_hidden & (ids != hidden_target)).float()
    each = functional.binary_cross_entropy_with_logits(answers, replaced, reduction="none")
    torch.testing.assert_close(loss, expected + 50 * each[tokens.mask].mean())


@pytest.mark.slow
def test_samples_follow_the_generator(tokens: Tokens, hidden_target: Tensor) -> None:
    head, tokenizer, _ = make_head()
    drawn = [head._run(tokens, hidden_target, torch.rand(6)) for _ in range(400)]  # pyright: ignore[reportPrivateUsage]
    share = torch.stack([found.is_replaced.sum() for found in drawn]).sum().item() / 2400
    # The share of replaced tokens is 1 minus the mean probability of the hidden tokens.
    probabilities = drawn[0].generator_logits.softmax(-1).gather(1, drawn[0].expected[:, None])
    assert share == pytest.approx(1 - probabilities.mean().item(), abs=0.03)
    head.loss(tokens, hidden_target).backward()
    assert tokenizer.embedding.weight.grad is not None


@torch.no_grad()
def test_answers_ignore_the_batch(
    tokens: Tokens, hidden_target: Tensor, single: Callable[[Tokens, int], Tokens]
) -> None:
    head, _, _ = make_head()
    values = torch.full(tokens.mask.shape, 5)
    together, answers = head.evaluate(tokens, hidden_target), head.predict_inputs(tokens, values)
    for b in range(3):
        alone = single(tokens, b)
        length = alone.mask.shape[1]
        torch.testing.assert_close(head.evaluate(alone, hidden_target[b : b + 1, :length])[0], together[b])
        (own,) = head.predict_inputs(alone, values[b : b + 1, :length])
        assert [p for _, p in own] == pytest.approx([p for _, p in answers[b]], rel=1e-4)
        assert len(own) == length
    scores = head.metrics(together, [None] * 3)
    examples = [head.example_score(sums, None) for sums in together]
    assert sum(score * weight for score, weight in examples) / 6 == pytest.approx(scores["hidden_accuracy"])
    with pytest.raises(InputError, match="PatchTokenizer"):
        head.attach_tokenizer(PatchTokenizer(D))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_recipe_trains_and_its_model_reports_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("\n".join(f"note {k} of {k % 7} dogs and {k % 5} cats" for k in range(100)))
    small: dict[str, Any] = {"vocabulary": 290, "dim": 16, "depth": 1, "heads": 2, "ffn_dim": 16, "piece_words": 8}
    given: dict[str, Any] = {
        "data": str(tmp_path / "notes.txt"),
        "objective": "replaced",
        "steps": 2,
        "num_validations": 1,
    }
    recipe = load_experiment("pretrain")
    [result] = uf.run(recipe, **given, **small, out=tmp_path, track="off")
    assert {name.rpartition("/")[2] for name in result.metrics} >= {"hidden_accuracy", "f1", "accuracy", "nats"}
    assert len(uf.load(result.folder).predict(["note 3 of 3 dogs"])) == 1
    for command in ("evaluate", "predict"):
        assert main([command, str(result.folder), str(tmp_path / "notes.txt"), "--out", str(tmp_path / command)]) == 0
    assert main(["show", "pretrain", *(f"{name}={value}" for name, value in {**given, **small}.items())]) == 0
    [started] = uf.run(
        recipe, **{**given, "objective": "masked"}, **small, start=str(result.folder), out=tmp_path, track="off"
    )
    assert started.lineage["tokenizers"] == ["notes"]
    student = {**given, "objective": "masked", "teacher": str(started.folder)}
    [taught] = uf.run(recipe, **student, **small, out=tmp_path, track="off")
    assert taught.status == "finished"
    assert uf.load(taught.folder).facts["parameters"] == uf.load(started.folder).facts["parameters"]
    with pytest.raises(InputError, match="predicts no hidden words"):
        uf.run(recipe, **{**student, "teacher": str(result.folder)}, **small, out=tmp_path, track="off")
    with pytest.raises(InputError, match="generator_dim=8"):
        uf.run(recipe, **{**given, "objective": "masked"}, **small, generator_dim=8, out=tmp_path, track="off")
