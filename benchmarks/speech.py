"""Measure how well a recognizer reads generated speech: `python -m benchmarks.speech SPEAKER_RUN RECOGNIZER_RUN`.

Strings of random digits are composed with a seed, and the codes of the speakers take turns. A run of speech_synthesis
speaks the strings, and a run of speech_recognition reads the sounds. The recognizer must be trained on recordings only.
Two rows follow for orientation. In the first row, the recognizer reads composed recordings of the test split. In the
second row, the same recordings are first converted to log-mel frames and back to sound.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from benchmarks.runner.tables import table_header, table_row
from unifier.data.source import use_data_folder
from unifier.datasets.fsdd import FSDDStrings
from unifier.datasets.spoken_texts import coded_digits
from unifier.files import write_json
from unifier.heads.ctc import CTCHead
from unifier.heads.score_intervals import score_intervals
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead
from unifier.inference.model import Model, load
from unifier.inference.sound_folder import write_sound
from unifier_tokenizers import Audio, InputError, SubwordTokenizer

NUM_STRINGS, LENGTHS = 200, (3, 7)
"""Default number of strings, and default smallest and largest number of digits in a string."""


@final
class Reading(NamedTuple):
    """What a recognizer reads in some sounds."""

    name: str
    scores: dict[str, Any]
    """The share of digits that are read correctly, its 95 % interval, and the share of exact strings, in percent."""
    texts: list[tuple[str, str]]
    """The true and the read digits of each sound."""


def compose_digits(count: int, lengths: tuple[int, int], seed: int) -> list[str]:
    """Return strings of random digits.

    Args:
        count: The number of strings.
        lengths: The smallest and the largest number of digits in a string.
        seed: The random seed.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(lengths[0], lengths[1] + 1, size=count)
    return ["".join(map(str, rng.integers(10, size=size))) for size in sizes.tolist()]


def speakers_of(model: Model, task: str) -> list[str]:
    """Return the speakers of a model that speaks digits.

    Raises:
        InputError: The model does not speak, or has no speakers.
    """
    head, tokenizer = model.tasks[task].head, model.tasks[task].tokenizer
    codes = tokenizer.codes if isinstance(tokenizer, SubwordTokenizer) else ()
    if not isinstance(head, SpectrogramDecoderHead) or not codes:
        raise InputError(f"{model.folder}: give a run of the recipe speech_synthesis with data=fsdd_strings first")
    return [code.strip("<>") for code in codes]


def speak(model: Model, task: str, texts: Sequence[str]) -> tuple[list[Audio], int]:
    """Return the sound of each text, and the number of sounds without an end."""
    head = model.tasks[task].head
    assert isinstance(head, SpectrogramDecoderHead)
    found = [*model.predictions(texts, task)]
    return [head.to_sound(speech) for speech in found], sum(not speech.ended for speech in found)


def digit_head(recognizer: Model) -> CTCHead:
    """Return the head of a model that reads digits.

    Raises:
        InputError: The model reads no digits.
    """
    head = recognizer.tasks[recognizer.choose_task()].head
    if not isinstance(head, CTCHead) or head.labels != FSDDStrings.labels:
        raise InputError(f"{recognizer.folder}: give a run of the recipe speech_recognition with head=ctc second")
    return head


def read(name: str, recognizer: Model, sounds: Sequence[Audio], digits: Sequence[str]) -> Reading:
    """Return what a recognizer reads in sounds, compared with the true digits."""
    head = digit_head(recognizer)
    predictions = [*recognizer.predictions(sounds)]
    # A string that is longer than in training counts as any other string here.
    plain = CTCHead(head.labels, head.dim)
    scores, interval = plain.checked_metrics(predictions, digits), score_intervals(plain, predictions, digits)
    (low, high) = interval["error_rate"][:2] if "error_rate" in interval else (float("nan"), float("nan"))
    content = {"correct": 100 - scores["error_rate"], "low": 100 - high, "high": 100 - low, "exact": scores["exact"]}
    return Reading(name, content, [*zip(digits, map(head.describe, predictions), strict=True)])


