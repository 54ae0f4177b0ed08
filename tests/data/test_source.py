"""What a set says its scores mean, beside those who ought to know."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from unifier import Experiment, MeanAttentionTrunk, ScoreRange, Task, Training, run
from unifier.data.dataset import Subset
from unifier.data.prepare import describe_data
from unifier.data.source import Example, Source, SplitName, name_of
from unifier.datasets import digits
from unifier.datasets.digits import Digits
from unifier.datasets.grammar import GrammarPairs
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.transformer_decoder import TranslationHead
from unifier.inference.inspect import show_experiment
from unifier_tokenizers import InputError, PatchTokenizer, Units, Vocabulary


class Bare:
    """A source that says nothing of its scores."""

    name = "bare"

    def split(self, name: SplitName) -> list[Example]:
        return [Example(name, "a")]


def test_the_reference_of_digits_is_what_scikit_learn_s_example_finds() -> None:
    pictures, labels = cast(Any, load_digits(return_X_y=True))
    halves: Any = train_test_split(pictures, labels, test_size=0.5, shuffle=False)
    accuracy = cast(Any, SVC)(gamma=0.001).fit(halves[0], halves[2]).score(halves[1], halves[3])
    assert Digits.score_range.reference == round(100 * accuracy)


def test_saying_the_truth_about_embedded_data_scores_its_reference() -> None:
    music = {task: SyntheticMusic(train=1, val=1, test=20, seconds=1.0, target=task) for task in ("genre", "tags")}
    head: Any
    for task, head in (
        ("genre", ClassificationHead(music["genre"].labels, 4)),
        ("tags", TaggingHead(music["tags"].labels, 4)),
    ):
        targets = [example.target for example in music[task].split("test")]
        encoded = torch.stack([head.encode(target) for target in targets])
        certain = torch.eye(len(head.labels))[encoded] if task == "genre" else encoded
        scale = music[task].score_range
        assert head.metrics(list(certain), targets)[scale.metric] == scale.reference
        guessing = head.metrics(list(torch.ones_like(certain)), targets)
        assert guessing[scale.metric] == pytest.approx(scale.chance)
    pairs = GrammarPairs(train=200, val=5, test=20)
    targets = [example.target for example in pairs.split("test")]
    head = TranslationHead(Vocabulary.fit(targets, size=300), 8, depth=1, heads=2, ffn_dim=8)
    assert head.metrics(targets, targets)[pairs.score_range.metric] == pytest.approx(pairs.score_range.reference)
    assert head.metrics(["" for _ in targets], targets)[pairs.score_range.metric] == pairs.score_range.chance


@pytest.mark.parametrize(("chance", "reference"), [(0.08, 0.001), (50.0, 50.0), (0.0, float("nan"))])
def test_a_reference_is_above_chance(chance: float, reference: float) -> None:
    with pytest.raises(InputError, match="higher is better: give errors a minus"):
        ScoreRange("mse", chance, reference, "a paper")
    assert ScoreRange("mse", -0.08, -0.001, "a paper").reference == -0.001


def test_a_scale_and_folds_that_are_none_are_told_before_anything_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(Bare):
        score_range = ("accuracy", 0.0, 99.0, "a paper")
        folds = 4

    def encoded(raw: Any) -> Units:
        raise AssertionError("encoded already")

    def odd(*, fold: int = 1) -> Experiment:
        tokenizer = PatchTokenizer(4, channels=1)
        monkeypatch.setattr(tokenizer, "encode", encoded)
        task = Task(Odd(), tokenizer, ClassificationHead(("a", "b"), 4))
        return Experiment(MeanAttentionTrunk(4, 1, 4), {"odd": task}, Training(steps=1), name="odd")

    with pytest.raises(InputError, match=r"bare: its score_range is a tuple"):
        run(odd, out=tmp_path, track="off")
    with pytest.raises(InputError, match=r"bare says folds = 4: give their numbers, such as \(1, 2, 3\)"):
        run(odd, out=tmp_path, track="off", folds=4)


class Nameless:
    """A source that has what the contract asks for, and no more."""

    folds = (0, 1)

    def split(self, name: SplitName) -> list[Example]:
        return list(Digits().split(name)[:8])


def test_a_source_without_a_name_is_called_as_its_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: object
) -> None:
    def nameless(*, fold: int = 0) -> Experiment:
        task = Task(Nameless(), PatchTokenizer(4, channels=1), ClassificationHead(Digits.labels, 4))
        return Experiment(
            MeanAttentionTrunk(4, 1, 4),
            {"own": task},
            Training(steps=1, num_validations=1, num_workers=0),
            name="nameless",
        )

    show_experiment(nameless())
    assert "task own: Nameless" in capsys.readouterr().out
    (result,) = run(nameless, out=tmp_path, track="off")
    assert result.data["own"]["name"] == "Nameless"
    with pytest.raises(InputError, match="folds=3: Nameless has 2 folds"):
        run(nameless, out=tmp_path, track="off", folds=3)
    assert Subset(Nameless(), 0.5).name == "Nameless"
    assert [name_of(source) for source in (Bare(), cast(Source, Nameless), cast(Source, digits))] == [
        "bare",
        "Nameless",
        digits.__name__,
    ]


def test_a_result_holds_the_scale_or_says_that_there_is_none() -> None:
    assert describe_data(Digits(), {})["score_range"] == {
        "metric": "accuracy",
        "chance": 10.0,
        "reference": 97.0,
        "origin": Digits.score_range.origin,
    }
    assert describe_data(Bare(), {})["score_range"] is None
