"""Of a long sound no more is gathered than the piece that training reads of it, and the batches are the same."""

from typing import Any

import pytest
import torch

from unifier.augmentation.audio import augment_audio
from unifier.augmentation.mixup import Mixup, compose
from unifier.data.dataloader import Augment, Batch, TrainDataLoader
from unifier.data.encoding import EncodedSplit
from unifier.data.storage import Crop, RaggedArray
from unifier_tokenizers import Audio, FrameTokenizer, WaveformTokenizer
from unifier_tokenizers.audio import AudioTokenizer

SHAPE: dict[str, Any] = {"rate": 8000, "window": 0.032, "hop": 0.016, "bands": 20}
TOKENIZERS: dict[str, AudioTokenizer] = {
    "stacks": FrameTokenizer(12, **SHAPE, stack=4),
    "overlapping": FrameTokenizer(12, **SHAPE, patch=(5, 6), stride=(2, 4), normalize="example"),
    "stretches": WaveformTokenizer(12, **SHAPE, stack=3),
}


class Whole:
    """An augmentation that is given examples whole, and notes how wide its batches are."""

    def __init__(self, augment: Any) -> None:
        self.augment, self.most, self.widths = augment, augment.most, list[int]()

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        self.widths.append(batch.mask.shape[1])
        return self.augment(batch, generator)


class Pieces(Whole):
    """One that says which pieces it takes."""

    def piece(self, columns: torch.Tensor, generator: torch.Generator) -> Crop | None:
        return self.augment.piece(columns, generator)


def batches(split: EncodedSplit, augment: Augment) -> list[Batch]:
    most: int = getattr(augment, "most")  # noqa: B009
    training = TrainDataLoader({"a": split}, max_tokens=3 * most, seed=0, budget={"steps": 8}, augment={"a": augment})
    return [batch for _, batch in training]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_batches_are_those_of_whole_sounds_and_only_pieces_are_gathered(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    draw = torch.Generator().manual_seed(0)
    sounds = [Audio(torch.randn(samples, generator=draw), 8000) for samples in (30000, 2000, 20000, 16000, 25000, 3000)]
    split = EncodedSplit([tokenizer.encode(sound) for sound in sounds], [torch.tensor(k) for k in range(6)], range(6))
    own = augment_audio(tokenizer, mixup=Mixup(6, 0.5), speed_perturb=0.2, crop=0.5, gain=3.0, time_masks=1)
    whole, pieces = Whole(own), Pieces(own)
    for one, other in zip(batches(split, whole), batches(split, pieces), strict=True):
        assert all(map(torch.equal, one, other))
    assert max(whole.widths) == split.lengths()[:, 0].max()
    assert max(pieces.widths) < 1.5 * pieces.most + 2 * tokenizer.tiles.across


def test_changes_in_a_chain_take_the_piece_of_the_first() -> None:
    crop = augment_audio(TOKENIZERS["stacks"], crop=0.5)
    gain = augment_audio(TOKENIZERS["stacks"], gain=3.0)
    assert crop is not None
    assert gain is not None
    columns = torch.tensor([200, 300])
    first: Any = compose(crop, gain)
    assert first.piece(columns, torch.Generator()).start.ge(0).all()
    later: Any = compose(lambda batch, _: batch, crop)
    assert later.piece is None, "what comes first may need the rest"


def test_a_piece_of_each_tensor_is_padded_to_the_longest_piece() -> None:
    packed = RaggedArray()
    for n in (5, 2, 9):
        packed.append(torch.arange(n))
    found, real = packed.padded([2, 1, 0], -1, Crop(torch.tensor([6, 0, 1]), 3))
    assert found.tolist() == [[6, 7, 8], [0, 1, -1], [1, 2, 3]]
    assert real.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    assert packed.lengths([2, 1]).tolist() == [9, 2]
