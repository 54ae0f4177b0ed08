"""Questions from a file of one's own to a run, its report, and the commands that read the model."""

import json
from pathlib import Path
from typing import Any

import pytest

import unifier as uf
from tests.experiments.test_recipes import SMALL, build
from unifier.cli import main
from unifier.data.source import SPLITS
from unifier.datasets import QuestionFile
from unifier.heads.question_answering import SpanTarget
from unifier.serving.schema import PredictRequest
from unifier.serving.service import PredictionService
from unifier_tokenizers import InputError

pytestmark = pytest.mark.usefixtures("undrawn")


def rows() -> list[dict[str, Any]]:
    """Return questions whose answer is the place after "in"."""
    names, places = ("Ann", "Bo", "Cy"), ("rome", "new york", "paris", "los angeles")
    return [
        {
            "question": f"where is {name}",
            "context": f"Today {name} walks in {place}, {k} days.",
            "answers": [place] if k % 2 else [{"text": place, "answer_start": len(f"Today {name} walks in ")}],
        }
        for k in range(6)
        for name in names
        for place in places
    ]


def write(path: Path, content: list[dict[str, Any]]) -> str:
    if path.suffix == ".jsonl":
        path.write_text("\n".join(f"{json.dumps(row)}\n" for row in content))  # Empty lines are skipped.
    else:
        paragraphs = [{"context": row["context"], "qas": [{"id": "q", **row}]} for row in content]
        path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return str(path)


def test_both_formats_have_equal_examples_and_contexts_are_in_one_split(tmp_path: Path) -> None:
    doubled = [row for row in rows() for _ in range(2)]
    doubled[0] = doubled[1] = {**doubled[0], "answers": "rome"}  # A single text is one answer.
    sources = [QuestionFile(write(tmp_path / f"own{suffix}", doubled)) for suffix in (".jsonl", ".json")]
    for split in SPLITS:
        first, second = ([*source.split(split)] for source in sources)
        assert first == second
        assert isinstance(first[0].target, SpanTarget)
        assert len(first) % 2 == 0
    contexts = [{each.input["context"] for each in sources[0].split(part)} for part in SPLITS]
    assert not contexts[0] & (contexts[1] | contexts[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": ["berlin"]}, "line 5: the context has no answer 'berlin': correct"),
        ({"answers": [{"text": "rome", "answer_start": 2}]}, "line 5: the context has no answer 'rome' at character 2"),
        ({"answers": [{"text": "rome", "answer_start": 10**6}]}, "line 5: the context has no answer"),
        ({"answers": []}, "line 5: the question has no answers"),
        ({"answers": 3}, "line 5: an object with"),
        ({"question": None}, "line 5: an object with"),
    ],
)
def test_wrong_questions_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    content = rows()
    content[2] |= change
    source = QuestionFile(write(tmp_path / "own.jsonl", content))
    with pytest.raises(InputError, match=message):
        [each for part in SPLITS for each in source.split(part)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["span", "write"])
def test_answers_are_found_or_written(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "places.jsonl", rows())
    settings = [
        f"data={data}",
        f"how={how}",
        "dim=32",
        "depth=1",
        f"steps={100 if how == 'span' else 10}",
        "batch_tokens=512",
        "vocabulary=300",
    ]
    settings += ["num_validations=1", "learning_rate=0.01", "dropout=0.0"]
    assert main(["run", "question_answering", *settings, "--out", str(tmp_path), "--track", "off"]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    scores = json.loads((run / "result.json").read_text())["metrics"]
    assert list(scores)[-2:] == ["test/places/f1", "test/places/exact_match"]
    if how == "span":
        assert scores["test/places/f1"] > 90
        page = (run / "report.html").read_text()
        assert "<mark>" in page
        assert "<dt>question</dt><dd>where is" in page
        question = {"question": "where is Bo", "context": "Today Bo walks in new york, 3 days."}
        assert main(["predict", str(run), write(tmp_path / "new.jsonl", [question]), "--format", "jsonl"]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == "new york"
        assert main(["embed", str(run), str(tmp_path / "new.jsonl"), "--out", str(tmp_path / "v.npy")]) == 0
        service = PredictionService(uf.load(run))
        answer = service.submit(service.prepare(PredictRequest(inputs=[question]))).result()
        assert answer.predictions[0].text == "new york"
        service.close()
        (tmp_path / "wrong.jsonl").write_text('{"question": "where"}\n')
        assert main(["predict", str(run), str(tmp_path / "wrong.jsonl")]) == 2
        assert "context" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["evaluate", str(run), data, "--out", str(tmp_path / "scores")]) == 0
    content = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    assert content["examples"] == len(rows())
    assert content["scores"]["f1"]["low"] <= content["scores"]["f1"]["score"]


@pytest.mark.slow
def test_table_and_trunk_start_from_hidden_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "own.txt"
    text.write_text("".join(f"Ann walks in new york , and Bo walks {k} days .\n" for k in range(80)))
    shared = ["dim=32", "depth=1", "batch_tokens=256", "num_validations=1", "steps=5"]
    options = ["--out", str(tmp_path), "--track", "off"]
    hidden = [f"data={text}", "unit=words", "vocabulary=300", "piece_words=12", "trunk=convolutional"]
    assert main(["run", "pretrain", *hidden, *shared, *options]) == 0
    start = capsys.readouterr().out.splitlines()[-1]
    data = write(tmp_path / "places.jsonl", rows())
    assert main(["run", "question_answering", f"data={data}", f"start={start}", *shared, *options]) == 0
    run = Path(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((run / "result.json").read_text())["lineage"]["tokenizers"] == ["places"]


def test_spans_have_no_decoder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="how=span"):
        build("question_answering", **SMALL, data=write(tmp_path / "own.jsonl", rows()), beam_width=2)
