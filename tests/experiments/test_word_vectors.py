"""The recipe of word vectors on small texts and judgments, and the words next to a word of its model."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.experiments.test_recipes import build, only_task
from tests.small_models import save_model
from unifier import Comparison, Vocabulary, load
from unifier.cli import main
from unifier.config import list_experiments
from unifier.datasets import TextFile, WordVectorTexts
from unifier.models.word_table import read_word_table
from unifier.options import vocabulary as vocabulary_module
from unifier.trials.plan import plan_trials
from unifier_tokenizers import InputError, SubwordTokenizer, WordTokenizer

JUDGMENTS = {
    "simlex999.txt": "# Words\nking\tqueen\t9\nking\tapple\t1\nman\twoman\t8\n",
    "wordsim353.tsv": "# Words\nqueen\tapple\t1\nman\tking\t6\nking\tzebra\t3\nking\tqueen\t8.5\n",
    "questions-words.txt": ": family\n" + "man king woman queen\n" * 7,
}


def write(folder: Path) -> Path:
    (folder / "word_vectors").mkdir()
    for name, content in JUDGMENTS.items():
        (folder / "word_vectors" / name).write_text(content)
    path = folder / "kings.txt"
    path.write_text("the king and the queen like a man and a woman with an apple " * 40)
    return path


def test_texts_train_and_judgments_test(tmp_path: Path) -> None:
    path = write(tmp_path)
    source = WordVectorTexts([TextFile(path, words=8)], data=tmp_path / "word_vectors")
    assert " ".join(example.input for example in source.split("train")).strip() == path.read_text().strip()
    val, test = ([(example.input, example.target) for example in source.split(part)] for part in ("val", "test"))
    assert val[:3] == [("king queen", 9.0), ("king apple", 1.0), ("man woman", 8.0)]
    assert [len(val), len(test)] == [3 + 2, 4 + 5]
    assert test[-1] == ("man king woman", "queen")
    (tmp_path / "word_vectors" / "wordsim353.tsv").write_text("king queen 9\n")
    with pytest.raises(InputError, match=r"wordsim353\.tsv, line 1"):
        source.split("test")
    (tmp_path / "word_vectors" / "wordsim353.tsv").write_text("king\tqueen\tnan\n")
    with pytest.raises(InputError, match=r"line 1"):
        source.split("test")
    same = [TextFile(tmp_path / folder / "kings.txt", words=8) for folder in ("one", "two")]
    for text, word in zip(same, ("ape", "bee"), strict=True):
        (tmp_path / ("one" if word == "ape" else "two")).mkdir()
        (tmp_path / ("one" if word == "ape" else "two") / "kings.txt").write_text(f"{word} " * 40)
        assert len(text.split("train"))
    hashes = {WordVectorTexts(texts, data=tmp_path / "word_vectors").sha256 for texts in (same, same[1:], same[:1])}
    assert len(hashes) == 3
    with pytest.raises(InputError, match="at least one text"):
        WordVectorTexts([])


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_recipe_trains_and_its_table_starts_other_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    settings = [f"data={path}", "words=8", "dim=8", "steps=30", "learning_rate=0.05", "num_validations=1"]
    folders = ["--data", str(tmp_path), "--out", str(tmp_path), "--track", "off"]
    assert main(["run", "word_vectors", *settings, *folders]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert -100 <= metrics["test/word_vectors/similarity"] <= 100
    assert metrics["test/word_vectors/analogies"] in (0, 100)
    assert main(["neighbors", str(run), "king", "--count", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 3
    assert main(["run", "word_vectors", "data=", *folders]) == 2

    table = tmp_path / "kings.csv"
    table.write_text(
        "text,label\n" + "".join(f"the {word} zebra,{k % 2}\n" for k, word in enumerate(["king", "Queen"] * 20))
    )
    sentences = tmp_path / "kings.conll"
    sentences.write_text("The O\nking B-ruler\nzebra O\n\n" * 40)
    folder = str(run / "model")
    for recipe, data in (("text_classification", table), ("token_classification", sentences)):
        for trained in (False, True):
            tokenizer = only_task(
                build(recipe, data=str(data), dim=16, heads=2, vectors=folder, train_vectors=trained)
            ).tokenizer
            assert isinstance(tokenizer, SubwordTokenizer | WordTokenizer)
            assert isinstance(tokenizer.project, torch.nn.Linear)
            assert tokenizer.embedding.weight.requires_grad == trained
            learned = load(run).tasks["word_vectors"].tokenizer
            assert isinstance(learned, SubwordTokenizer)
            (row,), (own,) = tokenizer.vocabulary.encode("king"), learned.vocabulary.encode("king")
            cosine = torch.nn.functional.cosine_similarity(
                tokenizer.embedding.weight[row], learned.embedding.weight[own], 0
            )
            assert cosine.item() == pytest.approx(1)
            assert "66.7 % of the words of train" in capsys.readouterr().out


def test_table_of_a_model_without_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="word_vectors"):
        read_word_table(Path(save_model(tmp_path, "picture")))


def test_study_needs_a_run_for_its_own_tables() -> None:
    study = list_experiments(Path(__file__).parents[2] / "experiments" / "word_vectors_study.py")["word_vectors_study"]
    with pytest.raises(InputError, match="own"):
        study()
    comparison = study(own="runs/word_vectors/RUN")
    assert isinstance(comparison, Comparison)
    assert len([*plan_trials(comparison)]) == 5 * 2 * 3


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_glove_trains_and_its_exported_model_gives_equal_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["method=glove", f"data={write(tmp_path)}", "words=8", "dim=8", "steps=5", "num_validations=1"]
    folders = ["--data", str(tmp_path), "--out", str(tmp_path), "--track", "off"]
    assert main(["run", "word_vectors", *settings, *folders]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    assert main(["export", str(run), str(tmp_path / "exported")]) == 0
    answers = load(run).predict(["king", "man woman"])
    assert load(tmp_path / "exported").predict(["king", "man woman"]) == answers
    assert {"test/cooccurrences/similarity", "test/cooccurrences/analogies"} <= {
        *json.loads((run / "result.json").read_text())["metrics"]
    }


@pytest.mark.parametrize(("method", "counts"), [("glove", 0), ("skip-gram", 1)])
def test_words_are_counted_for_skip_gram_alone(
    method: str, counts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIFIER_DATA", str(tmp_path))
    calls: list[int] = []
    counted = vocabulary_module.count_words

    def count(vocabulary: Vocabulary, texts: Iterable[str]) -> torch.Tensor:
        calls.append(1)
        return counted(vocabulary, texts)

    monkeypatch.setattr(vocabulary_module, "count_words", count)
    build("word_vectors", method=method, data=str(write(tmp_path)), dim=8)
    assert len(calls) == counts


@pytest.mark.parametrize(("method", "setting"), [("glove", "negatives=3"), ("skip-gram", "max_count=5")])
def test_setting_of_the_other_method_is_refused(
    method: str, setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"method={method}", setting, f"data={write(tmp_path)}", "steps=5"]
    assert main(["run", "word_vectors", *settings, "--data", str(tmp_path), "--out", str(tmp_path / "runs")]) == 2
    assert setting.split("=")[0] in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
