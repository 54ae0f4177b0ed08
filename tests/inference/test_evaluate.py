"""`unifier evaluate`: scores, intervals and class scores of labeled data, compared with scikit-learn."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support, roc_auc_score

from tests.small_models import PARTS, SOUND, VOCABULARY, D, save_model
from unifier import (
    ClassificationHead,
    FrameTokenizer,
    Mixture,
    PatchTokenizer,
    QuestionAnsweringHead,
    TaggingHead,
    TokenClassificationHead,
    TokenDetectionHead,
    TranslationHead,
    WordTokenizer,
    load,
)
from unifier.cli import main
from unifier.inference.evaluate import Evaluation, describe_score

LABELS = ["circle", "line", "square"]
pytestmark = pytest.mark.usefixtures("undrawn")


def shapes() -> tuple[Any, Any]:
    return PatchTokenizer(D), ClassificationHead(LABELS, D)


def picture(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Return a folder with 20 pictures of circles and 10 squares, and no lines."""
    for seed in range(30):
        folder = tmp_path / "data" / ("square" if seed % 3 == 0 else "circle")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(seed)).save(folder / f"{seed:02}.png")
    return tmp_path / "data"


def evaluation(model: str, data: Path | str, out: Path, *options: str) -> dict[str, Any]:
    assert main(["evaluate", model, str(data), "--out", str(out), *options]) == 0
    return json.loads((out / "evaluation.json").read_text(encoding="utf-8"))


def test_class_folders_have_the_scores_of_scikit_learn(
    classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path, shapes=shapes())
    found = evaluation(model, classes, tmp_path / "out")
    files = sorted(classes.glob("*/*.png"))
    true = [path.parent.name for path in files]
    predicted = [LABELS[int(p.argmax())] for p in load(model).predictions(files)]
    accuracy = found["scores"]["accuracy"]
    assert accuracy["score"] == pytest.approx(100 * accuracy_score(true, predicted))
    assert accuracy["low"] < accuracy["score"] < accuracy["high"]
    assert found["confusion"]["counts"] == confusion_matrix(true, predicted, labels=LABELS).tolist()
    expected = precision_recall_fscore_support(true, predicted, labels=LABELS, zero_division=np.nan)  # pyright: ignore[reportArgumentType]
    for k, name in enumerate(("precision", "recall", "f1")):
        scores = [row[name] or np.nan for row in found["classes"]]
        np.testing.assert_allclose(np.nan_to_num(scores), 100 * np.nan_to_num(np.asarray(expected[k])), atol=1e-9)
    page = (tmp_path / "out" / "evaluation.html").read_text(encoding="utf-8")
    assert "Content-Security-Policy" in page
    assert "data:image/svg+xml" in page
    assert str(tmp_path / "out" / "evaluation.html") in capsys.readouterr().out


