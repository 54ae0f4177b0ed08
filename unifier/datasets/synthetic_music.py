"""Short pieces of music in five genres, composed by rules and played by a small synthesiser.

A genre is its beats to the bar, where chords, bass and drums fall in it, how long a chord sounds, and the chords it
goes through. Tempo, key, loudness, brightness and noise are drawn alike for all genres, and instruments are shared, so
a listener has to follow the rhythm and the harmony."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.random import RandomState  # the one whose stream no version of NumPy may change
from numpy.typing import NDArray

from unifier.data.source import SPLITS, Example, ScoreRange, SplitName, accuracy_range
from unifier_tokenizers import Audio, InputError
from unifier_tokenizers.errors import check_choice

Wave = NDArray[np.float64]


MusicTarget = Literal["genre", "tags"]


MUSIC_TARGETS: tuple[MusicTarget, ...] = ("genre", "tags")


class Instrument(NamedTuple):
    """A timbre and an envelope."""

    partials: tuple[float, ...]
    """Amplitudes of the fundamental and its overtones."""
    attack: float
    """Seconds to full loudness."""
    decay: float
    """Falls by e this many times a second; 0 for a sustained sound."""


INSTRUMENTS = {
    "guitar": Instrument((1, 0.8, 0.6, 0.45, 0.3, 0.25, 0.2, 0.15), 0.002, 5),
    "organ": Instrument((1, 0.9, 0.5, 0.6, 0, 0.3, 0, 0.4), 0.01, 0),
    "piano": Instrument((1, 0.5, 0.3, 0.2, 0.1, 0.06, 0.03, 0.02), 0.004, 3),
    "reed": Instrument((1, 0, 0.6, 0, 0.4, 0, 0.25, 0, 0.15), 0.02, 0),
    "strings": Instrument((1, 0.5, 0.33, 0.25, 0.2, 0.17, 0.14, 0.12), 0.06, 0),
}


class Genre(NamedTuple):
    """The rules of a genre; times are in beats from the start of the bar."""

    beats: int
    chords: tuple[float, ...]
    length: float
    """Beats that a chord sounds, give or take two fifths in each piece."""
    bass: tuple[float, ...]
    kick: tuple[float, ...]
    snare: tuple[float, ...]
    hat: tuple[float, ...]
    progressions: tuple[tuple[int, ...], ...]
    """Roots of the chords as steps of the scale (0 is the tonic), one chord every half bar (every bar of three)."""
    minor: float
    """The share of pieces in minor."""
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


PLAYBACK_RATE = 120.0
"""Beats a minute from which a piece counts as fast."""


WAVE_TABLE_SIZE = 2048
"""Samples of one period in a wave table."""


FULL_SCALE = 2**15 - 1
"""Waveforms hold the steps of a 16-bit file, so that the last bits of a platform's sine are not heard in them."""


TAGS = ("bass", "drums", "fast", "major", "minor", "plucked", "slow", "sustained", "syncopated", "triple")


class Score(NamedTuple):
    """One piece before it sounds."""

    genre: str
    tempo: float
    """Beats a minute."""
    key: int
    """Semitones of the tonic above C."""
    minor: bool
    progression: tuple[int, ...]
    instrument: str
    bass: bool
    drums: bool
    brightness: float
    """Tilt of the spectrum in -1 (dull) to 1 (bright)."""
    loudness: float
    """Root mean square, in decibels of full scale."""
    noise: float
    """White noise, in decibels above the music."""
    seed: int
    """Names the noise, of drums and of background."""

    def tags(self) -> tuple[str, ...]:
        """The tags that hold, in the order of `TAGS`; syncopated is having most chords off the beat."""
        rules, plucked = GENRES[self.genre], INSTRUMENTS[self.instrument].decay > 0
        held = {
            "bass": self.bass,
            "drums": self.drums,
            "fast": self.tempo >= PLAYBACK_RATE,
            "major": not self.minor,
            "minor": self.minor,
            "plucked": plucked,
            "slow": self.tempo < PLAYBACK_RATE,
            "sustained": not plucked,
            "syncopated": 2 * sum(beat % 1 > 0 for beat in rules.chords) > len(rules.chords),
            "triple": rules.beats == 3,
        }
        return tuple(tag for tag in TAGS if held[tag])


def compose(genre: str, rng: RandomState) -> Score:
    """Draw a piece of a genre."""
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
    """A note of MIDI number `pitch`, read from a wave table that holds no overtone above half the rate."""
    frequency = 440 * 2 ** ((pitch - 69) / 12)
    partials = np.array(instrument.partials[: max(1, int(rate / 2 / frequency))])
    turns = np.outer(np.arange(1, len(partials) + 1), np.arange(WAVE_TABLE_SIZE) / WAVE_TABLE_SIZE)
    table = partials @ np.sin(2 * np.pi * turns) / partials.sum()
    time = np.arange(int(seconds * rate)) / rate
    envelope = np.minimum(time / instrument.attack, 1) * np.exp(-instrument.decay * time)
    release = np.minimum((seconds - time) / 0.02, 1)
    return table[(time * frequency * WAVE_TABLE_SIZE).astype(np.int64) % WAVE_TABLE_SIZE] * envelope * release


