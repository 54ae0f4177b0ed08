"""`unifier predict` from files to rows, and the stream of predictions behind it."""

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from tests.small_models import LABELS, SOUND, VOCABULARY, D, save_model, small_model
from unifier import ClassificationHead, MaskedReconstructionHead, Model, PatchTokenizer, load
from unifier.cli import main
from unifier.data.inputs import ImageReader, SeriesReader
from unifier.inference import stream
from unifier.inference.inputs import Input, read_inputs
from unifier.inference.translate import AlignmentPage
from unifier.models.folder import write_model
from unifier_tokenizers import Audio, InputError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def picture(seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (4 * int(rng.integers(1, 5)), 8, 3), np.uint8)


def rows(out: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(out)))


def numbers(predictions: Any) -> np.ndarray[Any, Any]:
    return torch.stack(list(predictions)).numpy()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    (tmp_path / "pictures" / "b").mkdir(parents=True)
    for number, name in enumerate(["1.png", "2.png", "b/3.png"]):
        Image.fromarray(picture(number)).save(tmp_path / "pictures" / name)
    return tmp_path / "pictures"


def test_stream_keeps_the_order_and_each_prediction_equals_the_prediction_alone() -> None:
    model = Model(small_model("picture"), Path("model"))
    inputs = [picture(seed) for seed in range(40)]
    streamed = numbers(model.predictions(iter(inputs)))
    assert np.ptp(streamed, 0).max() > 0.1
    np.testing.assert_allclose(streamed, numbers(next(model.predictions([each])) for each in inputs), atol=1e-6)
    np.testing.assert_allclose(streamed, numbers(model.network.predict("picture", inputs)), atol=1e-6)


@pytest.mark.slow
def test_stream_reads_only_a_window_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "WINDOW_BATCHES", 2)
    read = 0

    def inputs() -> Iterator[str | stream.Pause]:
        nonlocal read
        for read in range(1, 1000):
            yield "one two" if read != 100 else stream.Pause()

    model = Model(small_model("text"), Path("model"))
    ahead = [read - number for number, _ in enumerate(model.predictions(inputs()))]
    assert max(ahead) < 200
    assert ahead[98] < 3, "nothing waits for an input after a pause"


def test_bad_input_fails_alone() -> None:
    model = Model(small_model("text"), Path("model"))
    inputs = ["one", "", "two", 3, "six " * 100]
    results = list(model.predictions(inputs, bad_inputs="yield"))
    assert [isinstance(result, InputError) for result in results] == [False, True, False, True, True]
    with pytest.raises(InputError, match=r"input 1: .*empty"):
        model.predict(inputs)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0), ("bfloat16", 0.1), ("int8", 0.1)])
def test_number_type_changes_predictions_little_and_alike_in_every_batch(dtype: Any, tolerance: float) -> None:
    inputs = [picture(seed) for seed in range(20)]
    exact = numbers(Model(small_model("picture"), Path("model")).predictions(inputs))
    model = Model(small_model("picture"), Path("model")).to("cpu", dtype)
    rounded = numbers(model.predictions(inputs))
    np.testing.assert_allclose(rounded, exact, atol=tolerance)
    assert tolerance == 0 or abs(rounded - exact).max() > 1e-5
    alone = numbers(next(model.predictions([each])) for each in inputs)
    np.testing.assert_allclose(rounded, alone, atol=1e-2 if dtype == "bfloat16" else 1e-6)


def test_int8_cannot_return_to_float32() -> None:
    with pytest.raises(InputError, match="int8"):
        Model(small_model("text"), Path("model")).to("cpu", "int8").to("cpu")


def test_folder_gives_one_row_per_file(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path, "picture")
    (pictures / "notes.md").write_text("left out")
    assert main(["predict", model, str(pictures), str(pictures / "1.png")]) == 0
    out, err = capsys.readouterr()
    assert ".md" in err
    names = ["1.png", "2.png", "b/3.png", "1.png"]
    assert [row["input"] for row in rows(out)] == [str(pictures / name) for name in names]
    expected = Model(small_model("picture"), Path(model)).predictions([picture(seed) for seed in (0, 1, 2, 0)])
    for row, probabilities in zip(rows(out), expected, strict=True):
        assert row["label"] == LABELS[int(probabilities.argmax())]
        assert float(row["probability"]) == pytest.approx(float(probabilities.max()), rel=1e-3)


