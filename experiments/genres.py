"""Classes of sounds, such as music's genres, spoken digits and noises: frames in, a label out, or moods as tags."""

import math
from functools import partial
from typing import Any, Literal

from unifier.augmentation.audio import audio_tta, augment_audio
from unifier.augmentation.mixup import Mixup
from unifier.data.cache import fit_once
from unifier.data.source import BadExamples
from unifier.data.statistics import max_duration, median_duration
from unifier.datasets.factory import create_audio_dataset
from unifier.experiment import (
    CompileMode,
    Experiment,
    OptimizerName,
    Precision,
    Schedule,
    Task,
    Training,
    fitted,
    sufficient_epochs,
)
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.trunks.factory import Positions, create_trunk, input_positions
from unifier_tokenizers import FrameTokenizer, InputError, WaveformTokenizer
from unifier_tokenizers.normalization import Normalization
from unifier_tokenizers.stems import StemKind

PLAIN: dict[str, Any] = {
    "stem": None,
    "normalize": "whole",
    "mixup": 0,
    "speed_perturb": 0,
    "crop": 0,
    "shift": 0,
    "gain": 0,
    "time_masks": 0,
}
"""The settings of `genres` without its recipe: columns by one linear map, and batches as they are."""


LONG, PIECE, PIECES = 10.0, 6.0, 5
"""Of sounds longer than so many seconds training reads pieces of so many, validation and test the mean of so many."""
FAR = 3
"""Where a sound is so many times as long as a piece, pieces are read too, and the usual sound is one of them, whole."""
SHORT = 0.2
"""Shorter sounds, in seconds, are thought of as of so many."""
FRAMES = 100
"""In a second."""


