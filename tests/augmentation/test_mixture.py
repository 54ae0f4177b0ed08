"""Changed pictures beside unchanged texts."""

from typing import final

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
        tokens = mixture.unpack(member, of.values, of.positions)
        assert tokens is not None
        return Batch(*tokens, of.target)

    assert torch.equal(only("other", changed).values, only("other", batch).values)
    alone = changes(only("picture", batch), torch.Generator().manual_seed(1))
    assert torch.equal(only("picture", changed).values, alone.values)
    assert not torch.equal(alone.values, only("picture", batch).values)


def test_moved_tokens_are_refused() -> None:
    mixture, batch = mixed_batch({"picture": PatchTokenizer(8, patch=4, channels=1)})
    with pytest.raises(InputError, match="'picture'"):
        AugmentMember(mixture, "picture", RandomWindow(1))(batch, torch.Generator())


def test_other_dtype_is_refused() -> None:
    @final
    class Halve(Augmentation):
        def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
            return batch._replace(values=batch.values / 2)

    mixture, batch = mixed_batch({"picture": PatchTokenizer(8, patch=4, channels=1)})
    with pytest.raises(InputError, match="dtype"):
        AugmentMember(mixture, "picture", Halve())(batch, torch.Generator())


def test_batch_without_the_member_is_not_changed() -> None:
    mixture, batch = mixed_batch({name: PatchTokenizer(8, patch=4, channels=1) for name in ("first", "second")})
    batch.values[:, 0] = 1
    assert AugmentMember(mixture, "second", RandomWindow(1))(batch, torch.Generator()) is batch


def test_unknown_member_is_named() -> None:
    mixture, _ = mixed_batch({"picture": PatchTokenizer(8, patch=4, channels=1)})
    with pytest.raises(InputError, match="'sound'"):
        AugmentMember(mixture, "sound", RandomWindow(1))
