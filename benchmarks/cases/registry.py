"""All benchmark cases, keyed by name."""

from dataclasses import replace

from benchmarks.cases import spectrogram
from benchmarks.cases.decoding import decoding_case
from benchmarks.cases.gpu import translation_base_case, vit_s16_case
from benchmarks.cases.spectrogram import spectrogram_case
from benchmarks.cases.translation import translation_case
from benchmarks.cases.vit import vit_case
from benchmarks.runner.case import Case, in_float32
from unifier.nn.precision import has_fast_bfloat16


def adapt_to_processor(case: Case) -> Case:
    """Convert a CPU case to float32 if the CPU has no fast bfloat16 instructions.

    Cases for an accelerator are returned unchanged, because every supported accelerator has bfloat16.
    """
    return case if case.device != "cpu" or has_fast_bfloat16("cpu") else in_float32(case)


CASES = {
    case.name: adapt_to_processor(case)
    for case in (
        vit_case(),
        translation_case(),
        decoding_case("greedy", "Translating greedily", 1),
        decoding_case("beam5", "Translating by a beam of five", 5),
        spectrogram_case(),
        vit_s16_case(),
        translation_base_case(),
    )
}


def get_case(name: str) -> Case:
    """Return the case called `name`.

    The name is a key of `CASES`, or `spectrogram-N-B` for spectrograms with N frames and a batch size of B.
    """
    if name in CASES:
        return CASES[name]
    frames, batch = (int(part) for part in name.removeprefix("spectrogram-").split("-"))
    shape = replace(spectrogram.SHAPE, width=frames, batch=batch, steps=2)
    return replace(adapt_to_processor(spectrogram_case(shape)), name=name)
