"""Downloads: whole and checked, or not there; and one line that says which files to put where."""

import hashlib
import socket
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from unifier.data.download import CHUNK_BYTES, RemoteFile, ensure_files, require_file
from unifier_tokenizers import InputError

CONTENT = bytes(range(256)) * (CHUNK_BYTES // 100)


class Quiet(SimpleHTTPRequestHandler):
    """A server that keeps its log to itself."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path) -> Iterator[str]:
    """The address of a server with a.bin and b.bin."""
    served = tmp_path / "served"
    served.mkdir()
    for name in ("a.bin", "b.bin"):
        (served / name).write_bytes(CONTENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=served)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the set "some" in a fresh cache."""
    monkeypatch.delenv("UNIFIER_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "unifier" / "some"


GOOD = RemoteFile(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def test_files_that_lack_are_downloaded_once(home: str, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {"a.bin": GOOD, "b.bin": GOOD}
    assert ensure_files("some", home, files) == cache
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == dict.fromkeys(files, CONTENT)
    assert ensure_files("some", "http://127.0.0.1:1/", files) == cache
    assert capfd.readouterr().out == ""  # the last line of standard output is the run's folder


@pytest.mark.parametrize(
    "wrong",
    [RemoteFile(GOOD.size, "0" * 64), RemoteFile(GOOD.size - 1, GOOD.sha256), RemoteFile(GOOD.size + 1, GOOD.sha256)],
)
def test_other_contents_leave_nothing(home: str, cache: Path, wrong: RemoteFile) -> None:
    with pytest.raises(InputError) as error:
        ensure_files("some", home, {"a.bin": GOOD, "b.bin": wrong})
    message = str(error.value)
    assert "\n" not in message
    assert f"{home}b.bin" in message
    assert "SHA-256" in message
    assert [path.name for path in cache.iterdir()] == ["a.bin"]


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_home_that_does_not_answer(cache: Path) -> None:
    with pytest.raises(InputError) as error:
        ensure_files("some", f"http://127.0.0.1:{closed_port()}/", {"a.bin": GOOD, "b.bin": GOOD})
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(f"put a.bin, b.bin into {cache}")
    assert not list(cache.iterdir())


def test_a_file_that_is_not_there(home: str, cache: Path) -> None:
    with pytest.raises(InputError, match=r"none\.bin: HTTP Error 404.*; put none\.bin into"):
        ensure_files("some", home, {"none.bin": GOOD})
    assert not list(cache.iterdir())


def test_a_folder_that_was_named_is_never_written_to(
    home: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named"
    with pytest.raises(InputError, match=r"named has no a\.bin: put it there from http"):
        ensure_files("some", home, {"a.bin": GOOD}, named)
    (named / "some").mkdir(parents=True)
    monkeypatch.setenv("UNIFIER_DATA", str(named))
    with pytest.raises(InputError, match=r"some has no a\.bin, b\.bin: put them there from http"):
        ensure_files("some", home, {"a.bin": GOOD, "b.bin": GOOD})
    assert not list((named / "some").iterdir())
    assert not cache.exists()
    (named / "some" / "a.bin").write_bytes(b"")
    assert ensure_files("some", home, {"a.bin": GOOD}) == named / "some"


def test_what_has_no_home_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"some: .* has no x, y; put them there"):
        require_file("some", tmp_path, ("x", "y"), "put them there")
