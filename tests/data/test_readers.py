"""Pictures, sounds, tables and archives are read into one form each. An unreadable file is an error of one line."""

import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.data.conftest import refused
from unifier.data import audio_files, image_files, readers

RED = (200, 30, 60)


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.xz"])
def test_archive_files_equal_folder_files(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3)).save(folder / "a.png")
    soundfile.write(folder / "b.wav", np.linspace(-0.5, 0.5, 50), 8000)
    (folder / "broken.wav").write_bytes((folder / "b.wav").read_bytes()[:60])
    path = tmp_path / f"packed.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            packed.mkdir("some")
            for file in folder.iterdir():
                packed.write(file, f"some/{file.name}")
    else:
        with tarfile.open(tmp_path / "plain", "w") as packed:
            packed.add(folder, "some")
        plain = (tmp_path / "plain").read_bytes()
        path.write_bytes({"tar": bytes, "tar.gz": gzip.compress, "tar.xz": lzma.compress}[suffix](plain))
    archive = readers.read_archive(path)
    assert archive == {path / "some" / file.name: file.read_bytes() for file in folder.iterdir()}
    assert (
        image_files.read_image(path / "some" / "a.png", archive=archive) == image_files.read_image(folder / "a.png")
    ).all()
    inside, outside = audio_files.read_audio(path / "some" / "b.wav", archive), audio_files.read_audio(folder / "b.wav")
    assert inside.sample_rate == outside.sample_rate
    assert np.array_equal(inside.waveform, outside.waveform)
    for name in ("broken.wav", "none.wav"):
        with refused(f"packed.{suffix}/some/{name}"):
            audio_files.read_audio(path / "some" / name, archive)


