"""MIDI files: written and read again, read as a plain loop over mido's messages, damaged, and as a data set."""

import io
import random
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import mido
import pytest

from unifier.data.dataset import open_split
from unifier.data.inputs import MidiReader, reader_of
from unifier.data.midi_files import read_midi, write_midi
from unifier.data.source import describe_example, readable_examples
from unifier.datasets import MidiFolder, PolyphonicMusic, create_symbolic_music
from unifier_tokenizers import InputError, PianoRollTokenizer

STEPS = [[60, 64], [60], [], [62, 108], [21, 62]]


def make_midi(messages: list[Any], kind: int = 0) -> bytes:
    file, content = mido.MidiFile(type=kind, ticks_per_beat=96), io.BytesIO()
    file.add_track().extend(messages)
    file.save(file=content)
    return content.getvalue()


def note(number: int, time: int, kind: str = "note_on", **given: Any) -> mido.Message:
    return mido.Message(kind, note=number, time=time, **given)


@pytest.mark.parametrize("steps_per_beat", [1, 2, 3, 4, 7])
def test_written_piece_is_read_again(tmp_path: Path, steps_per_beat: int) -> None:
    write_midi(tmp_path / "a.mid", STEPS, steps_per_beat)
    assert read_midi(tmp_path / "a.mid", steps_per_beat) == STEPS
    file = mido.MidiFile(tmp_path / "a.mid")
    assert file.length == pytest.approx(len(STEPS) * 0.5 / steps_per_beat, abs=0.01)
    assert sum(message.type == "note_on" for message in file) == 5


def test_notes_are_rounded_to_the_grid(tmp_path: Path) -> None:
    """A chord of two channels, a short note, a note struck twice, a note without an end, and drums."""
    messages = [
        note(60, 0), note(60, 0, channel=1), note(60, 40, "note_off", channel=1), note(60, 60, "note_off"),
        note(62, 0), note(62, 3, velocity=0),
        note(64, 41), note(64, 48), note(64, 48, velocity=0),
        note(70, 0), note(36, 0, channel=9), note(71, 96), note(71, 47, "note_off"),
    ]  # fmt: skip
    (tmp_path / "a.mid").write_bytes(make_midi(messages))
    assert read_midi(tmp_path / "a.mid", 2) == [[60], [60], [62], [64], [64], [70], [70], [70, 71]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.mid"),
        (b"MThd", "a.mid"),
        (b"no music", "a.mid"),
        (make_midi([note(60, 0)])[:-4], "a.mid"),
        (make_midi([]), "no notes"),
        (make_midi([note(40, 0, channel=9)]), "no notes"),
        (make_midi([note(20, 0), note(20, 9, "note_off")]), "note 20"),
        (make_midi([note(60, 0), note(60, 1 << 27, "note_off")]), "time steps"),
        (make_midi([note(60, 0)], kind=2), "type 0 or 1"),
        (make_midi([note(60, 0)])[:12] + b"\xe7\x28" + make_midi([note(60, 0)])[14:], "beats"),
        (make_midi([note(60, 0)])[:12] + b"\0\0" + make_midi([note(60, 0)])[14:], "beats"),
    ],
)
def test_unreadable_file_is_named_in_a_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.mid").write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_midi(tmp_path / "a.mid", 2)
    assert "a.mid" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    generator, whole = random.Random(0), make_midi([note(60 + k % 9, 9) for k in range(60)])
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(generator.randint(1, 8)):
            content[generator.randrange(len(content))] = generator.randrange(256)
        (tmp_path / "a.mid").write_bytes(content)
        with suppress(InputError):
            PianoRollTokenizer(8).encode(read_midi(tmp_path / "a.mid", 2))


@pytest.mark.parametrize("folders", [(), ("train", "val", "test"), ("train",)])
def test_folder_is_divided_once(tmp_path: Path, folders: tuple[str, ...]) -> None:
    for k in range(30):
        path = tmp_path / (folders[k % len(folders)] if folders else "any") / f"{k:02}.MID"
        path.parent.mkdir(exist_ok=True)
        write_midi(path, [[60 + k]], 2)
    source = create_symbolic_music(str(tmp_path))
    pieces = {name: [example.input[0][0] for example in open_split(source, name)] for name in ("train", "val", "test")}
    assert sorted(chain(*pieces.values())) == [*range(60, 90)]
    assert (len(pieces["val"]), len(pieces["test"])) == ((10, 10) if len(folders) == 3 else (3, 3))
    assert len(source.sha256) == 64
    assert reader_of(source, PianoRollTokenizer(8)) == MidiReader(2)


def test_damaged_file_of_a_folder_is_skipped_by_choice(tmp_path: Path) -> None:
    for k in range(9):
        write_midi(tmp_path / f"{k}.mid", [[60]], 2)
    train = open_split(MidiFolder(tmp_path), "train")
    Path(describe_example(train, 0)).write_bytes(b"MThd")
    with pytest.raises(InputError, match="bad_examples=skip"):
        list(readable_examples(train))
    assert len(list(readable_examples(train, bad_examples="skip"))) == len(train) - 1


@pytest.mark.parametrize("name", ["missing", "jsb"])
def test_unknown_data_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=name):
        create_symbolic_music(str(tmp_path / name))
    with pytest.raises(InputError, match="steps_per_beat=4"):
        create_symbolic_music("nottingham", steps_per_beat=4)
    (tmp_path / "train").mkdir()
    with pytest.raises(InputError, match="MIDI"):
        MidiFolder(tmp_path).split("train")


def test_collections_have_their_own_grid() -> None:
    readers = [reader_of(PolyphonicMusic(name), PianoRollTokenizer(8)) for name in ("jsb_chorales", "nottingham")]
    assert readers == [MidiReader(1), MidiReader(2)]
