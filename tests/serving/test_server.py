"""Requests to the server: answers equal those of `Model.predictions`, and a bad request fails alone."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import soundfile
import torch
from fastapi.testclient import TestClient
from PIL import Image

from tests.serving.conftest import make_model, picture, running, sound
from tests.small_models import LABELS, D, small_model
from unifier import MaskedReconstructionHead, Model, PatchTokenizer, QueryDetectionHead, SpectrogramDecoderHead
from unifier.cli import main
from unifier.data.inputs import AudioReader, ImageReader
from unifier.inference.explain import explain_attention, explain_texts
from unifier.inference.stream import encode_input
from unifier.models.folder import StoredModel, write_model
from unifier.serving.batching import Batcher
from unifier.serving.server import ServerOptions, create_app, listen
from unifier.serving.service import PredictionService
from unifier_tokenizers import InputError

pytestmark = pytest.mark.extras

FORM = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--\r\n'
JSON = {"content-type": "application/json"}
BASE64 = b64encode(picture(0)).decode()


def post(address: str, content: Any = None, file: bytes | None = None, **options: Any) -> requests.Response:
    """Send JSON, or a form with a file."""
    if file is None:
        return requests.post(f"{address}/predict", json=content, timeout=60)
    return requests.post(f"{address}/predict", data=options, files={"file": ("upload.bin", file)}, timeout=60)


def read(kind: str, file: bytes) -> Any:
    reader = ImageReader() if kind == "picture" else AudioReader()
    return reader(Path("file"), {Path("file"): file})


def expected(model: Model, kind: str, value: Any) -> Any:
    """Return the labels with probabilities, or the text, that the model predicts for one input."""
    (prediction,) = model.predictions([value], kind)
    if isinstance(prediction, str):
        return prediction
    return {label: pytest.approx(float(p), abs=1e-4) for label, p in zip(LABELS, prediction, strict=True)}


def answered(response: requests.Response) -> Any:
    assert response.status_code == 200, response.text
    (prediction,) = response.json()["predictions"]
    return prediction.get("text") or {each["label"]: each["probability"] for each in prediction["labels"]}


def test_mixed_requests_of_16_clients(model: Model, address: str) -> None:
    asked: list[tuple[dict[str, Any], Any]] = []
    for number in range(180):
        kind = ("text", "picture", "sound", "translation", "mixture")[number % 5]
        words = " ".join(["one", "two", "six"][: 1 + number % 3] * (1 + number % 4))
        file = sound(number) if kind == "sound" else picture(number)
        if kind == "mixture":
            content = {"caption": words, "image": b64encode(file).decode()}
            asked.append(({"content": {"task": kind, "inputs": [content]}}, {"caption": words, "image": file}))
        elif kind in ("picture", "sound"):
            asked.append(({"file": file, "task": kind}, file))
        else:
            asked.append(({"content": {"task": kind, "text": words}}, words))
    broken: list[dict[str, Any]] = [
        {"file": picture(0)[:50], "task": "picture"},
        {"content": {"task": "text", "text": ""}},
        {"content": {"task": "text", "text": "one " * 5000}},
        {"content": {"task": "other", "text": "one"}},
        {"file": picture(0), "task": "text"},
    ] * 4
    right = [{**request, "value": value} for request, value in asked]
    every = [request for k in range(20) for request in [*right[9 * k : 9 * k + 9], broken[k]]]
    with ThreadPoolExecutor(16) as clients:
        responses = list(clients.map(lambda request: post(address, **without_value(request)), every))
    assert Counter(response.status_code for response in responses) == {200: 180, 422: 20}
    for request, response in zip(every, responses, strict=True):
        if "value" not in request:
            assert "\n" not in response.json()["detail"]
            continue
        kind = request.get("task") or request["content"]["task"]
        value = request["value"]
        if kind == "mixture":
            value = {**value, "image": read("picture", value["image"])}
        elif kind in ("picture", "sound"):
            value = read(kind, value)
        assert answered(response) == expected(model, kind, value)


def without_value(request: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name != "value"}


@pytest.mark.parametrize(
    ("content", "status", "named"),
    [
        ({"task": "text"}, 422, "text, file"),
        ({"text": "one"}, 422, "picture"),
        ({"text": "one", "task": "picture"}, 422, "picture"),
        ({"file": "x", "task": "picture"}, 422, "base64"),
        ({"file": "/etc/passwd", "task": "picture"}, 422, "base64"),
        ({"inputs": ["one"], "task": "mixture"}, 422, "caption"),
        ({"inputs": [{"caption": "one"}], "task": "mixture"}, 422, "image"),
        ({"inputs": ["one", ""], "task": "text"}, 422, "input 1"),
        ({"inputs": [], "task": "text"}, 422, "inputs"),
        ({"inputs": ["one"] * 300, "task": "text"}, 422, "256"),
        ({"inputs": ["one"] * 2, "task": "text", "explain": True}, 422, "1"),
        ({"text": "one", "task": "translation", "top_k": 2}, 422, "top_k"),
        ({"text": "one", "task": "text", "top_k": 0}, 422, "top_k"),
        ({"text": "one", "other": 1}, 422, "other"),
        ({"text": "\ud800", "task": "text"}, 400, ""),
        ([1], 422, ""),
        ({"text": 1}, 422, "text"),
    ],
)
def test_bad_request_is_one_sentence(content: Any, status: int, named: str, address: str) -> None:
    response = post(address, content)
    assert response.status_code == status
    assert named in response.json()["detail"]
    assert "\n" not in response.json()["detail"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"one", "text/plain", 415),
        (b"", "", 415),
        (b"x", "multipart/form-data", 400),
        (b"x", "multipart/form-data; boundary=b", 400),
        (
            b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            400,
        ),
    ],
)
def test_broken_body_is_refused(body: bytes, kind: str, status: int, address: str) -> None:
    response = requests.post(f"{address}/predict", data=body, headers={"content-type": kind}, timeout=60)
    assert response.status_code == status
    assert "\n" not in response.json()["detail"]


def test_limits_of_size_time_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model, go = make_model("text"), threading.Event()
    predict_batch = model.network.predict_batch
    monkeypatch.setattr(model.network, "predict_batch", lambda *given: go.wait(20) and predict_batch(*given))
    with running(model, max_bytes=2000, max_seconds=1.5, max_requests=1) as address:
        for body in (b"x" * 3000, iter([b"x" * 1500] * 2)):  # An iterator is sent without a length.
            response = requests.post(
                f"{address}/predict", body, headers={"content-type": "application/json"}, timeout=9
            )
            assert response.status_code == 413
            assert "2,000" in response.json()["detail"]
        with ThreadPoolExecutor(1) as client:
            slow = client.submit(post, address, {"text": "one"})
            while not requests.get(f"{address}/health", timeout=9).json()["requests"]:
                pass
            assert post(address, {"text": "one"}).status_code == 503
            assert slow.result().status_code == 503
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            idle.sendall(b"Content-Length: 9\r\n\r\n{")
            assert b" 408 " in idle.recv(1000)
        go.set()
        assert post(address, {"text": "one"}).status_code == 200


def test_failure_of_the_model_is_one_sentence_and_the_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("text")
    with running(model) as address, requests.Session() as session, monkeypatch.context() as patch:
        patch.setattr(model.network, "predict_batch", lambda *_: 1 // 0)
        response = session.post(f"{address}/predict", json={"text": "one"}, timeout=60)
        assert response.status_code == 500
        assert "\n" not in response.json()["detail"]
        patch.undo()
        assert session.post(f"{address}/predict", json={"text": "one"}, timeout=60).status_code == 200


def test_first_sounds_of_two_clients_are_encoded_one_after_the_other() -> None:
    model, busy = make_model("sound"), threading.Lock()
    tokenizer = model.tasks["sound"].tokenizer
    encode = tokenizer.encode

    def encode_alone(raw: Any) -> Any:
        assert busy.acquire(blocking=False)
        time.sleep(0.05)
        busy.release()
        return encode(raw)

    with running(model) as address, pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as clients:
        patch.setattr(tokenizer, "encode", encode_alone)
        codes = clients.map(lambda seed: post(address, file=sound(seed)).status_code, range(4))
        assert [*codes] == [200] * 4


def test_small_answers_are_sent_at_once() -> None:
    with listen(ServerOptions(port=0)) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_pictures_of_one_file_format_or_many(model: Model, address: str) -> None:
    Image.open(BytesIO(picture(1))).convert("RGB").save(file := BytesIO(), "JPEG")
    as_file, as_json = post(address, file=file.getvalue(), task="picture"), b64encode(file.getvalue()).decode()
    assert answered(as_file) == expected(model, "picture", read("picture", file.getvalue()))
    assert post(address, {"task": "picture", "file": as_json}).json() == as_file.json()
    many = post(address, {"task": "picture", "inputs": [as_json, BASE64], "top_k": 1}).json()["predictions"]
    assert [len(each["labels"]) for each in many] == [1, 1]
    assert many[0]["labels"] == as_file.json()["predictions"][0]["labels"][:1]


def test_objects_of_a_detector_are_those_of_predict() -> None:
    torch.manual_seed(0)
    head = QueryDetectionHead(LABELS, D, patch=4, queries=5)
    with torch.no_grad():
        head.score.bias[1] += 50  # Each query finds an object.
    model = Model(small_model(boxes=(PatchTokenizer(D, patch=4), head), longest=32), Path("model"))
    with running(model) as address:
        (prediction,) = post(address, file=picture(0)).json()["predictions"]
    (found,) = model.predictions([read("picture", picture(0))])
    expected = [(box, LABELS[c], score) for box, c, score in zip(*(part.tolist() for part in found), strict=True)]
    expected = [each for each in expected if each[2] > 0.5]
    assert len(prediction["objects"]) == len(expected) > 0
    for each, (box, label, score) in zip(prediction["objects"], expected, strict=True):
        assert each == {"label": label, "score": pytest.approx(score, abs=1e-3), "box": pytest.approx(box, abs=1e-3)}


def test_mask_has_the_size_of_its_picture() -> None:
    model, files = make_model("segmentation"), [picture(0), picture(2)]
    with running(model) as address:
        response = post(address, {"inputs": [b64encode(file).decode() for file in files]})
    for file, prediction in zip(files, response.json()["predictions"], strict=True):
        pixels = read("picture", file)
        (mask,) = model.predictions([pixels])
        height, width = pixels.shape[:2]
        answer = np.array(Image.open(BytesIO(b64decode(prediction["mask"]["png"]))))
        assert np.array_equal(answer, mask.numpy()[:height, :width])
        shares = [(answer == c).mean() for c in range(len(LABELS))]
        assert [each["share"] for each in prediction["mask"]["classes"]] == pytest.approx(shares)


def test_speech_is_the_sound_of_predict_with_its_alignment_if_asked() -> None:
    model = make_model("speech")
    with running(model) as address:
        plain, explained = (
            post(address, {"text": "one two", "explain": explain}).json()["predictions"][0] for explain in (False, True)
        )
    (speech,) = model.predictions(["one two"])
    waveform, rate = soundfile.read(BytesIO(b64decode(plain["sound"])), dtype="float32")
    head = model.tasks["speech"].head
    assert isinstance(head, SpectrogramDecoderHead)
    sound = head.to_sound(speech)
    assert rate == sound.sample_rate == 8000
    assert np.allclose(waveform, sound.waveform, atol=1e-3)
    assert "alignment" not in plain
    assert Image.open(BytesIO(b64decode(explained["alignment"]))).width > 100


def test_lines_of_a_text_file(model: Model, address: str) -> None:
    response = post(address, file=b"one two\nsix\n", task="translation")
    texts = [each["text"] for each in response.json()["predictions"]]
    assert texts == list(model.predictions(["one two", "six"], "translation"))


def test_explanation_of_a_text(model: Model, address: str) -> None:
    (prediction,) = post(address, {"task": "translation", "text": "one two", "explain": True}).json()["predictions"]
    texts = prediction["texts"]
    assert [text["score"] for text in texts] == sorted((text["score"] for text in texts), reverse=True)
    assert len(texts) == 5
    for step in texts[0]["steps"]:
        probabilities = [probability for _, probability in step["candidates"]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(step["attention"]) == pytest.approx(1, abs=0.01)
        assert len(step["attention"]) == len(prediction["tokens"])
    assert prediction["heads"][0]["name"] == "trunk 1"
    for layer in prediction["heads"]:
        assert np.shape(layer["heads"])[1:] == (len(layer["queries"]), len(layer["keys"]))
        np.testing.assert_allclose(np.sum(layer["heads"], -1), 1, atol=0.02)


def test_score_of_a_greedy_text_is_the_mean_of_its_steps(model: Model) -> None:
    units = encode_input(model.tasks["translation"], "one two three")
    assert not isinstance(units, InputError)
    (text,) = explain_texts(model, "translation", units, 1)
    assert [step.token for step in text.steps] == [step.candidates[0][0] for step in text.steps]
    best = torch.tensor([step.candidates[0][1] for step in text.steps])
    assert best.log().mean().item() == pytest.approx(text.score, abs=0.01)


@pytest.mark.parametrize(("kind", "file"), [("picture", picture(3)), ("sound", sound(3))])
def test_attention_has_a_place_on_the_input(kind: str, file: bytes, model: Model, address: str) -> None:
    (prediction,) = post(address, file=file, task=kind, explain="true").json()["predictions"]
    attention = prediction["attention"]
    units = encode_input(model.tasks[kind], read(kind, file))
    assert not isinstance(units, InputError)
    found = explain_attention(model, kind, units)
    assert found is not None
    assert attention["received"] == found.received
    if kind == "picture":
        rows, columns = attention["grid"]
        assert rows * columns == len(attention["received"])
        width, height = prediction["size"]
        left, top, right, bottom = attention["box"]
        assert (left, top) == (0, 0)
        assert right >= width
        assert bottom >= height
    else:
        assert len(attention["seconds"]) == len(attention["received"])
        assert max(attention["seconds"]) <= 0.5


def test_memory_is_flat(address: str) -> None:
    session = requests.Session()

    def send(count: int) -> int:
        for number in range(count):
            session.post(
                f"{address}/predict", data={"task": "picture"}, files={"file": picture(number % 7)}, timeout=60
            )
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = send(50)
    assert send(150) - before < 20e6


def test_description_and_health(address: str) -> None:
    described = requests.get(f"{address}/openapi.json", timeout=60).json()["paths"]["/predict"]["post"]
    assert {*described["requestBody"]["content"]} == {"application/json", "multipart/form-data"}
    assert {"200", "413", "422", "503"} <= described["responses"].keys()
    health = requests.get(f"{address}/health", timeout=60).json()
    assert health["status"] == "ok"
    assert health["tasks"]["mixture"] == {"caption": "text", "image": "picture"}


def test_jobs_that_wait_are_computed_together_and_fail_alone() -> None:
    started, go, sizes = threading.Event(), threading.Event(), list[int]()

    def compute(jobs: Any) -> list[int]:
        started.set()
        go.wait(20)
        sizes.append(len(jobs))
        return [10 // job for job in jobs]

    batcher = Batcher[int, int](compute)
    first = batcher.submit(5)
    started.wait(20)
    futures = [batcher.submit(job) for job in (1, 0, 2)]
    canceled = batcher.submit(10)
    assert canceled.cancel()
    go.set()
    batcher.close()
    assert first.result() == 2
    assert [futures[0].result(), futures[2].result()] == [10, 5]
    assert isinstance(futures[1].exception(), ZeroDivisionError)
    assert sizes[:2] == [1, 3]


def test_command_prints_its_address_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "unifier", "serve", save(tmp_path, make_model("text")), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = re.findall(r"http://127\.0\.0\.1:\d+", process.stdout.readline())[0]
        assert post(address, {"text": "one"}).status_code == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def save(folder: Path, model: Model) -> str:
    write_model(folder / "model", StoredModel(model.name, model.network.trunk, model.tasks, 64, {}), "card")
    return str(folder / "model")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "70000"], "port=70000"),
        (["--max-requests", "0"], "max_requests=0"),
        (["--host", "no.such.host.invalid"], "no.such.host"),
        (["--task", "other"], "text"),
        (["--port", "used"], "--port"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save(tmp_path, make_model("text"))
    with socket.create_server(("127.0.0.1", 0)) as used:
        arguments = [str(used.getsockname()[1]) if text == "used" else text for text in arguments]
        given = arguments if "--port" in arguments else [*arguments, "--port", "0"]
        assert main(["serve", model, *given]) == 2
    out, err = capsys.readouterr()
    assert named in err
    assert (out, err.count("\n")) == ("", 1)


def test_clips_are_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", save(tmp_path, Model(small_model("clip"), Path("model"))), "--port", "0"]) == 2
    out, err = capsys.readouterr()
    assert "clip" in err
    assert (out, err.count("\n")) == ("", 1)


def test_task_without_predictions_is_not_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = PatchTokenizer(D), MaskedReconstructionHead(16 * 16 * 3, D)
    alone, both = small_model(hidden=hidden), small_model("text", hidden=hidden)
    assert main(["serve", save(tmp_path, Model(alone, Path("model"))), "--port", "0"]) == 2
    out, err = capsys.readouterr()
    assert "hidden" in err
    assert (out, err.count("\n")) == ("", 1)
    service = PredictionService(Model(both, Path("model")))
    assert service.kinds == {"text": "text"}
    service.close()


@pytest.mark.parametrize(
    ("bound", "host", "status"),
    [
        ("127.0.0.1", "localhost:8000", 200),
        ("localhost", "127.0.0.1", 200),
        ("::1", "[::1]:8000", 200),
        ("127.0.0.1", "evil.example:8000", 400),
        ("127.0.0.1", "127.0.0.1.evil.example", 400),
        ("0.0.0.0", "my-machine:8000", 200),
    ],
)
def test_a_loopback_server_answers_only_to_names_of_this_machine(
    bound: str, host: str, status: int, model: Model
) -> None:
    """A page whose name points to 127.0.0.1 (DNS rebinding) must not read answers."""
    with TestClient(create_app(model, options=ServerOptions(host=bound))) as client:
        assert client.get("/health", headers={"host": host}).status_code == status
