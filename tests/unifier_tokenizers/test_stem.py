"""Stems are torch's convolutions, over whole pictures and whole sounds, whatever stands beside them in a batch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers import Audio, FrameTokenizer, InputError, PatchTokenizer, WaveformTokenizer, pad_columns
from unifier_tokenizers import stems as module
from unifier_tokenizers.audio import AudioTokenizer
from unifier_tokenizers.stems import ConvDownsampler, FrameStem, Stem, StemKind

D, F, RATE = 12, 20, 8000
SHAPE: dict[str, Any] = {"rate": RATE, "window": 0.032, "hop": 0.016, "bands": F, "stack": 4}
PICTURE = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)


def noise(samples: int, seed: int = 0) -> Audio:
    return Audio(torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.1, RATE)


def convolved(halve: ConvDownsampler, stem: StemKind, grid: Tensor) -> Tensor:
    """What torch finds with the same weights."""
    for layer in halve.layers:
        weight, *rest = layer.parameters()
        if stem == "strided":
            bias, scale, offset = rest
            grid = functional.conv2d(grid, weight, bias, stride=2, padding=1).movedim(1, 3)
            grid = functional.gelu(functional.layer_norm(grid, grid.shape[3:], scale, offset)).movedim(3, 1)
        else:
            assert not rest
            grid = functional.max_pool2d(functional.conv2d(grid, weight, padding=1).relu(), 3, 2, 1)
    return grid


@pytest.mark.parametrize("stem", ["strided", "pooled"])
def test_the_stem_is_torchs_convolutions_over_the_whole_picture(stem: StemKind) -> None:
    tokenizer = PatchTokenizer(D, stem=stem, positions="none")
    assert isinstance(tokenizer.project, Stem)
    grid = (torch.from_numpy(PICTURE).permute(2, 0, 1)[None] / 255 - 0.5) / 0.25
    found = convolved(tokenizer.project.halve, stem, grid)[0].flatten(1).T
    torch.testing.assert_close(tokenizer(PICTURE), tokenizer.project.out(found).T)


@pytest.mark.parametrize("kind", [FrameTokenizer, WaveformTokenizer])
@pytest.mark.parametrize("stem", ["strided", "pooled"])
def test_the_stem_is_torchs_convolutions_over_the_whole_sound(stem: StemKind, kind: type[AudioTokenizer]) -> None:
    tokenizer = kind(D, **SHAPE, stem=stem, positions="none")
    assert isinstance(tokenizer.project, FrameStem)
    sound = noise(256 + 23 * 128)  # 24 frames, so that no stack is filled up
    grid = (tokenizer.spectrogram(sound).T[None, None] + 4) / 4
    found = convolved(tokenizer.project.halve, stem, grid)[0]
    assert found.shape == (8, 6, F // 4)
    torch.testing.assert_close(tokenizer(sound), tokenizer.project.out(found.transpose(0, 1).flatten(1)).T)


@pytest.mark.parametrize("bands", [20, 21])
@pytest.mark.parametrize("stem", [None, "strided", "pooled"])
def test_a_sound_has_the_same_columns_alone_and_beside_a_longer_one(stem: StemKind | None, bands: int) -> None:
    tokenizer = FrameTokenizer(
        D, sample_rate=RATE, win_length=0.032, hop_length=0.016, n_mels=bands, stack=4, stem=stem
    )
    sounds = [noise(2000), noise(9000, seed=1), noise(256, seed=2)]
    values, positions, mask = pad_columns([tokenizer.encode(sound) for sound in sounds])
    for sound, columns, real in zip(sounds, tokenizer.embed(values, positions), mask, strict=True):
        torch.testing.assert_close(columns[:, real], tokenizer(sound), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("stem", "left", "right"), [(None, False, False), ("strided", False, True), ("pooled", True, True)]
)
def test_a_stems_column_sees_its_neighbors_and_a_patchs_does_not(
    stem: StemKind | None, left: bool, right: bool
) -> None:
    """Whether the patches to the left and to the right of a changed one have other columns."""
    tokenizer = PatchTokenizer(D, stem=stem)
    for edge, neighbor, seen in ((4, 0, left), (7, 2, right)):  # of the patch in the middle
        first, second = PICTURE.copy(), PICTURE.copy()
        second[:, edge] ^= 255
        changed = (tokenizer(first) - tokenizer(second)).abs().amax(0).view(2, 3) > 1e-6
        assert changed[:, 1].all()
        assert changed[:, neighbor].all() == changed[:, neighbor].any() == seen


def test_a_stem_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="6 is no power of 2"):
        FrameTokenizer(D, stack=6, stem="pooled")
    with pytest.raises(InputError, match="give stack in place of patch"):
        FrameTokenizer(D, patch=(8, 8), stem="pooled")
    with pytest.raises(InputError, match="no stem 'plain': choose one of strided, pooled"):
        WaveformTokenizer(D, stack=4, stem="plain")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("alone", [True, False])
def test_what_fills_its_batch_has_no_outside_to_be_zeroed(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = PatchTokenizer(D, stem="strided", patch=2)
    raws = [PICTURE, PICTURE if alone else PICTURE[:4]]
    values, positions, _ = pad_columns([tokenizer.encode(raw) for raw in raws])
    asked: list[int] = []
    inside = module._inside  # pyright: ignore[reportPrivateUsage]

    def counted(grid: Tensor, sizes: Tensor) -> Tensor:
        asked.append(len(sizes))
        return inside(grid, sizes)

    monkeypatch.setattr(module, "_inside", counted)
    found = tokenizer.embed(values, positions)
    assert asked == ([] if alone else [2])
    torch.testing.assert_close(found[0], tokenizer(PICTURE))


def test_what_is_found_for_each_number_is_found_in_the_order_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """GELU and its gradient: in another order torch takes half as long again."""
    ordered, gelu = list[bool](), functional.gelu

    def watched(given: Tensor) -> Tensor:
        found = gelu(given)
        found.register_hook(lambda gradient: ordered.append(gradient.is_contiguous()))
        ordered.append(given.is_contiguous())
        return found

    monkeypatch.setattr(module.functional, "gelu", watched)
    FrameStem("strided", D, 4, F)(torch.randn(2, 3, 4, F), torch.arange(3).expand(2, 1, -1)).square().sum().backward()
    assert ordered == [True] * 4