def test_unreadable_archives_and_texts_are_named(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a", bytes(1000))
    (tmp_path / "cut.zip").write_bytes(content.getvalue()[:500])
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text\n" * 100)[:-12])
    for name in ("page.zip", "page.tar.xz", "plain.gz"):
        (tmp_path / name).write_text("<html>")
    for name in ("cut.zip", "page.zip", "page.tar.xz", ".", "none.zip", "none.tar.xz"):
        with refused(str(tmp_path / name)):
            readers.read_archive(tmp_path / name)
    for name in ("cut.gz", "plain.gz", "none", "."):
        with refused(str(tmp_path / name)):
            readers.read_lines(tmp_path / name)
    (tmp_path / "latin").write_bytes("gut\nschön\n".encode("latin-1"))
    with refused(f"{tmp_path / 'latin'}, line 2", "UTF-8"):
        readers.read_lines(tmp_path / "latin")


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    lines = ["one\u2028still one", "zwei \x85 zwei", "", "четыре"]
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert readers.read_lines(tmp_path / "text") == lines
    (tmp_path / "text.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    assert readers.read_lines(tmp_path / "text.gz") == lines


def test_table_rows_have_lines_and_cells(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('file,label\na.wav,"cat, or dog"\nb.wav,dog\n')
    assert readers.read_labels_table(path, ("label",)) == [
        readers.TableRow(2, {"file": "a.wav", "label": "cat, or dog"}),
        readers.TableRow(3, {"file": "b.wav", "label": "dog"}),
    ]
    with refused("no column fold", "file, label"):
        readers.read_labels_table(path, ("file", "fold"))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("file,label\na,b\nshort\n", ("line 3", "2 cells")),
        ("file;label\na;b\n", ("semicolons",)),
        ("file,label\na,b\ntoo,long,a row\n", ("line 3", "2 cells")),
        ("file,file\na,b\n", ("two columns file",)),
        ('file,label\n"a,b\n' + 70_000 * "c,d\n", ("line 2",)),
        ('file,label\na,b\na,"b\nc,d\n', ("line 3",)),
        ('"file,label\n' + 7_000_000 * "c", ("line ",)),
    ],
    ids=[
        "short row",
        "semicolons",
        "long row",
        "duplicate column",
        "unclosed quote",
        "unclosed last cell",
        "long cell",
    ],
)
def test_malformed_table_is_refused(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    (tmp_path / "table.csv").write_text(text)
    with refused(str(tmp_path / "table.csv"), *parts):
        readers.read_labels_table(tmp_path / "table.csv", ())


def test_wide_tables_and_long_cells_are_read(tmp_path: Path) -> None:
    path, text = tmp_path / "table.csv", "word " * 100_000
    columns = ",".join(f"c{k}" for k in range(100_000))
    path.write_text(f"{columns},text,label\n" + f"{columns},{text},dog\n" * 3)
    assert readers.read_labels_table(path, ("text", "label"))[2].cells == {"text": text, "label": "dog"}
    with refused("no column file"):
        readers.read_labels_table(path, ("file",))
    assert readers.parse_label(" dog ", "here") == "dog"
    for cell in ("x" * 100_000, " "):
        with refused("here"):
            readers.parse_label(cell, "here")


def test_cells_are_parsed_as_groups_and_numbers() -> None:
    rows = [readers.TableRow(k + 2, {"group": cell}) for k, cell in enumerate(("a", " a ", "", " "))]
    groups = readers.read_groups(rows) or []
    assert (groups[:2], len(set(groups))) == (["a", "a"], 3), "a row without a group is its own group"
    assert readers.read_groups([readers.TableRow(2, {"file": "a"})]) is None
    assert (readers.parse_number(" 1.5 ", "here"), readers.parse_integer("2.0", "here")) == (1.5, 2)
    for cell in ("", "many", "nan", "inf"):
        with refused("here", repr(cell)):
            readers.parse_number(cell, "here")
    with refused("here", "'1.5'"):
        readers.parse_integer("1.5", "here")


def test_hash_depends_on_names_and_contents(tmp_path: Path) -> None:
    for folder, content in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text(content)
    a, b, c = (readers.hash_files({"file": tmp_path / folder / "file"}) for folder in "abc")
    assert a == b != c
    line = hashlib.sha256(b"same").hexdigest() + "  file\n"  # as the program sha256sum prints it
    assert a == hashlib.sha256(line.encode()).hexdigest()
    not_utf8 = line.encode().replace(b"file", b"caf\xe9")
    assert (
        readers.hash_files({os.fsdecode(b"caf\xe9"): tmp_path / "a" / "file"}) == hashlib.sha256(not_utf8).hexdigest()
    )
    with refused("none"):
        readers.hash_files({"file": tmp_path / "none"})
    files = {"file": tmp_path / "a" / "file", "gone": tmp_path / "none"}
    expected = hashlib.sha256((line + "unreadable  gone\n").encode()).hexdigest()
    assert readers.hash_all(readers.hash_each(files, unreadable="unreadable")) == expected


@pytest.mark.parametrize("suffix", ["zip", "tar.xz"])
def test_archive_that_fills_the_memory_is_refused(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_EXPANSION", 10_000)
    (tmp_path / "zeros").write_bytes(bytes(50_000))
    path = tmp_path / f"bomb.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.write(tmp_path / "zeros")
    else:
        with tarfile.open(path, "w:xz") as packed:
            packed.add(tmp_path / "zeros")
    with refused(path.name):
        readers.read_archive(path)


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.xz"])
@pytest.mark.parametrize(("start", "end"), [(1024, 10_240), (1536, 10_240), (1024, 1536), (1024, 1025)])
def test_damaged_tar_is_refused(suffix: str, start: int, end: int, tmp_path: Path) -> None:
    """Without its end, or with zeros in place of a header, Python's tarfile silently returns fewer files."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as packed:
        for name in "ab":
            (tmp_path / name).write_text(name)
            packed.add(tmp_path / name, name)
    content = plain.getvalue()
    content = content[:start] + (bytes(end - start) + content[end:] if end < len(content) else b"")
    pack = {"tar": bytes, "tar.gz": gzip.compress, "tar.xz": lzma.compress}[suffix]
    path = tmp_path / f"files.{suffix}"
    path.write_bytes(pack(content))
    with refused(path.name):
        readers.read_archive(path)


def test_archive_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "files.tar.gz"
    (tmp_path / "zeros").write_bytes(bytes(1000))
    with tarfile.open(path, "w:gz") as packed:
        packed.add(tmp_path / "zeros", "zeros")
    content = bytearray(path.read_bytes())
    content[-8] ^= 1  # The checksum of gzip is in the last 8 bytes.
    path.write_bytes(content)
    with refused(path.name):
        readers.read_archive(path)
