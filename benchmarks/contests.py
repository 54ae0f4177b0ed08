"""All contests, by name."""

from benchmarks import decoding, spectrogram, translation, vit

CONTESTS = {
    contest.name: contest
    for contest in (
        vit.contest(),
        translation.contest(),
        decoding.contest("greedy", "Translating greedily", 1),
        decoding.contest("beam5", "Translating by a beam of five", 5),
        spectrogram.contest(),
    )
}
