"""A run's files are written completely or not at all, and a closed output stops nothing."""

import errno
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from io import TextIOBase
from pathlib import Path
from signal import SIGINT, raise_signal
from typing import Any

import numpy as np
import pytest
import soundfile

from unifier import ClassificationHead, files
from unifier.data.download import RemoteFile, download
from unifier.data.prepare import prepare_task
from unifier.datasets import AudioFolder, ParallelText
from unifier.training.callbacks import GracefulStop
from unifier_tokenizers import FrameTokenizer, InputError


def test_folder_that_vanishes_during_a_search_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.json").touch()
    scan = os.scandir

    def vanish(path: Path | str) -> Any:
        if Path(path).name == "gone":
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanish)
    assert files.find_files_named(tmp_path, "x.json", "y.json") == [tmp_path / "kept" / "x.json"]


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_bytes(path, b"old")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_bytes(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file", b"old")]


def test_full_disk_names_the_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match=r"a\.csv"):
            files.write_bytes(tmp_path / "a.csv", bytes(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_temporary_files_are_new_and_those_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    for name in (".a.part", ".a.0123456789abcdef.part"):
        (tmp_path / name).symlink_to(tmp_path / "target")
    (tmp_path / ".a.killed.part").touch()
    with files.create_temporary(tmp_path / "b") as living:
        files.write_text(tmp_path / "a", "new")
        assert Path(living.name).exists()
    assert ((tmp_path / "target").read_text(), (tmp_path / "a").read_text()) == ("mine", "new")
    assert not (tmp_path / ".a.killed.part").exists()


def test_text_with_undecodable_name_is_escaped(tmp_path: Path) -> None:
    files.write_text(tmp_path / "text", "caf\udce9 é")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "caf\\udce9 é"


def test_json_has_no_infinity_and_no_objects(tmp_path: Path) -> None:
    content = {"high": math.inf, "low": -math.inf, "none": math.nan, "path": Path("a"), "pair": (1, 2.5)}
    expected = {"high": "inf", "low": "-inf", "none": "nan", "path": "a", "pair": [1, 2.5]}
    assert files.to_json(content) == expected
    files.write_json(tmp_path / "a.json", content)
    assert json.loads((tmp_path / "a.json").read_text()) == files.read_json(tmp_path / "a.json", pair=list) == expected


@pytest.mark.slow
def test_each_changed_byte_of_a_sealed_file_is_found(tmp_path: Path) -> None:
    path, content = tmp_path / "a.json", {"score": 12.5, "é\udce9": ["a", None], "sha256": "old"}
    files.write_sealed_json(path, content)
    kept = path.read_bytes()
    expected = {name: value for name, value in content.items() if name != "sha256"}
    assert files.read_json(path, score=float) == expected
    for k in range(len(kept)):
        for byte in (kept[k] ^ 1, kept[k] ^ 16):
            path.write_bytes(kept[:k] + bytes([byte]) + kept[k + 1 :])
            with suppress(InputError):  # A damaged key "sha256" is an unknown key.
                assert {name: value for name, value in files.read_json(path).items() if name in expected} == expected
    path.write_text(json.dumps({"score": 13}))  # An edit whose hash the user has deleted.
    assert files.read_json(path) == {"score": 13}


def test_file_with_another_hash_than_recorded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    hashes = {name: sha256(b"a,b\n1,2\n").hexdigest() for name in ("a.csv", "figures/a.csv")}
    files.write_json(tmp_path / "hashes.json", hashes)
    for name in hashes:
        path = tmp_path / name
        path.write_text("a,b\n1,2\n")
        assert files.read_csv(path) == [{"a": "1", "b": "2"}]
        path.write_text("a,b\n1,3\n")
        with pytest.raises(InputError, match=rf"{name}: .*hashes\.json"):
            files.read_csv(path)


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": "text"}', "\udcff"])
def test_broken_json_names_the_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"a\.json: broken"):
        files.read_json(tmp_path / "a.json", a=int)


def test_missing_json_names_the_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path / "file" / "none.json"):
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=r"none\.json"):
            files.read_json(path)


def test_csv_has_named_columns_first(tmp_path: Path) -> None:
    files.write_csv(tmp_path / "a.csv", [{"a": 1, "b": "x,\ny\rz"}, {"c": 2}], columns=("c", "d"))
    assert (tmp_path / "a.csv").read_text().startswith("c,d,a,b\n")
    assert files.read_csv(tmp_path / "a.csv") == [
        {"c": "", "d": "", "a": "1", "b": "x,\ny\rz"},
        {"c": "2", "d": "", "a": "", "b": ""},
    ]
    (tmp_path / "a.csv").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"a\.csv: broken"):
        files.read_csv(tmp_path / "a.csv")


