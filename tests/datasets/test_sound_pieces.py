"""Pieces of sounds contain each sample once, and independent samples are scored as in a plain loop."""

import math
from collections import Counter
from typing import Any

import pytest
import torch

import unifier as uf
from unifier.config import load_experiment
from unifier.data.dataset import open_split
from unifier.datasets import SoundPieces, unigram_nats
from unifier_tokenizers import Audio, InputError, SampleTokenizer

SOUNDS = {name: [Audio(torch.randn(n).clamp(-1, 1), 8000) for n in (9, 4, 1)] for name in ("train", "val", "test")}


class Noise:
    name = "noise"

    def split(self, name: str) -> list[uf.Example]:
        return [uf.Example(sound, "a") for sound in SOUNDS[name]]


def test_pieces_join_to_the_sounds() -> None:
    pieces = open_split(SoundPieces(Noise(), 8000, 4), "val")
    assert [len(piece.input.waveform) for piece in pieces] == [
        4,
        4,
        4,
    ]  # The ninth sample and the last sound are alone.
    joined = torch.cat([piece.input.waveform for piece in pieces])
    first, second = (torch.as_tensor(sound.waveform) for sound in SOUNDS["val"][:2])
    assert torch.equal(joined, torch.cat([first[:8], second]))


def test_independent_samples_equal_a_plain_loop() -> None:
    tokenizer = SampleTokenizer(8)
    train, test = (
        [int(code) for sound in SOUNDS[name] for code in tokenizer.encode(sound).values[1:]]
        for name in ("train", "test")
    )
    counts = Counter(train)
    nats = [-math.log((counts[code] + 1) / (len(train) + 256)) for code in test]
    assert unigram_nats(Noise(), tokenizer, tokenizer.num_codes) == pytest.approx(sum(nats) / len(nats))


@pytest.mark.parametrize(("given", "message"), [({"memory": 8}, "memory=8"), ({"side": 8}, "side=8")])
def test_settings_of_other_data_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_experiment("language_model")(data="fsdd_samples", **given)
    with pytest.raises(InputError, match="length=1"):
        SoundPieces(Noise(), 8000, 1)
