"""Of a long sound no more is gathered than the piece that training reads of it, and the batches are the same."""

from typing import Any

import pytest
import torch

from unifier.augmentation.audio import augment_audio
from unifier.augmentation.mixup import Compose, Mixup
from unifier.data.dataloader import Augmentation, Batch, TrainDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.data.storage import Crop, RaggedArray
from unifier_tokenizers import Audio, FrameTokenizer, WaveformTokenizer
from unifier_tokenizers.audio import AudioTokenizer

SHAPE: dict[str, Any] = {"sample_rate": 8000, "win_length": 0.032, "hop_length": 0.016}
MEL: dict[str, Any] = {**SHAPE, "n_mels": 20}
FILTERS: dict[str, Any] = {**SHAPE, "n_filters": 20}
TOKENIZERS: dict[str, AudioTokenizer] = {
    "stacks": FrameTokenizer(12, **MEL, stack=4),
    "overlapping": FrameTokenizer(12, **MEL, patch=(5, 6), stride=(2, 4), normalize="example"),
    "stretches": WaveformTokenizer(12, **FILTERS, stack=3),
}


class Uncropped(Augmentation):
    """An augmentation that is given whole examples and records the widths of its batches."""

    def __init__(self, augmentation: Augmentation) -> None:
        self.augmentation, self.widths = augmentation, list[int]()

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        self.widths.append(batch.mask.shape[1])
        return self.augmentation(batch, generator)

    def max_length(self) -> int | None:
        return self.augmentation.max_length()


class Cropped(Uncropped):
    """The same augmentation, whose crops the data loader reads."""

    def crop(self, lengths: torch.Tensor, generator: torch.Generator) -> Crop | None:
        return self.augmentation.crop(lengths, generator)


def batches(split: EncodedSplit, augment: Augmentation) -> list[Batch]:
    most = augment.max_length()
    assert most is not None
    training = TrainDataLoader({"a": split}, max_tokens=3 * most, seed=0, budget={"steps": 8}, augment={"a": augment})
    return [batch for _, batch in training]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_batches_are_those_of_whole_sounds_and_only_pieces_are_gathered(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    draw = torch.Generator().manual_seed(0)
    sounds = [Audio(torch.randn(samples, generator=draw), 8000) for samples in (30000, 2000, 20000, 16000, 25000, 3000)]
    split = EncodedSplit([tokenizer.encode(sound) for sound in sounds], [torch.tensor(k) for k in range(6)], range(6))
    own = augment_audio(tokenizer, mixup=Mixup(6, 0.5), speed_perturb=0.2, crop=0.5, gain=3.0, time_masks=1)
    assert own is not None
    whole, pieces = Uncropped(own), Cropped(own)
    for one, other in zip(batches(split, whole), batches(split, pieces), strict=True):
        assert all(map(torch.equal, one, other))
    assert max(whole.widths) == split.lengths()[:, 0].max()
    assert max(pieces.widths) < 1.5 * (pieces.max_length() or 0) + 2 * tokenizer.tiles.tiles_per_step


def test_changes_in_a_chain_take_the_piece_of_the_first() -> None:
    crop = augment_audio(TOKENIZERS["stacks"], crop=0.5)
    gain = augment_audio(TOKENIZERS["stacks"], gain=3.0)
    assert crop is not None
    assert gain is not None
    columns = torch.tensor([200, 300])
    window = Compose(crop, gain).crop(columns, torch.Generator())
    assert window is not None
    assert window.start.ge(0).all()
    assert Compose(gain, crop).crop(columns, torch.Generator()) is None, "the first may need whole examples"


def test_a_piece_of_each_tensor_is_padded_to_the_longest_piece() -> None:
    packed = RaggedArray()
    for n in (5, 2, 9):
        packed.append(torch.arange(n))
    found, real = packed.padded([2, 1, 0], -1, Crop(torch.tensor([6, 0, 1]), 3))
    assert found.tolist() == [[6, 7, 8], [0, 1, -1], [1, 2, 3]]
    assert real.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    assert packed.lengths([2, 1]).tolist() == [9, 2]
