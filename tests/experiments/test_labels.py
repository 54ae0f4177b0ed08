"""Labels of words and pixels from files of one's own to a run, its report, and the commands that read the model."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unifier as uf
from unifier.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]


def write_sentences(path: Path) -> Path:
    """Write sentences in which the words after "in" are a place, and capital letters mark a person."""
    names, places = ("Ann", "Bo", "Cy Young"), ("rome", "new york", "los angeles")
    with path.open("w") as file:
        for k in range(90):
            person, place = names[k % 3].split(), places[k // 3 % 3].split()
            tagged = [(word, "BI"[n > 0] + "-person") for n, word in enumerate(person)]
            tagged += [(f"walks{k % 7}", "O"), ("in", "O")]
            tagged += [(word, "BI"[n > 0] + "-place") for n, word in enumerate(place)]
            file.write("".join(f"{word} {label}\n" for word, label in [*tagged, (".", "O")]) + "\n")
    return path


def test_entities_are_found_evaluated_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(write_sentences(tmp_path / "places.conll"))
    settings = ["dim=32", "depth=1", "steps=60", "batch_tokens=256", "vocabulary=300", "num_validations=1"]
    assert (
        main(["run", "token_classification", f"data={data}", *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    )
    run = Path(capsys.readouterr().out.splitlines()[-1])
    scores = json.loads((run / "result.json").read_text())["metrics"]
    assert scores["test/places/f1"] > 90
    assert "<mark>" in (run / "report.html").read_text()

    text = tmp_path / "text.txt"
    text.write_text("Ann walks1 in new york.\n")
    assert main(["predict", str(run), str(text)]) == 0
    marked = "[Ann: person] walks1 in [new york: place] ."
    assert capsys.readouterr().out.splitlines()[1] == f"Ann walks1 in new york.,{marked}"
    model = uf.load(run)
    assert model.predict(["Ann walks1 in new york.", ("Ann", "walks1", "in", "new", "york", ".")]) == [marked] * 2

    assert main(["evaluate", str(run), data, "--out", str(tmp_path / "scores")]) == 0
    content = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    assert content["examples"] == 90
    assert content["scores"]["f1"]["low"] <= content["scores"]["f1"]["score"] <= content["scores"]["f1"]["high"]
    capsys.readouterr()
    for wrong, message in (("a O\nb B-thing\n", "B-thing"), ("a\n", "line 1")):
        (tmp_path / "wrong.conll").write_text(wrong)
        assert main(["evaluate", str(run), str(tmp_path / "wrong.conll"), "--out", str(tmp_path / "scores")]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_entities_start_from_hidden_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, text = str(write_sentences(tmp_path / "places.conll")), tmp_path / "own.txt"
    text.write_text("".join(f"Ann walks{k % 7} in new york , and Bo walks in rome .\n" for k in range(80)))
    settings = ["dim=32", "trunk=lstm", "depth=1", "positions=none", "batch_tokens=256", "num_validations=1"]
    options = ["--out", str(tmp_path), "--track", "off"]
    pretrain = ["unit=words", "vocabulary=300", "piece_words=12", "steps=8"]
    assert main(["run", "pretrain", f"data={text}", *pretrain, *settings, *options]) == 0
    start = capsys.readouterr().out.splitlines()[-1]
    assert main(["predict", start, "Ann walks1 in <mask> york"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["run", "token_classification", f"data={data}", f"start={start}", "steps=8", *settings, *options]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    lineage = json.loads((run / "result.json").read_text())["lineage"]
    assert lineage["tokenizers"] == ["places"]
    assert lineage["pretraining"]["tokens"] > 0
    assert main(["run", "pretrain", f"data={text}", "unit=words", "objective=spans", *options]) == 2
    assert "unit=words" in capsys.readouterr().err


def test_masks_are_predicted_evaluated_and_laid_over_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cells"
    for k in range(20):
        mask = np.zeros((10, 12), np.uint8)
        mask[k % 5 : k % 5 + 4, 2:9] = 1
        for part, pixels in (("images", 200 * mask + k), ("masks", mask)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / part / f"{k}.png")
    settings = ["dim=32", "depth=1", "steps=60", "batch_tokens=128", "num_validations=1", "learning_rate=0.01"]
    assert main(["run", "segmentation", f"data={folder}", *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((run / "result.json").read_text())["metrics"]["test/cells/iou"] > 80
    (sample,) = json.loads((run / "samples.json").read_text())["cells"][:1]
    assert {"image", "target_image", "prediction_image"} <= sample.keys()
    assert sample["prediction_image"] in (run / "report.html").read_text()

    assert main(["predict", str(run), str(folder / "images"), "--masks", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "input,shares"
    masks = sorted((tmp_path / "out").iterdir())
    written = np.array(Image.open(masks[0]))
    assert (len(masks), written.shape, set(np.unique(written))) == (20, (10, 12), {0, 1})

    assert main(["evaluate", str(run), str(folder), "--out", str(tmp_path / "scores")]) == 0
    content = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    assert (content["examples"], content["scores"]["iou"]["score"] > 80) == (20, True)
    capsys.readouterr()
    assert (
        main(["run", "segmentation", f"data={folder}", "labels=none,cell,wall", *settings, "--out", str(folder)]) == 2
    )
    assert "no training example has the class wall" in capsys.readouterr().err
    Image.new("L", (12, 9)).save(folder / "masks" / "4.png")
    assert main(["evaluate", str(run), str(folder), "--out", str(tmp_path / "scores")]) == 2
    assert "4.png has 12 x 9 pixels, but its picture has 12 x 10" in capsys.readouterr().err
    assert main(["predict", str(run), str(folder / "images"), "--top-k", "1"]) == 2


def test_numbers_of_texts_are_predicted_and_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "rooms.csv"
    table.write_text("text,price\n" + "".join(f"{'big ' * (k % 4)}room {k},{100 + 50 * (k % 4)}\n" for k in range(120)))
    settings = [f"data={table}", "columns=price", "text=text", "dim=32", "depth=1", "steps=80", "batch_tokens=256"]
    settings += ["vocabulary=300", "num_validations=1"]
    assert main(["run", "regression", *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert metrics["test/rooms/r2"] > 80
    (tmp_path / "new.csv").write_text("text,label\nbig big room 3,200\nroom 7,100\n")
    assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "input,number"
    assert [float(row.split(",")[1]) for row in rows] == pytest.approx([200, 100], abs=30)
    assert main(["evaluate", str(run), str(tmp_path / "new.csv"), "--out", str(tmp_path / "scores")]) == 0
    assert json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"]["mae"]["score"] < 30
