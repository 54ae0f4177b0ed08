"""Download and upload of a model, against a local server of the hub's interface."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

from unifier import ClassificationHead, PatchTokenizer, create_trunk, load
from unifier.data.inputs import ImageReader
from unifier.models.export import export_model
from unifier.models.folder import ModelTask, StoredModel, write_model
from unifier_tokenizers import InputError

D, COMMIT = 8, 40 * "a"
PICTURES = [np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)]
FILES = {"config.json", "model.safetensors", "README.md"}


class Hub(BaseHTTPRequestHandler):
    """The hub's interface for one repository, me/small, whose files are in the folder `files`."""

    files: Path
    requests: list[str]

    def log_message(self, format: str, *args: Any) -> None:
        self.requests.append(f"{self.command} {self.path}")

    def reply(self, content: object, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if "me/small" not in path:
            return self.reply({"error": "no repository"}, 404, X_Error_Code="RepoNotFound")
        if path in ("/api/models/me/small/revision/main", f"/api/models/me/small/revision/{COMMIT}"):
            return self.reply({"id": "me/small", "sha": COMMIT, "siblings": []})
        if path == f"/api/models/me/small/tree/{COMMIT}":
            contents = {file.name: file.read_bytes() for file in sorted(self.files.iterdir())}
            tree = [
                {"type": "file", "path": n, "size": len(c), "oid": sha1(c).hexdigest()} for n, c in contents.items()
            ]
            return self.reply(tree)
        if path.startswith(f"/me/small/resolve/{COMMIT}/"):
            content = (self.files / path.rpartition("/")[2]).read_bytes()
            return self.reply(content, ETag=f'"{sha1(content).hexdigest()}"')
        return self.reply({"error": "no revision"}, 404, X_Error_Code="RevisionNotFound")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            name = f"{json.loads(body).get('organization', 'me')}/{json.loads(body)['name']}"
            if not self.headers.get("Authorization"):
                return self.reply({"error": "no token"}, 401)
            return self.reply({"url": f"https://huggingface.co/{name}"})
        if "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            return self.reply({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    (self.files / line["value"]["path"]).write_bytes(base64.b64decode(line["value"]["content"]))
            url = f"https://huggingface.co/me/small/commit/{COMMIT}"
            return self.reply({"success": True, "commitOid": COMMIT, "commitUrl": url})
        return self.reply({})


@contextmanager
def serve(files: Path) -> Generator[str]:
    """Serve the repository, and yield the address of the server."""
    handler = type("Handler", (Hub,), {"files": files, "requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a local hub with an empty cache, and return the folder of the repository's files."""
    (tmp_path / "files").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "secret")
    with serve(tmp_path / "files") as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        yield tmp_path / "files"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    task = ModelTask(PatchTokenizer(D), ClassificationHead(["a", "b"], D), ImageReader(3), longest=9)
    stored = StoredModel("small", create_trunk("transformer", D, 1, 2, D), {"task": task}, 256, {"scores": {}})
    write_model(tmp_path / "model", stored, "---\nlibrary_name: unifier\n---\n# small\n")
    return tmp_path / "model"


@pytest.mark.slow
def test_pushed_model_loads_and_predicts_the_same(hub: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("not part of the model")
    model = load(folder)
    assert COMMIT in model.push_to_hub("me/small")
    assert {path.name for path in hub.iterdir()} == FILES
    (hub / "code.py").write_text("raise SystemExit")
    again = load("hub:me/small")
    assert again.predict(PICTURES) == load("hub:me/small", revision=COMMIT).predict(PICTURES) == model.predict(PICTURES)
    assert {path.name for path in again.folder.iterdir()} == FILES, "other files are not downloaded"
    copy = export_model("hub:me/small", tmp_path / "copy")
    assert not any(path.is_symlink() for path in copy.iterdir())


def test_guide_snippets_run(hub: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "guide" / "sharing-models.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    folder.rename(folder.with_name("digits"))
    monkeypatch.chdir(folder.parent)
    names: dict[str, Any] = {}
    exec(code.replace("me/digits", "me/small"), names)
    assert names["same"].folder != names["model"].folder
    assert {path.name for path in hub.iterdir()} == FILES


@pytest.mark.parametrize(
    ("source", "revision", "named"),
    [
        ("hub:me/other", None, "hub:me/other.*hf auth login"),
        ("hub:me/small", "v2", "v2"),
        ("hub:small", None, "hub:USER/NAME"),
        ("hub:me/../x", None, "hub:USER/NAME"),
        ("hub:me/a--b", None, "valid name"),
        ("folder", "v2", "revision=v2"),
    ],
)
def test_unknown_model_is_named(source: str, revision: str | None, named: str, hub: Path) -> None:
    with pytest.raises(InputError, match=named):
        load(source, revision=revision)


def test_torn_download_and_missing_access_are_named(hub: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        load("hub:me/small")
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(InputError, match="HF_TOKEN"):
        load(folder).push_to_hub("me/small")


def test_without_a_network_the_message_says_what_to_do(
    hub: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"hub:me/small.*network.*copied folder"):
        load("hub:me/small")
    with pytest.raises(InputError, match=r"hub:me/small.*network"):
        load(folder).push_to_hub("me/small")

    def fill_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fill_disk)
    with pytest.raises(OSError, match="No space"):
        load("hub:me/small")


@pytest.mark.slow
def test_cached_model_loads_offline(folder: Path, tmp_path: Path) -> None:
    """Three processes: a download through HF_ENDPOINT, the same model with HF_HUB_OFFLINE=1, and an unknown model."""
    script = (
        "import sys\nfrom unifier.models.hub import download_model\n"
        "print(sorted(path.name for path in download_model(sys.argv[1]).iterdir()))"
    )

    def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, source]
        settings = {**os.environ, "HF_HOME": str(tmp_path / "home"), **environment}
        return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)

    with serve(folder) as address:
        online = run("hub:me/small", HF_ENDPOINT=address)
    assert online.stdout == f"{sorted(FILES)}\n", online.stderr
    assert run("hub:me/small", HF_ENDPOINT=address, HF_HUB_OFFLINE="1").stdout == online.stdout
    failed = run("hub:me/other", HF_ENDPOINT=address, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in failed.stderr.splitlines()[-1]