def test_table_of_a_mixture_and_top_k(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pictures / "table.csv"
    table.write_text('image,caption\n1.png,"one, two"\nb/3.png,six\n')
    assert main(["predict", save_model(tmp_path, "mixture"), str(table), "--top-k", "2", "--format", "jsonl"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert [first["input"], second["input"]] == [f"{table}, line 2", f"{table}, line 3"]
    probabilities = [label["probability"] for label in first["labels"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len(probabilities) == 2


def test_tagger_writes_all_tags(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", save_model(tmp_path, "tags"), str(pictures / "1.png")]) == 0
    assert sorted(row["label"] for row in rows(capsys.readouterr().out)) == sorted(LABELS)


@pytest.mark.slow
def test_lines_of_a_file_are_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ['one "two", three', "fünf\ttab", "six " * 7]
    (tmp_path / "lines.txt").write_text("\n".join(texts), encoding="utf-8")
    model, out = save_model(tmp_path, "translation"), tmp_path / "out.csv"
    assert main(["predict", model, str(tmp_path / "lines.txt"), "--out", str(out), "--threads", "1"]) == 0
    assert capsys.readouterr().out == ""
    written = rows(out.read_text(encoding="utf-8"))
    assert [row["input"] for row in written] == texts
    assert all(row.keys() == {"input", "text"} for row in written)


@pytest.mark.slow
def test_lines_of_items_give_the_next_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, lines, table = save_model(tmp_path, "shop"), tmp_path / "carts.txt", tmp_path / "carts.csv"
    lines.write_text("3 17\n5\n3 shoes\n3 999\n")
    assert main(["predict", folder, str(lines), "--bad-inputs", "skip"]) == 0
    output, messages = capsys.readouterr()
    described = load(folder).predict([[3, 17], [5]])
    assert [tuple(row.values()) for row in rows(output)] == [("3 17", described[0]), ("5", described[1])]
    assert "'3 shoes'" in messages
    assert "999" in messages
    table.write_text("items\n5\n")
    assert main(["predict", folder, str(table)]) == 0
    assert [tuple(row.values()) for row in rows(capsys.readouterr().out)] == [("5", described[1])]


@pytest.mark.slow
def test_standard_input_has_objects_for_a_mixture(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"image": str(pictures / "1.png"), "caption": "one"}, {"image": "no caption"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, answers = save_model(tmp_path, "mixture"), list[Any]()
    with (tmp_path / "a.jsonl").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        for given in (str(tmp_path / "a.jsonl"), "-"):
            assert main(["predict", model, given, "--bad-inputs", "skip", "--format", "jsonl"]) == 0
            out, err = capsys.readouterr()
            answers.append({**json.loads(out), "input": ""})
            assert "caption" in err
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", ["text", "picture"])
def test_standard_input_has_texts_or_paths(
    kind: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["one", "two"] if kind == "text" else [str(pictures / "1.png"), str(pictures / "2.png")]
    (tmp_path / "stdin").write_text("\n".join(lines) + "\n")
    with (tmp_path / "stdin").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["predict", save_model(tmp_path, kind), "-"]) == 0
    assert [row["input"] for row in rows(capsys.readouterr().out)] == lines


def test_bad_file_stops_or_is_skipped_and_counted(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = save_model(tmp_path, "picture"), tmp_path / "out.csv"
    (pictures / "2.png").write_bytes(b"not a picture")
    arguments = ["predict", model, str(pictures), "--out", str(out)]
    assert main(arguments) == 2
    assert str(pictures / "2.png") in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "pictures"], "nothing is half-written"
    assert main([*arguments, "--bad-inputs", "skip"]) == 0
    err = capsys.readouterr().err
    assert str(pictures / "2.png") in err
    assert "skipped 1 of 3" in err
    assert len(rows(out.read_text())) == 2


@pytest.mark.parametrize(
    ("kind", "arguments", "named"),
    [
        ("text", ["missing.txt"], "missing.txt"),
        ("text", ["x" * 300], "no such file"),
        ("text", ["bytes"], "bytes, line 1"),
        ("picture", ["empty"], "empty has no inputs"),
        ("picture", ["text.csv"], "no column file"),
        ("picture", ["empty.txt"], "picture"),
        ("text", ["empty.txt"], "empty.txt has no inputs"),
        ("mixture", ["empty.txt"], "caption, image"),
        ("text", ["text.csv", "--task", "other"], "text"),
        ("text", ["text.csv", "--threads", "0"], "threads=0"),
        ("text", ["text.csv", "--device", "mps"], "cpu"),
        ("text", ["text.csv", "--out", "missing/out.csv"], "missing/out.csv"),
        ("text", ["text.csv", "--out", "empty"], "empty is a folder"),
        ("text", ["text.csv", "--top-k", "0"], "top_k=0"),
        ("translation", ["text.csv", "--top-k", "2"], "top_k=2"),
        ("picture", ["a.mp4"], "a.mp4"),
        ("clip", ["a.mp4"], "a.mp4"),
    ],
)
def test_wrong_use_is_one_line(
    kind: str,
    arguments: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "a.mp4").touch()
    (tmp_path / "text.csv").write_text("text\none\n")
    (tmp_path / "bytes").write_bytes(b"\xff\n")
    assert main(["predict", save_model(tmp_path, kind), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert named in err


@pytest.mark.parametrize(("kind", "content"), [("text", ""), ("picture", ""), ("picture", "\n\n"), ("mixture", "")])
def test_empty_standard_input_is_one_line(
    kind: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stdin").write_text(content)
    with (tmp_path / "stdin").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["predict", save_model(tmp_path, kind), "-"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "standard input" in err


@pytest.mark.parametrize(("policy", "status"), [("stop", 2), ("skip", 0)])
def test_empty_line_of_standard_input_is_named_with_the_option(
    policy: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stdin").write_text("one\n\ntwo\n")
    with (tmp_path / "stdin").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["predict", save_model(tmp_path, "text"), "-", "--bad-inputs", policy]) == status
    out, err = capsys.readouterr()
    assert [row["input"] for row in rows(out)] == ["one", "two"][: 2 - status // 2]
    assert "standard input, line 2" in err
    assert ("--bad-inputs" in err) == (policy == "stop")
    assert "data" not in err, "the line is not part of a data set"


def test_time_series_are_read_from_folders_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SeriesReader(("a", "b"), (0, 0), (1, 1), context=2, joint=False)
    (tmp_path / "1.csv").write_text("a,b\n1,4\n2,5\n3,6\n")
    (tmp_path / "2.csv").write_text("a,b\n1,4\n")  # It has fewer rows than the context.
    (tmp_path / "3.csv").write_text("a,b\n7,8\n8,9\n")
    (tmp_path / "stdin").write_text("".join(f"{tmp_path / name}.csv\n" for name in "123"))
    with (tmp_path / "stdin").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        for given in (str(tmp_path), "-"):
            inputs = [each for each in read_inputs([given], reader) if isinstance(each, Input)]
            assert isinstance(inputs.pop(2).value, InputError)
            assert [each.value.tolist() for each in inputs] == [[[2, 3]], [[5, 6]], [[7, 8]], [[8, 9]]]


def test_task_without_predictions_is_refused_before_the_header(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path, hidden=(PatchTokenizer(D), MaskedReconstructionHead(16 * 16 * 3, D)))
    assert main(["predict", model, str(pictures), "--bad-inputs", "skip"]) == 2
    out, err = capsys.readouterr()
    assert "hidden" in err
    assert (out, err.count("\n")) == ("", 1)


def test_tasks_are_listed_if_none_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    model = save_model(tmp_path, "text", "picture")
    assert main(["predict", model, str(tmp_path / "a.txt")]) == 2
    assert "text, picture" in capsys.readouterr().err
    assert main(["predict", model, str(tmp_path / "a.txt"), "--task", "text"]) == 0


def test_inputs_of_a_folder_come_in_order(tmp_path: Path) -> None:
    for name in ("b/x.png", "a/x.png", "z.png", ".hidden.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [each.name for each in read_inputs([str(tmp_path)], ImageReader()) if isinstance(each, Input)]
    assert [os.path.relpath(name, tmp_path) for name in found] == ["z.png", "a/x.png", "b/x.png"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("picture", {"cat 1.png": picture(1), "dog.png": picture(2)}),
        ("caption", {"cat 1.png": picture(1)}),
        ("sound", {"a.wav": SOUND}),
        ("text", {"a.txt": "one two\n/six: 6\n"}),
        ("words", {"a.txt": "one two\n"}),
        ("translation", {"a.txt": "one two\n"}),
        ("prefix", {"a.txt": "one two\n"}),
    ],
)
def test_attention_has_a_figure_per_input(kind: str, content: dict[str, Any], tmp_path: Path) -> None:
    for name, value in content.items():
        path = tmp_path / name
        if isinstance(value, str):
            path.write_text(value)
        elif isinstance(value, Audio):
            soundfile.write(path, np.asarray(value.waveform), value.sample_rate)
        else:
            Image.fromarray(value).save(path)
    model, out = save_model(tmp_path, kind, longest=64), tmp_path / "seen" / "figures"
    inputs = [str(tmp_path / name) for name in content]
    assert main(["predict", model, *inputs, "--attention", str(out), "--out", str(tmp_path / "out.csv")]) == 0
    names = {"text": ["one-two", "six-6"]}.get(kind, ["one-two"] if "a.txt" in content else list(content))
    expected = [f"{number:06}-{name.replace(' ', '-')}.svg" for number, name in enumerate(names, start=1)]
    heads = [f"{Path(name).stem}-heads.svg" for name in expected]
    assert {path.name for path in out.iterdir()} == {*expected, *heads}
    texts = [text for text in ElementTree.parse(out / expected[0]).getroot().itertext() if text.strip()]
    if "a.txt" in content:
        tokens = VOCABULARY.tokens(VOCABULARY.encode("one two"))
        assert {text.strip() for text in texts} >= ({"one", "two"} if kind != "text" else set(tokens) - {""})
    if kind in ("picture", "text"):
        assert rows((tmp_path / "out.csv").read_text())[0]["label"] in " ".join(texts)


@pytest.mark.slow
def test_attention_to_a_question_is_drawn_over_its_context(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"question": "one", "context": "two three"}) + "\n")
    model, out = save_model(tmp_path, "questions", longest=64), tmp_path / "figures"
    assert main(["predict", model, str(tmp_path / "a.jsonl"), "--attention", str(out)]) == 0
    (path,) = (path for path in out.iterdir() if not path.stem.endswith("-heads"))
    texts = {text.strip() for text in ElementTree.parse(path).getroot().itertext()}
    assert {"two", "three"} <= texts
    assert "one" not in texts


def test_attention_of_a_model_without_attention_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "file").touch()
    arguments = ["predict", save_model(tmp_path, "text", trunk="lstm"), str(tmp_path / "a.txt"), "--attention"]
    assert main([*arguments, str(tmp_path / "figures")]) == 2
    assert "no attention" in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
    arguments[1] = save_model(tmp_path, "text")
    assert main([*arguments, str(tmp_path / "file")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    arguments[2] = str(tmp_path / "missing.txt")
    assert main([*arguments, str(tmp_path / "figures")]) == 2
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_guide_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "guide" / "using-models.md"
    monkeypatch.chdir(tmp_path)
    digits = PatchTokenizer(D, channels=1), ClassificationHead(LABELS, D)
    write_model(tmp_path / "digits", small_model(digits=digits), "card")
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(code, names)
    assert len(names["labels"]) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["translation", "prefix"])
def test_candidates_explain_the_score_of_a_translation(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("one two\n\nsix five four\n")
    model = save_model(tmp_path, kind)
    arguments = ["translate", model, "lines.txt", "--task", kind, "--threads", "1", "--beam", "1"]
    assert main([*arguments, "--n-best", "1", "--length-penalty", "1"]) == 0
    scores = [line.split("\t")[1] for line in capsys.readouterr().out.split("\n")[:-1]]
    assert main([*arguments, "--candidates", "3"]) == 0
    answers = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [answer["line"] for answer in answers] == [1, 2, 3]
    assert answers[1]["steps"] == []
    for answer, score in zip(answers, scores, strict=True):
        likeliest = [step["candidates"][0] for step in answer["steps"]]
        assert [each["token"] for each in likeliest] == [step["token"] for step in answer["steps"]]
        if likeliest:
            assert float(score) == pytest.approx(np.mean(np.log([each["probability"] for each in likeliest])), abs=1e-3)
    assert main([*arguments, "--candidates", "3", "--n-best", "1"]) == 2
    assert main([*arguments, "--candidates", "0"]) == 2
    assert main([*arguments, "--dtype", "int8"]) == 0


def test_a_device_or_pipe_is_not_replaced_by_the_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "lines.txt").write_text("one\n")
    with ThreadPoolExecutor() as thread:
        read = thread.submit((tmp_path / "pipe").read_text)
        model, pipe = save_model(tmp_path, "text"), str(tmp_path / "pipe")
        assert main(["predict", model, str(tmp_path / "lines.txt"), "--out", pipe]) == 0
    assert [row["input"] for row in rows(read.result())] == ["one"]
    with pytest.raises(InputError, match="not a regular file"):
        AlignmentPage(pipe)
    assert (tmp_path / "pipe").is_fifo()
