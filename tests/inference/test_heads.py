"""The effects of attention heads: the test of an effect, and the command on a small run."""

import csv
from itertools import product
from pathlib import Path

import pytest

from tests.heads.test_word_vectors import make_network
from unifier.analysis.attention_heads import AttentionHead
from unifier.cli import main
from unifier.inference.heads import HeadEffect, carrier, describe_carrier, judge
from unifier.models.folder import StoredModel, write_model


def make_effect(head: int | None, wrong: int, words: int = 40) -> HeadEffect:
    judged = {(sentence, 0): sentence >= wrong for sentence in range(words)}
    name = None if head is None else AttentionHead("trunk", 1, head)
    return HeadEffect(name, 50.0, None, {"gender": judged, "number": {}})


def test_carrier_is_the_head_with_the_largest_loss() -> None:
    effects = [make_effect(None, 1), make_effect(1, 2), make_effect(2, 20), make_effect(3, 12)]
    found = carrier(effects, "gender")
    assert found is effects[2]
    assert carrier(effects, "number") is None


def test_description_counts_the_judged_words() -> None:
    effects = [make_effect(None, 1), make_effect(1, 20)]
    assert "head trunk 1.1 (40 judged words" in describe_carrier(effects, "gender")
    assert "0 judged words" in describe_carrier(effects, "number")
    assert "40 judged words" in describe_carrier([make_effect(None, 1), make_effect(1, 3)], "gender")


def test_carrier_is_none_if_the_losses_are_random() -> None:
    assert carrier([make_effect(None, 1), make_effect(1, 3), make_effect(2, 5)], "gender") is None
    assert carrier([make_effect(None, 20), make_effect(1, 1)], "gender") is None  # Better without the head.


def test_p_value_equals_the_share_of_sign_changes() -> None:
    whole, without = make_effect(None, 1), make_effect(1, 6)
    losses = sum(sum(signs) >= 5 for signs in product((0, 1), repeat=5))
    assert without.p_value(whole, "gender") == pytest.approx(losses / 2**5)


def test_judge_counts_words_of_all_sentences() -> None:
    judged = judge(["Un petit chat.", "Une pomme."], ["Une petite vache.", "Des pommes."])
    assert judged["gender"] == {(0, 0): False, (0, 1): False}
    assert judged["number"] == {(0, 0): True, (0, 1): True, (1, 0): False, (1, 1): False}


@pytest.mark.slow
def test_command_scores_a_run_without_each_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "translation", "--out", str(tmp_path), "--track", "off", "--name", "r"]
    assert main([*run, "dim=16", "depth=1", "decoder_depth=1", "heads=2", "steps=2"]) == 0
    folder, out = tmp_path / "translation" / "r", tmp_path / "heads.csv"
    assert main(["heads", str(folder), "--examples", "5", "--out", str(out)]) == 0
    with out.open() as file:
        rows = [row["without head"] for row in csv.DictReader(file)]
    assert rows[0] == "none"
    assert set(rows[1:]) == {f"{part} 1.{head}" for part in ("trunk", "decoder", "cross") for head in (1, 2)}
    assert main(["heads", str(folder), "--examples", "5", "--head", "cross 1.2", "--out", str(out)]) == 0
    with out.open() as file:
        assert [row["without head"] for row in csv.DictReader(file)] == ["none", "cross 1.2"]
    capsys.readouterr()
    for options, named in (
        (["--head", "cross 9.9"], "head=cross 9.9: the model has no such head; its heads are trunk 1.1 to 1.2"),
        (["--examples", "0"], "examples=0"),
        (["--out", str(tmp_path / "no" / "a.csv")], "no/a.csv"),
    ):
        assert main(["heads", str(folder), *options]) == 2
        assert named in capsys.readouterr().err


def test_task_with_an_objective_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = make_network()
    write_model(tmp_path, StoredModel("words", network.trunk, network.tasks, 64, {}), "")  # pyright: ignore[reportArgumentType]
    assert main(["heads", str(tmp_path)]) == 2
    assert "objective SkipGram" in capsys.readouterr().err