def _drums(rng: RandomState, rate: int) -> tuple[Wave, Wave, Wave]:
    """One stroke of kick, snare and hat: a sine that falls from 125 to 50 Hz, noise with a tone, and high noise."""
    time = np.arange(int(0.2 * rate)) / rate
    kick = np.sin(2 * np.pi * (50 * time - 2.5 * np.exp(-30 * time))) * np.exp(-15 * time)
    noise = rng.uniform(-1, 1, len(time) + 1)
    snare = (0.6 * noise[1:] + 0.4 * np.sin(2 * np.pi * 190 * time)) * np.exp(-25 * time)
    hat = 0.6 * np.diff(noise) * np.exp(-60 * time)
    return kick, snare, hat


def render(score: Score, seconds: float, rate: int) -> Audio:
    """Play the first `seconds` of a piece."""
    rules, instrument = GENRES[score.genre], INSTRUMENTS[score.instrument]
    rng, beat = RandomState(score.seed), 60 / score.tempo
    wave = np.zeros(round(seconds * rate))
    bars = range(0, int(seconds / beat) + 1, rules.beats)
    span = 3 if rules.beats == 3 else 2
    tonic, scale = 55 + (score.key + 5) % 12, MINOR if score.minor else MAJOR

    def play(beats: Sequence[float], sounds: dict[int, Wave], level: float) -> None:
        """Add, at these beats of every bar, the sound that belongs to the chord's root; each part is mixed anew."""
        level *= 10 ** (rng.uniform(-8, 8) / 20)
        for onset in (bar + beat_of_bar for bar in bars for beat_of_bar in beats):
            root = score.progression[int(onset // span) % len(score.progression)]
            room = wave[int(onset * beat * rate) :][: len(sounds[root])]
            room += level * rng.uniform(0.7, 1) * sounds[root][: len(room)]

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
    """Pieces of synthetic music with their genre, or with their tags.

    `train`, `val` and `test` are numbers of pieces, in which the genres take turns; a piece is a `Sound` of `seconds`
    at `rate` Hz that starts with a bar. With `task="genre"` the target is the name of the genre, with `task="tags"` a
    tuple of the tags that hold; `labels` are all there are. `seed` names the draw.

    Raises InputError for a task or a size that there cannot be.
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
        if min(train, val, test) < 1:
            raise InputError(f"train={train}, val={val}, test={test}: give at least one piece to each")
        if seconds < 1 or rate < 4000:
            raise InputError(f"no rhythm is heard in {seconds} s at {rate} Hz: give at least 1 s and 4000 Hz")
        self._sizes: dict[SplitName, int] = {"train": train, "val": val, "test": test}
        self._kept: dict[SplitName, list[Example]] = {}
        self.seconds, self._rate, self._task, self._seed = (
            seconds,
            rate,
            check_choice("task", target, MUSIC_TARGETS),
            seed,
        )
        self.labels = tuple(GENRES) if target == "genre" else TAGS
        known = "the generator, which knows what it played"
        self.score_range = (
            accuracy_range(self.labels, 100.0, known) if target == "genre" else ScoreRange("macro_auc", 0.5, 1.0, known)
        )

    def scores(self, name: SplitName) -> list[Score]:
        """What the pieces of one split are made of, in order: the truth about tempo, key and the rest."""
        return _composed(self._seed, check_choice("split", name, SPLITS), self._sizes[name])

    def split(self, name: SplitName) -> Sequence[Example]:
        """The pieces of one split, played once and kept."""
        if name not in self._kept:
            size = self._sizes[check_choice("split", name, SPLITS)]
            self._kept[name] = _played(self._seed, name, size, self.seconds, self._rate, self._task)
        return self._kept[name]

    @property
    def sha256(self) -> str:
        """The hash of every sample and target of every split, in order."""
        digest = hashlib.sha256()
        for name in SPLITS:
            digest.update(name.encode())
            for sound, target in self.split(name):
                digest.update(sound.waveform.tobytes() + repr(target).encode())
        return digest.hexdigest()


def _composed(seed: int, name: SplitName, size: int) -> list[Score]:
    genres, place = tuple(GENRES), SPLITS.index(name)
    return [compose(genres[index % len(genres)], RandomState([seed, place, index])) for index in range(size)]


@lru_cache(maxsize=len(SPLITS))  # each run of a comparison asks for the same pieces
def _played(seed: int, name: SplitName, size: int, seconds: float, rate: int, task: MusicTarget) -> list[Example]:
    return [
        Example(render(score, seconds, rate), score.genre if task == "genre" else score.tags())
        for score in _composed(seed, name, size)
    ]
