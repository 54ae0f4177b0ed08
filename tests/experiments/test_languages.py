"""Translation of several languages by one model, and the commands that read the model."""

import json
from pathlib import Path
from typing import Any

import pytest

import unifier as uf
from tests.experiments.test_recipes import TRANSLATION, build, only_task
from unifier.cli import main
from unifier.datasets import GrammarPairs, LanguagePairs
from unifier.heads.grouped_text import GroupedText, language_of, rows_by_group
from unifier.heads.score_intervals import score_intervals
from unifier_tokenizers import InputError, MarkedText

BOTH: dict[str, Any] = TRANSLATION | {"source": "all", "target": "all"}


def grammar(*directions: tuple[str, str]) -> LanguagePairs:
    pairs = {(a, b): GrammarPairs(train=6, val=3, test=3, source=a, target=b) for a, b in directions}
    return LanguagePairs(pairs)


def test_pairs_of_all_directions_follow_their_codes() -> None:
    source = grammar(("en", "fr"), ("fr", "en"))
    train, (english, french) = source.split("train"), GrammarPairs(train=6, val=3, test=3).split("train")[0]
    assert (len(train), source.codes) == (12, ("<fr>", "<en>"))
    assert train[0] == (f"<fr> {english}", french)
    assert train[6] == (f"<en> {french}", english)
    assert isinstance(train[6].input, MarkedText)
    assert (train[6].target.groups, train[6].target.language) == (("fr-en",), "en")
    assert train[0].target.cluster == train[6].target.cluster != train[1].target.cluster
    assert source.sha256 == grammar(("en", "fr"), ("fr", "en")).sha256 != grammar(("en", "fr")).sha256


def test_text_with_a_code_is_refused() -> None:
    class Pairs:
        def split(self, name: str) -> list[uf.Example]:
            return [uf.Example("a <fr> sign", "un signe")]

    with pytest.raises(InputError, match=r"example 0.*<fr>"):
        LanguagePairs({("en", "fr"): Pairs()}).split("val")[0]


def test_scores_and_intervals_of_groups_are_those_of_their_texts() -> None:
    head = only_task(build("translation", **TRANSLATION)).head
    texts = [f"le {noun} est grand ici" for noun in ("chat", "roi", "livre", "lit")]
    targets = [GroupedText(text, ("even", "all") if k % 2 == 0 else ("all",), "fr") for k, text in enumerate(texts)]
    wrong = [texts[0], "la vache", texts[2], "le roi"]
    scores = head.checked_metrics(wrong, targets)
    assert head.signatures.keys() >= {"bleu", "bleu_even", "bleu_all"}
    assert scores["bleu_even"] == pytest.approx(100)
    assert scores["bleu_all"] == scores["bleu"] == head.checked_metrics(wrong, texts)["bleu"] < 100
    intervals = score_intervals(head, wrong, targets)
    assert intervals["bleu_even"].low == pytest.approx(100)
    assert intervals["bleu_all"] == intervals["bleu"]
    repeated = [GroupedText(text, cluster=f"c{k}") for k, text in enumerate(texts)] * 3
    assert score_intervals(head, wrong * 3, repeated)["bleu"] == intervals["bleu"]
    assert score_intervals(head, wrong * 3, texts * 3)["bleu"].low > intervals["bleu"].low
    assert rows_by_group(texts) == {}
    assert (language_of(targets, "de"), language_of(texts, "de"), language_of([*targets, "x"], "de")) == (
        "fr",
        "de",
        "de",
    )


def test_single_pair_has_no_codes() -> None:
    task = only_task(build("translation", **TRANSLATION))
    assert isinstance(task.tokenizer, uf.SubwordTokenizer)
    assert (task.tokenizer.codes, dict(task.tokenizer.vocabulary.extra)) == ((), {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "de,xx", "data": "multi30k"}, "xx"),
        ({"source": "en", "target": "en,en"}, "different"),
        ({"target": "de,fr", "data": "own.tsv"}, "multi30k"),
        ({"target": "cs,fr", "data": "multi30k", "test": "2017"}, "2017"),
    ],
)
def test_languages_that_do_not_exist_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("translation", **TRANSLATION, **settings)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "few_examples")
def test_one_model_writes_the_language_of_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"{name}={value}" for name, value in BOTH.items()]
    settings += ["steps=2", "num_validations=1", "beam_width=1", "r_drop=0"]
    assert main(["run", "translation", *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    run = capsys.readouterr().out.splitlines()[-1]
    scores = json.loads((Path(run) / "result.json").read_text())["metrics"]
    assert scores.keys() >= {f"test/languages/{name}" for name in ("bleu", "bleu_en-fr", "bleu_fr-en", "chrf_fr-en")}
    text = tmp_path / "text.txt"
    text.write_text("the <fr> cat sings.\n")
    model = uf.load(run)
    vocabulary = uf.Translator(model, to="en").tokenizer.vocabulary
    for language in ("fr", "en"):
        units = uf.Translator(model, to=language).encode("the <fr> cat sings.")
        assert [i for i in units.values.tolist() if i > 3 and vocabulary.is_special(i)] == [
            vocabulary.extra[f"<{language}>"]
        ]
    assert main(["translate", run, str(text), "--to", "fr"]) == 0
    assert main(["predict", run, "<fr> the cat sings."]) == 0
    assert main(["show", "translation", *settings]) == 0
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("<fr> the cat sings.\tle chat chante.\n<en> le chat chante.\tthe cat sings.\n")
    assert main(["evaluate", run, str(pairs), "--out", str(tmp_path / "scores")]) == 0
    capsys.readouterr()
    plain = tmp_path / "plain.txt"
    plain.write_text("the cat sings.\n")
    for command in (
        ["translate", run, str(text)],
        ["translate", run, str(text), "--to", "de"],
        ["predict", run, str(plain)],
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "fr" in error
        assert "en" in error
    card = (Path(run) / "model" / "README.md").read_text()
    assert "<fr>" in card.replace("&lt;", "<")


@pytest.mark.slow
def test_language_is_refused_for_a_model_of_one_pair(translation_model: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two\n")
    assert main(["translate", translation_model, str(text), "--to", "fr"]) == 2


@pytest.fixture
def translation_model(tmp_path: Path) -> str:
    from tests.small_models import save_model

    return save_model(tmp_path, "translation")


def test_recase_is_a_setting_of_the_tokenizer() -> None:
    given = ({"recase": False}, {})
    tokenizers = [only_task(build("translation", **TRANSLATION, **each)).tokenizer for each in given]
    assert [getattr(tokenizer, "recase", None) for tokenizer in tokenizers] == [False, True]