def test_recoverable_errors() -> None:
    assert files.is_recoverable(OSError(errno.ENOSPC, "full"))
    assert not files.is_recoverable(OSError(errno.ENOENT, "missing"))
    assert not files.is_recoverable(ValueError())


def test_status_goes_to_standard_output_or_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    files.print_status("read")
    files.print_status("skipped", sys.stderr)
    assert capsys.readouterr() == ("read\n", "skipped\n")


def test_status_escapes_controls_and_shortens_messages(capsys: pytest.CaptureFixture[str]) -> None:
    files.print_status("\x1b]0;x\x07 a\rb\n\x9b \u202e é日\t👩‍🚀")
    assert capsys.readouterr().out == "\\x1b]0;x\\x07 a\\rb\\n\\x9b \\u202e é日\t👩‍🚀\n"
    files.print_status("start" + "x" * 100_000 + "end", sys.stderr)
    line = capsys.readouterr().err
    assert len(line) < 520
    assert line.startswith("start")
    assert line.endswith("end\n")


class ClosedOutput(TextIOBase):
    """A stream whose reader has closed the pipe."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError


def encode_sounds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["file,label,fold"]
    for k in range(12):
        soundfile.write(folder / f"{k}.wav", np.random.default_rng(k).uniform(-0.5, 0.5, 2000), 4000)
        lines.append(f"{k}.wav,{'ab'[k % 2]},{k // 3}")
    (folder / "0.wav").write_bytes(b"no sound")
    (folder / "1.wav").write_bytes((folder / "5.wav").read_bytes())
    (folder / "sounds.csv").write_text("\n".join(lines))

    def count() -> int:
        source = AudioFolder(folder / "sounds.csv")
        tokenizer, head = FrameTokenizer(8, sample_rate=4000, n_mels=16), ClassificationHead(source.labels, 8)
        task = prepare_task(source, tokenizer, head, bad_examples="skip", num_workers=0)
        return sum(map(len, task.splits.values()))

    monkeypatch.setenv("UNIFIER_CACHE", str(folder / "cache"))
    assert [count(), count()] == [11, 11]  # encoded with a skipped example, and loaded from the cache
    (entry,) = (folder / "cache" / "encoded").iterdir()
    (entry / "values").unlink()
    assert count() == 11  # The damaged entry was rebuilt.
    monkeypatch.setenv("UNIFIER_CACHE", str(folder / "sounds.csv"))
    assert count() == 11  # The cache cannot be written.


def download_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "remote").write_bytes(b"a set")
    download((folder / "remote").as_uri(), folder / "local", RemoteFile(5, sha256(b"a set").hexdigest()))
    assert (folder / "local").read_bytes() == b"a set"


def drop_duplicates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pairs.tsv").write_text("".join(f"a dog {k % 20}\tein Hund {k % 20}\n" for k in range(30)))
    assert len(ParallelText(folder / "pairs.tsv", duplicates="drop").split("train")) < 24


def stop_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GracefulStop(folder) as callback:
        raise_signal(SIGINT)
    assert callback.requested


@pytest.mark.slow
@pytest.mark.parametrize("act", [encode_sounds, download_file, drop_duplicates, stop_training])
def test_closed_output_stops_nothing(
    act: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fixture could not do this, because pytest replaces both streams after it sets up fixtures.
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, ClosedOutput())
    act(tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("print('a line', flush=True)", []),
        ("raise Interrupted(Path('runs'))", []),
        ("raise BrokenPipeError('the pipe of a tracker')", ["BrokenPipeError: the pipe of a tracker"]),
    ],
    ids=["print", "interrupted", "another pipe"],
)
def test_command_with_closed_output_ends_silently(act: str, message: list[str]) -> None:
    program = f"""
from pathlib import Path
from unifier.cli import main
from unifier.commands import listing
from unifier.training.result import Interrupted

def act(_):
    {act}

listing.act_list = act
raise SystemExit(main(["list"]))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        if not message:
            command.stdout.close()
        errors = command.stderr.read().decode()
    assert command.returncode == 1
    assert [line for line in errors.splitlines()[-1:] if not line.startswith("interrupted")] == message


@pytest.mark.parametrize("depth", [300, 600, 900, 100_000])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a": ', "}")])
def test_deeply_nested_json_is_refused(depth: int, start: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": ' + start * depth + "1" + end * depth + "}")
    with pytest.raises(InputError, match=r"a\.json.*nested"):
        files.read_json(tmp_path / "a.json")
