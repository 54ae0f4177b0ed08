"""Synthetic music: short pieces in five genres, composed by rules and played by a small synthesizer.

A genre defines the beats in a bar, the beats on which chords, bass and drums are played, the chord length, and the
chord progressions. Tempo, key, loudness, brightness and noise have the same distribution in all genres, and several
genres use the same instruments. A model can therefore recognize a genre only by its rhythm and harmony.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.random import RandomState  # RandomState draws equal numbers in every version of NumPy.
from numpy.typing import NDArray

from unifier.data.source import SPLITS, Example, ScoreRange, SplitName, accuracy_range
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.errors import check_choice

Wave = NDArray[np.float64]

MusicTarget = Literal["genre", "tags"]

MUSIC_TARGETS: tuple[MusicTarget, ...] = ("genre", "tags")


class Instrument(NamedTuple):
    """An instrument, defined by the overtones and the loudness envelope of its notes."""

    partials: tuple[float, ...]
    """Amplitudes of the fundamental and its overtones."""
    attack: float
    """Time in seconds from the start of a note to its full loudness."""
    decay: float
    """Rate of the exponential decay of the loudness, in 1/s. 0 means a constant loudness."""


INSTRUMENTS = {
    "guitar": Instrument((1, 0.8, 0.6, 0.45, 0.3, 0.25, 0.2, 0.15), 0.002, 5),
    "organ": Instrument((1, 0.9, 0.5, 0.6, 0, 0.3, 0, 0.4), 0.01, 0),
    "piano": Instrument((1, 0.5, 0.3, 0.2, 0.1, 0.06, 0.03, 0.02), 0.004, 3),
    "reed": Instrument((1, 0, 0.6, 0, 0.4, 0, 0.25, 0, 0.15), 0.02, 0),
    "strings": Instrument((1, 0.5, 0.33, 0.25, 0.2, 0.17, 0.14, 0.12), 0.06, 0),
}


class Genre(NamedTuple):
    """The rules of a genre. Times are in beats from the start of a bar."""

    beats: int
    chords: tuple[float, ...]
    length: float
    """Mean length of a chord in beats. In each piece, the chord length differs from the mean by up to 40 percent."""
    bass: tuple[float, ...]
    kick: tuple[float, ...]
    snare: tuple[float, ...]
    hat: tuple[float, ...]
    progressions: tuple[tuple[int, ...], ...]
    """Possible chord progressions. Each number is the root of a chord as a scale step (0 is the tonic).

    The chord root changes every two beats. In bars of three beats, the chord root changes every three beats.
    """
    minor: float
    """Fraction of the pieces that are in a minor key."""
    seventh: bool
    instruments: tuple[str, ...]


GENRES = {
    "house": Genre(
        4, (0, 0.75, 1.5, 2.5, 3.25), 0.4, (0.5, 1.5, 2.5, 3.5), (0, 1, 2, 3), (1, 3), (0.5, 1.5, 2.5, 3.5),
        ((0, 0, 5, 6), (0, 3, 5, 4)), 0.6, False, ("organ", "piano", "reed", "strings"),
    ),
    "reggae": Genre(
        4, (0.5, 1.5, 2.5, 3.5), 0.25, (0, 0.5, 2, 2.75), (2,), (2,), (0, 1, 2, 3),
        ((0, 0, 3, 3), (0, 3, 4, 3)), 0.5, False, ("guitar", "organ", "piano", "reed"),
    ),
    "rock": Genre(
        4, (0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5), 0.45, (0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5), (0, 2, 2.5), (1, 3),
        (0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5), ((0, 0, 3, 4), (0, 5, 3, 4)), 0.4, False,
        ("guitar", "organ", "reed", "strings"),
    ),
    "swing": Genre(
        4, (0, 1 + 2 / 3, 3 + 2 / 3), 0.5, (0, 1, 2, 3), (0, 2), (1, 3), (0, 1, 1 + 2 / 3, 2, 3, 3 + 2 / 3),
        ((1, 4, 0, 0), (0, 5, 1, 4)), 0.4, True, ("guitar", "piano", "reed", "strings"),
    ),
    "waltz": Genre(
        3, (1, 2), 0.7, (0,), (0,), (1, 2), (0, 1, 2),
        ((0, 4), (0, 3), (0, 4, 4, 0)), 0.4, False, ("guitar", "organ", "piano", "strings"),
    ),
}  # fmt: skip

MAJOR, MINOR = (0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10)

FAST_TEMPO = 120.0
"""Tempo in beats per minute. Pieces with at least `FAST_TEMPO` have the tag "fast". Slower pieces have the tag
"slow"."""

WAVE_TABLE_SIZE = 2048
"""Number of samples of one period in a wave table."""

FULL_SCALE = 2**15 - 1
"""Largest 16-bit sample. Waveforms are rounded to 16 bits, because machines differ in the last bits of a sine."""

TAGS = ("bass", "drums", "fast", "major", "minor", "plucked", "slow", "sustained", "syncopated", "triple")


class Score(NamedTuple):
    """The parameters of one piece."""

    genre: str
    tempo: float
    """Beats per minute."""
    key: int
    """Distance of the tonic above C in semitones."""
    minor: bool
    progression: tuple[int, ...]
    instrument: str
    bass: bool
    drums: bool
    brightness: float
    """Tilt of the spectrum, from -1 (dull) to 1 (bright)."""
    loudness: float
    """Root mean square of the music in decibels relative to full scale."""
    noise: float
    """Level of the white noise in decibels relative to the music."""
    seed: int
    """Seed of all random numbers that are drawn while the piece is played, such as the noise."""

    def tags(self) -> tuple[str, ...]:
        """Return the tags of the piece in the order of `TAGS`.

        A piece is "syncopated" if most of its chords begin between two beats.
        """
        rules, plucked = GENRES[self.genre], INSTRUMENTS[self.instrument].decay > 0
        applies = {
            "bass": self.bass,
            "drums": self.drums,
            "fast": self.tempo >= FAST_TEMPO,
            "major": not self.minor,
            "minor": self.minor,
            "plucked": plucked,
            "slow": self.tempo < FAST_TEMPO,
            "sustained": not plucked,
            "syncopated": 2 * sum(beat % 1 > 0 for beat in rules.chords) > len(rules.chords),
            "triple": rules.beats == 3,
        }
        return tuple(tag for tag in TAGS if applies[tag])


def compose(genre: str, rng: RandomState) -> Score:
    """Draw the parameters of a piece at random, within the rules of a genre."""
    rules = GENRES[genre]
    return Score(
        genre=genre,
        tempo=float(rng.uniform(95, 150)),
        key=int(rng.randint(12)),
        minor=bool(rng.random_sample() < rules.minor),
        progression=rules.progressions[rng.randint(len(rules.progressions))],
        instrument=rules.instruments[rng.randint(len(rules.instruments))],
        bass=bool(rng.random_sample() < 0.8),
        drums=bool(rng.random_sample() < 0.7),
        brightness=float(rng.uniform(-1, 1)),
        loudness=float(rng.uniform(-32, -18)),
        noise=float(rng.uniform(-40, -15)),
        seed=int(rng.randint(2**31 - 1)),
    )


def _tone(pitch: int, seconds: float, instrument: Instrument, rate: int) -> Wave:
    """Play the note with the MIDI number `pitch`. Overtones above half of the sample rate are left out."""
    frequency = 440 * 2 ** ((pitch - 69) / 12)
    partials = np.array(instrument.partials[: max(1, int(rate / 2 / frequency))])
    turns = np.outer(np.arange(1, len(partials) + 1), np.arange(WAVE_TABLE_SIZE) / WAVE_TABLE_SIZE)
    table = partials @ np.sin(2 * np.pi * turns) / partials.sum()
    time = np.arange(int(seconds * rate)) / rate
    envelope = np.minimum(time / instrument.attack, 1) * np.exp(-instrument.decay * time)
    release = np.minimum((seconds - time) / 0.02, 1)
    return table[(time * frequency * WAVE_TABLE_SIZE).astype(np.int64) % WAVE_TABLE_SIZE] * envelope * release


def _drums(rng: RandomState, rate: int) -> tuple[Wave, Wave, Wave]:
    """Play one kick, one snare and one hat.

    The kick is a sine whose frequency falls from 125 to 50 Hz. The snare is noise with a tone, and the hat is
    high-pass noise.
    """
    time = np.arange(int(0.2 * rate)) / rate
    kick = np.sin(2 * np.pi * (50 * time - 2.5 * np.exp(-30 * time))) * np.exp(-15 * time)
    noise = rng.uniform(-1, 1, len(time) + 1)
    snare = (0.6 * noise[1:] + 0.4 * np.sin(2 * np.pi * 190 * time)) * np.exp(-25 * time)
    hat = 0.6 * np.diff(noise) * np.exp(-60 * time)
    return kick, snare, hat


def render(score: Score, seconds: float, rate: int) -> Audio:
    """Play the first `seconds` seconds of a piece at the sample rate `rate` in Hz."""
    rules, instrument = GENRES[score.genre], INSTRUMENTS[score.instrument]
    rng, beat = RandomState(score.seed), 60 / score.tempo
    wave = np.zeros(round(seconds * rate))
    bars = range(0, int(seconds / beat) + 1, rules.beats)
    span = 3 if rules.beats == 3 else 2
    tonic, scale = 55 + (score.key + 5) % 12, MINOR if score.minor else MAJOR

    def play(beats: Sequence[float], sounds: dict[int, Wave], level: float) -> None:
        """Add a sound at the given beats of every bar. The root of the current chord selects the sound.

        The loudness of each stroke is random.
        """
        level *= 10 ** (rng.uniform(-8, 8) / 20)
        for onset in (bar + beat_of_bar for bar in bars for beat_of_bar in beats):
            root = score.progression[int(onset // span) % len(score.progression)]
            window = wave[int(onset * beat * rate) :][: len(sounds[root])]
            window += level * rng.uniform(0.7, 1) * sounds[root][: len(window)]

    def pitch(step: int) -> int:
        return tonic + 12 * (step // 7) + scale[step % 7]

    length = rules.length * rng.uniform(0.6, 1.4) * beat
    steps = (0, 2, 4, 6) if rules.seventh else (0, 2, 4)
    roots = set(score.progression)
    chords = {
        root: np.sum([_tone(pitch(root + step), length, instrument, rate) for step in steps], 0) for root in roots
    }
    play(rules.chords, chords, 0.4)
    if score.bass:
        play(rules.bass, {r: _tone(pitch(r) - 24, 0.5 * beat, INSTRUMENTS["piano"], rate) for r in roots}, 0.5)
    if score.drums:
        for beats, stroke in zip((rules.kick, rules.snare, rules.hat), _drums(rng, rate), strict=True):
            play(beats, dict.fromkeys(roots, stroke), 0.6)
    wave[1:] -= 0.7 * score.brightness * wave[:-1]
    wave /= np.sqrt(np.mean(wave**2))
    wave += 10 ** (score.noise / 20) * rng.standard_normal(len(wave))
    wave = np.clip(wave * 10 ** (score.loudness / 20), -1, 1)
    return Audio((np.round(wave * FULL_SCALE) / FULL_SCALE).astype(np.float32), rate)


@final
class SyntheticMusic:
    """Pieces of synthetic music with their genre or their tags.

    The input is an `Audio` that starts at the first beat of a bar. The target is the genre, or a tuple of tags. All
    genres are equally frequent.
    """

    name = "synthetic-music"

    def __init__(
        self,
        *,
        train: int = 600,
        val: int = 100,
        test: int = 200,
        seconds: float = 3.0,
        rate: int = 8000,
        target: MusicTarget = "genre",
        seed: int = 0,
    ) -> None:
        """Choose the sizes of the splits, the length of a piece and the target.

        Args:
            train: Number of pieces in train.
            val: Number of pieces in val.
            test: Number of pieces in test.
            seconds: Length of a piece in seconds.
            rate: Sample rate in Hz.
            target: "genre" or "tags".
            seed: Seed of the random pieces.
        """
        if min(train, val, test) < 1:
            raise InputError(f"train={train}, val={val}, test={test}: give each split at least one piece")
        if seconds < 1 or rate < 4000:
            raise InputError(f"seconds={seconds}, rate={rate}: a rhythm needs at least 1 s and 4000 Hz to be heard")
        self._sizes: dict[SplitName, int] = {"train": train, "val": val, "test": test}
        self._played: dict[SplitName, list[Example]] = {}
        self.seconds, self._rate, self._seed = seconds, rate, seed
        self._target: MusicTarget = check_choice("target", target, MUSIC_TARGETS)
        self.labels = tuple(GENRES) if target == "genre" else TAGS
        origin = "the parameters of the generator"
        if target == "genre":
            self.score_range = accuracy_range(self.labels, 100.0, origin)
        else:
            self.score_range = ScoreRange("macro_auc", 0.5, 1.0, origin)

    def scores(self, name: SplitName) -> list[Score]:
        """Return the parameters of the pieces of one split, such as tempo and key."""
        return _compose_split(self._seed, check_choice("split", name, SPLITS), self._sizes[name])

    def split(self, name: SplitName) -> Sequence[Example]:
        """Return the pieces of one split. The sounds are computed once and then cached."""
        if name not in self._played:
            size = self._sizes[check_choice("split", name, SPLITS)]
            self._played[name] = _play_split(self._seed, name, size, self.seconds, self._rate, self._target)
        return self._played[name]

    @property
    def sha256(self) -> str:
        """The hash of all samples and targets in the order of the splits."""
        digest = hashlib.sha256()
        for name in SPLITS:
            digest.update(name.encode())
            for sound, target in self.split(name):
                digest.update(sound.waveform.tobytes() + repr(target).encode())
        return digest.hexdigest()


def _compose_split(seed: int, name: SplitName, size: int) -> list[Score]:
    genres, part = tuple(GENRES), SPLITS.index(name)
    return [compose(genres[index % len(genres)], RandomState([seed, part, index])) for index in range(size)]


@lru_cache(maxsize=len(SPLITS))  # The cache is for comparisons, whose runs read equal pieces.
def _play_split(seed: int, name: SplitName, size: int, seconds: float, rate: int, target: MusicTarget) -> list[Example]:
    return [
        Example(render(score, seconds, rate), score.genre if target == "genre" else score.tags())
        for score in _compose_split(seed, name, size)
    ]
