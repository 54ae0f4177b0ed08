"""MIDI files as piano rolls: the notes that sound in each time step, on a grid of beats."""

import io
from collections.abc import Sequence
from pathlib import Path

import mido
import numpy as np

from unifier.data.readers import read_content
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import one_line
from unifier_tokenizers.piano_roll import LOWEST_NOTE, NUM_NOTES

MIDI_SUFFIXES = frozenset({".mid", ".midi"})

DRUM_CHANNEL = 9
"""The channel of the drums in General MIDI, counted from 0. Its notes are not tones."""

MAX_STEPS = 1 << 17
"""Maximum number of time steps of a piece. A damaged file can contain pauses of days."""

TICKS_PER_BEAT = 480
"""Resolution of written files. A step is a whole number of ticks if 480 is divisible by the steps per beat."""

BEAT_SECONDS = 0.5
"""Duration of a beat in a written file and in a synthesized sound, which is the default tempo of MIDI."""

VELOCITY = 80
"""Loudness of written notes, from 1 to 127."""

Steps = list[list[int]]
"""The MIDI numbers of the sounding notes of each time step, in ascending order."""


def read_midi(path: Path, steps_per_beat: int) -> Steps:
    """Read the notes of all instruments except drums. Tempo and loudness are not used.

    The start and the end of a note are rounded to the nearest step, and each note sounds for at least one step.

    Args:
        path: The file.
        steps_per_beat: The number of time steps per beat. A beat is usually a quarter note.

    Raises:
        InputError: The file cannot be read, is no MIDI file, or has no note or a note that is not on a piano.
    """
    content = io.BytesIO(read_content(path))
    try:
        file = mido.MidiFile(file=content)
    except Exception as error:  # A damaged file raises many types of exceptions in mido.
        raise InputError(
            f"{path} is no MIDI file that can be read: {one_line(error) or type(error).__name__}"
        ) from error
    if file.type == 2 or not 0 < file.ticks_per_beat < 1 << 15:
        raise InputError(f"{path}: its notes are not counted in beats; save the piece as a MIDI file of type 0 or 1")
    step = file.ticks_per_beat / steps_per_beat
    spans = list[tuple[int, int, int]]()
    for track in file.tracks:
        tick, starts = 0, dict[tuple[int, int], int]()
        for message in track:
            tick += message.time
            if message.type not in ("note_on", "note_off") or message.channel == DRUM_CHANNEL:
                continue
            start = starts.pop((message.channel, message.note), None)
            if start is not None:
                spans.append((message.note, start, tick))
            if message.type == "note_on" and message.velocity:
                starts[message.channel, message.note] = tick
        spans += [(note, start, tick) for (_, note), start in starts.items()]
    return _to_steps(path, [(note, round(start / step), round(end / step)) for note, start, end in spans])


def _to_steps(path: Path, spans: Sequence[tuple[int, int, int]]) -> Steps:
    """Convert notes with their first step and the step after their last step to the notes of each step."""
    if not spans:
        raise InputError(f"{path} has no notes: give a piece with notes of an instrument other than drums")
    if other := [note for note, _, _ in spans if not LOWEST_NOTE <= note < LOWEST_NOTE + NUM_NOTES]:
        raise InputError(
            f"{path} has the note {other[0]}, which is not on a piano: transpose the piece to the notes {LOWEST_NOTE} "
            f"to {LOWEST_NOTE + NUM_NOTES - 1}"
        )
    count = max(max(end, start + 1) for _, start, end in spans)
    if count > MAX_STEPS:
        raise InputError(f"{path} has {count:,} time steps, but at most {MAX_STEPS:,} are possible: divide the piece")
    roll = np.zeros((count, NUM_NOTES), np.bool_)
    for note, start, end in spans:
        roll[start : max(end, start + 1), note - LOWEST_NOTE] = True
    return [(np.flatnonzero(notes) + LOWEST_NOTE).tolist() for notes in roll]


def write_midi(path: Path, steps: Sequence[Sequence[int]], steps_per_beat: int) -> None:
    """Write a piece for piano, with beats of `BEAT_SECONDS`. A note in successive steps is one long note.

    Args:
        path: The file.
        steps: The MIDI numbers of the sounding notes of each time step.
        steps_per_beat: The number of time steps per beat.
    """
    file = mido.MidiFile(type=0, ticks_per_beat=TICKS_PER_BEAT)
    track = file.add_track()
    step, last, before = TICKS_PER_BEAT / steps_per_beat, 0, set[int]()
    for n, notes in enumerate([*map(set, steps), set[int]()]):
        tick = round(n * step)
        for kind, changed in (("note_off", before - notes), ("note_on", notes - before)):
            for note in sorted(changed):
                track.append(mido.Message(kind, note=note, velocity=VELOCITY, time=tick - last))
                last = tick
        before = notes
    track.append(mido.MetaMessage("end_of_track", time=round(len(steps) * step) - last))
    file.save(path)
