"""What is learned of a set's inputs holds no more of them than it must."""

import weakref
from typing import Any

import numpy as np
import torch

from unifier.data.cache import fit_once
from unifier.data.source import Example, SplitName
from unifier_tokenizers import FrameTokenizer
from unifier_tokenizers.audio import Audio


class Sounds:
    """Six sounds, and the most waveforms that were held as another was read."""

    name = "sounds"

    def __init__(self) -> None:
        self.given: list[weakref.ref[Any]] = []
        self.held = 0

    def split(self, name: SplitName) -> Any:
        return self

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Example:
        self.held = max(self.held, sum(waveform() is not None for waveform in self.given))
        waveform = np.random.default_rng(index).standard_normal(800).astype(np.float32) / 10
        self.given.append(weakref.ref(waveform))
        return Example(Audio(waveform, 8000), None)


def test_sounds_are_learned_one_after_the_other() -> None:
    source, tokenizer = Sounds(), FrameTokenizer(8, sample_rate=8000)
    fit_once(tokenizer, source)
    assert len(source.given) == 6
    assert source.held <= 2, "the first, and the one before"
    whole = FrameTokenizer(8, sample_rate=8000).fit([source[index].input for index in range(6)])
    assert torch.equal(tokenizer.normal.mean, whole.normal.mean)
    assert torch.equal(tokenizer.normal.std, whole.normal.std)