def judge(
    model: Model,
    recognizer: Model,
    *,
    count: int,
    lengths: tuple[int, int],
    seed: int,
    out: Path | None,
    sharpening: float | None,
) -> list[Reading]:
    """Return the readings of generated speech, of recordings, and of recordings that were converted to frames and back.

    Args:
        model: A trained model of the recipe speech_synthesis.
        recognizer: A trained model of the recipe speech_recognition.
        count: The number of strings.
        lengths: The smallest and the largest number of digits in a string.
        seed: The random seed of the strings.
        out: A folder for the generated sounds, or None.
        sharpening: The factor that replaces the sharpening of the head, or None.
    """
    task = model.choose_task()
    digit_head(recognizer)  # A wrong model is refused before the strings are spoken.
    speakers, digits = speakers_of(model, task), compose_digits(count, lengths, seed)
    head = model.tasks[task].head
    assert isinstance(head, SpectrogramDecoderHead)
    head.sharpening = head.sharpening if sharpening is None else sharpening
    voices = [speakers[number % len(speakers)] for number in range(count)]
    texts = [coded_digits(voice, text) for voice, text in zip(voices, digits, strict=True)]
    sounds, unfinished = speak(model, task, texts)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for number, (voice, text, sound) in enumerate(zip(voices, digits, sounds, strict=True)):
            write_sound(out / f"{number:03}-{voice}-{text}.wav", sound)
    generated = read("generated speech", recognizer, sounds, digits)
    generated.scores["unfinished"] = 100 * unfinished / count
    readings = [generated]
    for speaker in speakers:
        own = [k for k, voice in enumerate(voices) if voice == speaker]
        if own:
            part = read(f"generated, {speaker}", recognizer, [sounds[k] for k in own], [digits[k] for k in own])
            readings.append(part)
    recordings = FSDDStrings(None, held_out=count, lengths=lengths, seed=seed).split("test")
    recorded, spoken = [example.input for example in recordings], [example.target for example in recordings]
    readings.append(read("recordings", recognizer, recorded, spoken))
    copies = [head.log_mel.sound(head.log_mel.spectrogram(sound)) for sound in recorded]
    readings.append(read("recordings, to frames and back", recognizer, copies, spoken))
    return readings


def reading_table(readings: Sequence[Reading]) -> str:
    """Return a table of readings, in percent."""
    lines = [table_header(["sounds", "digits read correctly", "95 % interval", "exact strings", "strings"], (0,))]
    for name, scores, texts in readings:
        cells = [f"{scores['correct']:.1f}", f"{scores['low']:.1f} to {scores['high']:.1f}", f"{scores['exact']:.1f}"]
        lines.append(table_row([name, *cells, str(len(texts))]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of readings. Return 2 if the input is invalid, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speech", description="Measure how well a recognizer reads generated speech."
    )
    parser.add_argument("speaker", help="a run of the recipe speech_synthesis", metavar="SPEAKER_RUN")
    parser.add_argument("recognizer", help="a run of the recipe speech_recognition", metavar="RECOGNIZER_RUN")
    parser.add_argument("--strings", type=int, default=NUM_STRINGS, help="number of strings (200)", metavar="N")
    parser.add_argument("--lengths", type=int, nargs=2, default=LENGTHS, help="digits in a string (3 7)", metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the strings (1)")
    parser.add_argument("--sharpening", type=float, help="replace the setting sharpening of the speaker", metavar="X")
    parser.add_argument("--data", type=Path, help="folder of the data sets (default: $UNIFIER_DATA)", metavar="DIR")
    parser.add_argument("--out", type=Path, help="folder for the generated sounds and readings.json", metavar="DIR")
    options = parser.parse_args(arguments)
    shortest, longest = options.lengths
    try:
        if not 1 <= shortest <= longest or options.strings < 2 or options.seed < 0:
            raise InputError(
                f"--strings {options.strings}, --lengths {shortest} {longest}, --seed {options.seed}: give at least 2 "
                "strings, lengths of at least 1 in order, and a seed of at least 0"
            )
        if options.sharpening is not None and not 0 < options.sharpening < math.inf:
            raise InputError(f"--sharpening {options.sharpening}: give a finite number above 0")
        with use_data_folder(options.data):
            readings = judge(
                load(options.speaker),
                load(options.recognizer),
                count=options.strings,
                lengths=(shortest, longest),
                seed=options.seed,
                out=options.out,
                sharpening=options.sharpening,
            )
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if options.out is not None:
        write_json(options.out / "readings.json", {reading.name: reading._asdict() for reading in readings})
    print(reading_table(readings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
