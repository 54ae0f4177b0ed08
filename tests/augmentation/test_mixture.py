"""Changed pictures beside unchanged texts."""

import pytest
import torch

from unifier.augmentation import AugmentMember, RandomWindow, augment_images
from unifier.data.dataloader import Augmentation, Batch
from unifier_tokenizers import InputError, Mixture, PatchTokenizer, Tokenizer, pad_columns

SIZES = [(8, 12), (12, 8), (4, 4)]


def mixed_batch(members: dict[str, Tokenizer]) -> tuple[Mixture, Batch]:
    draw = torch.Generator().manual_seed(0)
    mixture = Mixture(members)
    raws = [
        {name: torch.randint(256, size, dtype=torch.uint8, generator=draw).numpy() for name in members}
        for size in SIZES
    ]
    return mixture, Batch(*pad_columns([mixture.encode(raw) for raw in raws]), torch.arange(len(SIZES)))


def test_only_the_member_changes() -> None:
    pictures = PatchTokenizer(8, patch=4, channels=1)
    mixture, batch = mixed_batch({"other": PatchTokenizer(8, patch=2, channels=1), "picture": pictures})
    before = batch.values.clone()
    changes = augment_images(pictures, 0, crop=2)
    assert changes is not None
    changed = AugmentMember(mixture, "picture", changes)(batch, torch.Generator().manual_seed(1))
    assert torch.equal(batch.values, before)
    assert torch.equal(changed.positions, batch.positions)

    def only(member: str, of: Batch) -> Batch:
        values, positions, mask = mixture.unpack(member, of.values, of.positions)
        return Batch(values, positions, mask, of.target)

    assert torch.equal(only("other", changed).values, only("other", batch).values)
    alone = changes(only("picture", batch), torch.Generator().manual_seed(1))
    assert torch.equal(only("picture", changed).values, alone.values)
    assert not torch.equal(alone.values, only("picture", batch).values)


def test_moved_tokens_are_refused() -> None:
    mixture, batch = mixed_batch({"picture": PatchTokenizer(8, patch=4, channels=1)})
    window: Augmentation = RandomWindow(1)
    with pytest.raises(InputError, match="'picture'"):
        AugmentMember(mixture, "picture", window)(batch, torch.Generator())
