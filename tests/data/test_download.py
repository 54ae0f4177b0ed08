"""A download is complete and verified or leaves nothing. Errors name the files and their folder."""

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from unifier.data.download import CHUNK_BYTES, RemoteFile, ensure_files, read_idx, require_file
from unifier_tokenizers import InputError

CONTENT = bytes(range(256)) * (CHUNK_BYTES // 100)
GOOD = RemoteFile(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class QuietHandler(SimpleHTTPRequestHandler):
    """Request handler without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a.bin and b.bin."""
    served = tmp_path_factory.mktemp("served")
    for name in ("a.bin", "b.bin"):
        (served / name).write_bytes(CONTENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=served)) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the data set "some" in an empty cache."""
    monkeypatch.delenv("UNIFIER_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "unifier" / "some"


def test_missing_files_are_downloaded_once(base_url: str, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {"a.bin": GOOD, "b.bin": GOOD}
    assert ensure_files("some", base_url, files) == cache
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == dict.fromkeys(files, CONTENT)
    assert ensure_files("some", "http://127.0.0.1:1/", files) == cache
    assert capfd.readouterr().out == ""  # The last line of standard output is reserved for the run's folder.


def test_folder_of_a_killed_download_is_removed(base_url: str, cache: Path) -> None:
    for name in ("killed", "running"):
        (cache / f".download-{name}").mkdir(parents=True)
        (cache / f".download-{name}" / "a.bin").write_bytes(b"part")
    descriptor = os.open(cache / ".download-running", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    ensure_files("some", base_url, {"a.bin": GOOD})
    assert {path.name for path in cache.iterdir()} == {"a.bin", ".download-running"}
    os.close(descriptor)
    ensure_files("some", base_url, {"a.bin": GOOD})
    assert [path.name for path in cache.iterdir()] == ["a.bin"]


@pytest.mark.parametrize(
    "wrong",
    [RemoteFile(GOOD.size, "0" * 64), RemoteFile(GOOD.size - 1, GOOD.sha256), RemoteFile(GOOD.size + 1, GOOD.sha256)],
    ids=["hash", "longer", "shorter"],
)
def test_unexpected_content_is_deleted(base_url: str, cache: Path, wrong: RemoteFile) -> None:
    with pytest.raises(InputError, match=rf"{base_url}b\.bin.*SHA-256") as error:
        ensure_files("some", base_url, {"a.bin": GOOD, "b.bin": wrong})
    assert "\n" not in str(error.value)
    assert [path.name for path in cache.iterdir()] == ["a.bin"]


@pytest.mark.parametrize(
    ("url", "names", "message"),
    [
        ("http://127.0.0.1:1/", ("a.bin", "b.bin"), r"a\.bin, b\.bin"),
        (None, ("c.bin",), r"c\.bin: HTTP Error 404.*c\.bin"),
    ],
    ids=["no server", "no file"],
)
def test_failed_download_names_files_and_folder(
    base_url: str, cache: Path, url: str | None, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        ensure_files("some", url or base_url, dict.fromkeys(names, GOOD))
    assert re.fullmatch(f".*{cache}", str(error.value)), "one line that ends with the folder"
    assert not list(cache.iterdir())


def test_given_folder_is_never_written_to(base_url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = cache.parents[2] / "given"
    with pytest.raises(InputError, match=rf"given has no a\.bin.*{base_url}"):
        ensure_files("some", base_url, {"a.bin": GOOD}, given)
    (given / "some").mkdir(parents=True)
    monkeypatch.setenv("UNIFIER_DATA", str(given))
    with pytest.raises(InputError, match=rf"some has no a\.bin, b\.bin.*{base_url}"):
        ensure_files("some", base_url, {"a.bin": GOOD, "b.bin": GOOD})
    assert not list((given / "some").iterdir())
    assert not cache.exists()
    (given / "some" / "a.bin").write_bytes(b"")
    assert ensure_files("some", base_url, {"a.bin": GOOD}) == given / "some"
    with pytest.raises(InputError, match=r"some: .* has no x, y; put them there"):
        require_file("some", given, ("x", "y"), "put them there")


@pytest.mark.parametrize(
    ("axes", "lengths"), [(65, [1] * 65), (255, []), (3, [2**32 - 1] * 3), (3, [0, 2**32 - 1, 9]), (0, []), (2, [5])]
)
def test_idx_of_absurd_sizes_is_refused(tmp_path: Path, axes: int, lengths: list[int]) -> None:
    path = tmp_path / "some-idx"
    path.write_bytes(bytes([0, 0, 8, axes]) + b"".join(length.to_bytes(4, "big") for length in lengths) + b"a")
    with pytest.raises(InputError, match="some-idx"):
        read_idx(path)
