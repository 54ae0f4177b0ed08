"""All contests, by name."""

from dataclasses import replace

from benchmarks.contests import accelerated, decoding, spectrogram, translation, vit
from benchmarks.racing.contest import Contest, in_float32
from unifier.nn.precision import has_fast_bfloat16


def as_here(contest: Contest) -> Contest:
    """The contest in the types that are fast here; an accelerator is taken to have bfloat16."""
    return contest if contest.device != "cpu" or has_fast_bfloat16("cpu") else in_float32(contest)


CONTESTS = {
    contest.name: as_here(contest)
    for contest in (
        vit.contest(),
        translation.contest(),
        decoding.contest("greedy", "Translating greedily", 1),
        decoding.contest("beam5", "Translating by a beam of five", 5),
        spectrogram.contest(),
        accelerated.vit_s16(),
        accelerated.translation_base(),
    )
}


def find(name: str) -> Contest:
    """The contest of that name: one of these, or spectrogram-N-B, the spectrograms' of another length and batch."""
    if name in CONTESTS:
        return CONTESTS[name]
    columns, batch = (int(part) for part in name.removeprefix("spectrogram-").split("-"))
    shape = replace(spectrogram.SHAPE, width=columns, batch=batch, steps=2)
    return replace(as_here(spectrogram.contest(shape)), name=name)