@pytest.mark.slow
def test_bad_lines_and_training_questions_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"question": "one", "context": "one two three", "answers": ["two"]}
    lines = [good, {"question": "no context"}, {**good, "answers": []}, {**good, "answers": "two"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = save_model(tmp_path, "questions")
    assert main(["evaluate", model, str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out")]) == 2
    assert "a.jsonl, line 2" in capsys.readouterr().err
    found = evaluation(model, tmp_path / "a.jsonl", tmp_path / "out", "--bad-inputs", "skip")
    assert (found["examples"], found["skipped"]) == (2, 2)
    paragraph = {
        "context": "one two three",
        "qas": [{"question": "one", "answers": [{"text": "two", "answer_start": 4}]}],
    }
    articles = [{"split": split, "paragraphs": [paragraph]} for split in ("train", "val", "test")]
    (tmp_path / "squad.json").write_text(json.dumps({"data": articles}))
    assert evaluation(model, tmp_path / "squad.json", tmp_path / "out")["examples"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("stack", [2, 4])
def test_questions_about_sounds_have_times_as_labels(
    stack: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sounds = FrameTokenizer(D, sample_rate=8000, stack=stack).fit([SOUND])
    asked = Mixture({"question": WordTokenizer(VOCABULARY, D), "context": sounds})
    model = save_model(tmp_path, digits=(asked, QuestionAnsweringHead(D)))
    soundfile.write(tmp_path / "a.wav", np.sin(np.arange(8000) / 3), 8000)
    question = {"question": "one", "context": str(tmp_path / "a.wav")}
    begin, end = map(float, load(model).predict([question])[0].split("-"))
    right = f"{begin + 1e-4:.4f}-{end + 1e-4:.4f}"
    table = tmp_path / "a.csv"
    other = "0-0.04" if end > 0.1 else "0.5-0.9"
    rows = [("test", right), ("test", f"{other};{right}"), ("test", other), ("train", right)]
    table.write_text("question,context,split,label\n" + "".join(f"one,a.wav,{a},{b}\n" for a, b in rows))
    found = evaluation(model, table, tmp_path / "out")
    assert found["scores"]["exact_match"]["score"] == pytest.approx(200 / 3)
    for wrong in ("0.5", "0.9-0.5", "a-b", "", "9-9.5", f"{right};0.9-1.2"):
        table.write_text(f"question,context,label\none,a.wav,{right}\none,a.wav,{wrong}\n")
        assert main(["evaluate", model, str(table), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "a.csv, line 3" in error
    assert evaluation(model, table, tmp_path / "out", "--bad-inputs", "skip")["skipped"] == 1
    table.write_text("question,context,label\none,a.wav,0.8-1.0\n")
    assert evaluation(model, table, tmp_path / "out")["examples"] == 1, "a span may end with its sound"


@pytest.mark.parametrize("kind", ["boxes", "symbols", "words"])
def test_folder_for_a_head_without_classes_is_one_line(
    kind: str, classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    boxes = PatchTokenizer(D), TokenDetectionHead(LABELS, D, patch=16)
    caption = PatchTokenizer(D), TranslationHead(VOCABULARY, D, depth=1, heads=2)
    parts = {"boxes": boxes, "words": caption}
    model = save_model(tmp_path, **({kind: parts[kind]} if kind in parts else {"symbols": PARTS["symbols"]()}))
    assert main(["evaluate", model, str(classes), "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{classes} is a folder" in err


def test_types_of_entities_have_scores_of_their_own() -> None:
    head = TokenClassificationHead(["B-x", "I-x", "B-y", "I-y", "O"], D)
    (first, second) = Evaluation(head, [torch.tensor([0, 1, 4, 0])], [["B-x", "I-x", "O", "B-y"]]).class_scores()
    assert first == {"label": "x", "examples": 1, "predicted": 2, "precision": 50, "recall": 100, "f1": 200 / 3}
    assert second == {"label": "y", "examples": 1, "predicted": 0, "precision": None, "recall": 0, "f1": 0}


def test_score_that_is_not_a_number_is_described_in_words() -> None:
    described = describe_score("error_rate", {"score": math.nan, "lower_is_better": True})
    assert "nan" not in described
    assert described != describe_score("error_rate", {"score": 1.0, "lower_is_better": True})


@pytest.mark.slow
def test_clips_are_evaluated_from_a_table_but_not_from_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, clips = save_model(tmp_path, "clip"), tmp_path / "clips"
    (clips / "red").mkdir(parents=True)
    np.save(clips / "red" / "1.npy", np.zeros((4, 8, 8, 3), np.uint8))
    assert main(["evaluate", model, str(clips), "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(clips) in err
    assert not (tmp_path / "out").exists()
    (clips / "table.csv").write_text("file,label\nred/1.npy,red\n")
    assert evaluation(model, clips / "table.csv", tmp_path / "out")["examples"] == 1


@pytest.mark.slow
def test_table_has_tags_and_a_test_split(classes: Path, tmp_path: Path) -> None:
    model = save_model(tmp_path, shapes=(PatchTokenizer(D), TaggingHead(["odd", "third"], D)))
    files = sorted(classes.glob("*/*.png"))
    tags = [["odd"] * (int(path.stem) % 2) + ["third"] * (int(path.stem) % 3 == 0) for path in files]
    rows = [f"{path.relative_to(classes)},{'; '.join(tag)},test" for path, tag in zip(files, tags, strict=True)]
    (classes / "tags.csv").write_text("\n".join(["file,label,split", "missing.png,odd,train", *rows]))
    found = evaluation(model, classes / "tags.csv", tmp_path / "out")
    scores = torch.stack(list(load(model).predictions(files)))
    for c, row in enumerate(found["classes"]):
        expected = [row["label"] in tag for tag in tags]
        assert row["examples"] == sum(expected)
        assert row["auc"] == pytest.approx(roc_auc_score(expected, scores[:, c]))
    assert found["scores"]["macro_auc"]["score"] == pytest.approx(np.mean([row["auc"] for row in found["classes"]]))


@pytest.mark.slow
def test_pairs_of_texts_are_translated_and_bad_pairs_are_counted(tmp_path: Path) -> None:
    model = save_model(tmp_path, "translation")
    (tmp_path / "a.en").write_text("one two\nfour\n\nsix\n")
    (tmp_path / "a.de").write_text("one two\nfour\nfive\nsix\n")
    data = f"{tmp_path / 'a.en'},{tmp_path / 'a.de'}"
    found = evaluation(model, data, tmp_path / "out", "--bad-inputs", "skip")
    assert (found["examples"], found["skipped"]) == (3, 1)
    assert 0 <= found["scores"]["bleu"]["score"] <= 100
    assert found["classes"] == []


@pytest.mark.parametrize(
    ("data", "options", "named"),
    [
        ("missing", [], "missing"),
        ("empty", [], "empty"),
        ("unknown", [], "triangle"),
        ("text.csv", [], "column"),
        ("broken.csv", [], "broken.csv, line 2"),
        ("labels.csv", [], "triangle"),
        ("notes.txt", [], "notes.txt"),
        ("labels.csv", ["--out", "notes.txt"], "notes.txt is a file"),
        ("labels.csv", ["--languages", "en"], "languages=en"),
        ("train.csv", [], "no examples"),
    ],
)
def test_bad_data_is_one_line(
    data: str,
    options: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "unknown" / "triangle").mkdir(parents=True)
    Image.fromarray(picture(0)).save(tmp_path / "unknown" / "triangle" / "1.png")
    contents = {"text.csv": "text,label\na,b\n", "broken.csv": "file,label\nno.png,line\n", "notes.txt": "a"}
    contents |= {
        "labels.csv": "file,label\nunknown/triangle/1.png,triangle\n",
        "train.csv": "file,label,split\na,b,train\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    model = save_model(tmp_path, shapes=shapes())
    assert main(["evaluate", model, data, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert named in err
    assert not (tmp_path / "evaluation").exists()
