"""The campaign `formats`: read files of many formats and variants, and compare the result with the known content.

The content is known because the files are written from it, mostly byte by byte. Other readers confirm the content:
tifffile for 482 TIFF files, and FFmpeg for the other pictures and for the sounds that it supports.
"""

import time
import warnings
from pathlib import Path
from random import Random

from benchmarks.chaos.campaign import Outcome
from benchmarks.chaos.memories import memory_cases
from benchmarks.chaos.pictures import picture_cases
from benchmarks.chaos.sounds import sound_cases


def run(seed: int, seconds: float, folder: Path) -> Outcome:
    """Read all files in a random order, as far as the time allows."""
    end, tried, wrong = time.monotonic() + seconds, 0, list[str]()
    cases = [*picture_cases(), *sound_cases(), *memory_cases()]
    Random(seed).shuffle(cases)
    for case in cases:
        if time.monotonic() > end:
            break
        with warnings.catch_warnings(action="ignore"):
            fault = case.fault(folder)
        tried += 1
        wrong += [fault] if fault else []
    return Outcome(tried, wrong)