def genres(
    *,
    data: str = "embedded",
    target: Literal["genre", "tags"] = "genre",
    fold: int | None = None,
    sample_rate: int = 16000,
    tokenizer: Literal["frames", "waveform"] = "frames",
    stack: int | None = None,
    patch: tuple[int, int] | None = None,
    stride: tuple[int, int] | None = None,
    stem: StemKind | Literal["auto"] | None = "auto",
    normalize: Normalization = "band",
    trunk: str = "transformer",
    positions: Positions = "sinusoid",
    dim: int = 128,
    depth: int = 3,
    heads: int = 4,
    ffn_dim: int = 256,
    dropout: float = 0.1,
    drop_path: float = 0.0,
    pooling: Literal["mean", "attention"] = "mean",
    label_smoothing: float = 0.0,
    mixup: float = 0.2,
    speed_perturb: float = 0.2,
    crop: float | None = None,
    freq_shift: float | None = None,
    gain: float | None = None,
    random_eq: float = 0.0,
    time_masks: int = 2,
    time_width: float = 0.1,
    band_masks: int = 0,
    band_width: float = 0.2,
    crops: int | None = None,
    freq_shift_tta: bool = True,
    epochs: float | None = None,
    tokens: int | None = None,
    batch_tokens: int = 2048,
    optimizer: OptimizerName = "muon",
    learning_rate: float = 5e-3,
    schedule: Schedule = "cosine",
    warmup_ratio: float = 0.1,
    weight_decay: float = 0.01,
    ema_decay: float = 0.0,
    num_validations: int = 8,
    refit: bool = False,
    precision: Precision = "bf16",
    compile: CompileMode | None = None,
    bad_examples: BadExamples = "stop",
) -> Experiment:
    """Classify or tag `data`: "embedded" (rendered music), one of the sets below, or sounds of your own.

    Music is "emotify" and "gtzan", spoken digits are "fsdd", noises "esc10" and "esc50"; of these, Emotify has tags.
    Of your own, a folder for each class, or a table: a CSV with the columns file and label. `fold` is tested on: 0 to 4
    of Emotify, whose artists are heard there alone, 1 to 5 of ESC, 0 to 5 of FSDD, each a speaker (None is its official
    split), or of your table; folds=5 in its place tests on each of five in turn.

    Sounds are resampled to `rate` Hz, so what lies above half of that is not heard. A column is a stack of `stack`
    frames of 10 ms (None takes 2, 4 or 8, to cut a usual sound into about ten), or a patch of the spectrogram, `patch`
    and `stride` in (frames, bands); tokenizer="waveform" makes the frames by filters that learn. A stack is read by the
    convolutions of a `stem` over the spectrogram (auto is strided, and none of a patch), or by one linear map.
    `normalize` is over all bands (whole), for each (band), or for each of each sound (example), which is for voices and
    microphones that training has not heard. `mixup` (an alpha) to `band_width` change training batches as
    `augment_sounds` says (a `shift` of None is 0.1, but of a waveform none; a `gain` of None 6, but none for tags or
    with normalize=example), and `crops` is how many pieces of `crop` seconds are averaged in validation and test; each
    is read as it is and, with `shift_views`, moved up and down by half of `shift`. By default sounds are whole (as with
    crop=0), but where the usual one is longer than 10 seconds training reads a piece of 6, another each time, and 5 are
    averaged; so it does where one is 3 times as long as a piece, which then has room for the usual sound. `epochs` are
    as many as `enough_epochs` says, by the sound, whole or not, and by the columns of a step; `tokens`, where given,
    end training in their place. `refit` trains on the validation split too, once settings are chosen on it. `trunk` is
    a name that `make_trunk` knows, and takes of the settings those that it has.
    """
    if label_smoothing and target == "tags":
        raise InputError(f"label_smoothing={label_smoothing}: tags have none; take target=genre")
    for name, decibels in (("gain", gain), ("random_eq", random_eq)):
        if decibels and normalize == "example":
            raise InputError(f"{name}={decibels}: normalize=example takes it away again; leave one of them out")
    if tokenizer == "waveform" and (patch or stride):
        raise InputError("a patch is of a spectrogram: with tokenizer=waveform, stack says how long a column is")
    source = create_audio_dataset(data, target=target, fold=fold)
    usual = max(fitted(f"{source.name}-{target}-seconds", lambda: median_duration(source)), SHORT)
    if stack is None:
        stack = 1 if patch else 1 << min(round(math.log2(usual / 0.1)), 3)
    if stem == "auto":
        stem = None if patch else "strided"
    if gain is None:
        gain = 0.0 if normalize == "example" or target == "tags" else 6.0
    if freq_shift is None:
        freq_shift = 0.0 if tokenizer == "waveform" else 0.1
    if crop is None:
        longest = fitted(f"{source.name}-{target}-longest", lambda: max_duration(source))
        piece = PIECE if usual > LONG else max(PIECE, 1.1 * usual)  # a little more, since pieces end with a column
        if usual > LONG or longest > FAR * piece:
            crop, crops = piece, PIECES if crops is None else crops
    crop, crops = crop or None, 1 if crops is None else crops
    if epochs is None:
        frames = FRAMES * min(usual, crop or usual)
        epochs = sufficient_epochs(source, together=batch_tokens * stack / frames)
    kind = WaveformTokenizer if tokenizer == "waveform" else partial(FrameTokenizer, patch=patch, stride=stride)
    columns = kind(
        dim,
        sample_rate=sample_rate,
        stack=stack,
        stem=stem,
        normalize=normalize,
        positions=input_positions(positions),
        dropout=dropout,
    )
    fit_once(columns, source, bad_examples=bad_examples)
    augment = augment_audio(
        columns,
        mixup=Mixup(len(source.labels), mixup) if mixup else None,
        speed_perturb=speed_perturb,
        crop=crop,
        freq_shift=freq_shift,
        gain=gain,
        random_eq=random_eq,
        time_masks=time_masks,
        time_width=time_width,
        band_masks=band_masks,
        band_width=band_width,
    )
    views = audio_tta(columns, crops, crop=crop, freq_shift=freq_shift if freq_shift_tta else 0)
    if target == "tags":
        head = TaggingHead(source.labels, dim, pooling=pooling)
    else:
        head = ClassificationHead(source.labels, dim, pooling=pooling, label_smoothing=label_smoothing)
    return Experiment(
        create_trunk(trunk, dim, depth, heads, ffn_dim, dropout, positions=positions, drop_path=drop_path),
        {source.name: Task(source, columns, head, augmentation=augment, tta=views)},
        Training(
            epochs=epochs if tokens is None else None,
            tokens=tokens,
            batch_tokens=batch_tokens,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup_ratio=warmup_ratio,
            weight_decay=weight_decay,
            ema_decay=ema_decay,
            num_validations=num_validations,
            refit=refit,
            precision=precision,
            compile=compile,
            bad_examples=bad_examples,
        ),
        name="genres",
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
