from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers import Audio, FrameTokenizer, PatchTokenizer, WaveformTokenizer, pad_columns
from unifier_tokenizers import stems as module
from unifier_tokenizers.stems import ConvDownsampler, FrameStem, Stem, StemKind

Make = Callable[..., Audio]

D, F = 12, 20
TIMING: dict[str, Any] = {"sample_rate": 8000, "win_length": 0.032, "hop_length": 0.016, "stack": 4}
PICTURE = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)


def convolve(downsample: ConvDownsampler, stem: StemKind, grid: Tensor) -> Tensor:
    """Return the output of torch's own functions with the same weights."""
    for layer in downsample.layers:
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
def test_stem_is_torchs_convolutions(stem: StemKind) -> None:
    tokenizer = PatchTokenizer(D, stem=stem, positions="none")
    assert isinstance(tokenizer.project, Stem)
    grid = (torch.from_numpy(PICTURE).permute(2, 0, 1)[None] / 255 - 0.5) / 0.25
    features = convolve(tokenizer.project.downsample, stem, grid)[0].flatten(1).T
    torch.testing.assert_close(tokenizer(PICTURE), tokenizer.project.out(features).T)


@pytest.mark.parametrize("kind", [FrameTokenizer, WaveformTokenizer])
@pytest.mark.parametrize("stem", ["strided", "pooled"])
def test_frame_stem_is_torchs_convolutions(stem: StemKind, kind: type[FrameTokenizer], make_noise: Make) -> None:
    bands: dict[str, Any] = {"n_mels" if kind is FrameTokenizer else "n_filters": F}
    tokenizer = kind(D, **TIMING, **bands, stem=stem, positions="none")
    assert isinstance(tokenizer.project, FrameStem)
    sound = make_noise(256 + 23 * 128)  # 24 frames fill every stack.
    grid = (tokenizer.spectrogram(sound).T[None, None] + 4) / 4
    features = convolve(tokenizer.project.downsample, stem, grid)[0]
    assert features.shape == (8, 6, F // 4)
    torch.testing.assert_close(tokenizer(sound), tokenizer.project.out(features.transpose(0, 1).flatten(1)).T)


@pytest.mark.parametrize("bands", [20, 21])
@pytest.mark.parametrize("stem", [None, "strided", "pooled"])
def test_frame_stem_batch_as_alone(stem: StemKind | None, bands: int, make_noise: Make) -> None:
    tokenizer = FrameTokenizer(D, **TIMING, n_mels=bands, stem=stem)
    sounds = [make_noise(2000), make_noise(9000, seed=1), make_noise(256, seed=2)]
    values, positions, mask = pad_columns([tokenizer.encode(sound) for sound in sounds])
    for sound, columns, real in zip(sounds, tokenizer.embed(values, positions), mask, strict=True):
        torch.testing.assert_close(columns[:, real], tokenizer(sound), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("stem", "left", "right"), [(None, False, False), ("strided", False, True), ("pooled", True, True)]
)
def test_stem_sees_neighbors_and_patch_does_not(stem: StemKind | None, left: bool, right: bool) -> None:
    """A changed edge of the middle patch changes its left or right neighbor, if that neighbor sees it."""
    tokenizer = PatchTokenizer(D, stem=stem)
    for edge, neighbor, sees in ((4, 0, left), (7, 2, right)):
        other = PICTURE.copy()
        other[:, edge] ^= 255
        changed = (tokenizer(PICTURE) - tokenizer(other)).abs().amax(0).view(2, 3) > 1e-6
        assert changed[:, 1].all()
        assert changed[:, neighbor].all() == changed[:, neighbor].any() == sees


@pytest.mark.parametrize("full", [True, False])
def test_full_batch_is_not_masked(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = PatchTokenizer(D, stem="strided", patch=2)
    values, positions, _ = pad_columns([tokenizer.encode(raw) for raw in (PICTURE, PICTURE if full else PICTURE[:4])])
    calls: list[int] = []
    inside_mask = module._inside_mask  # pyright: ignore[reportPrivateUsage]

    def counted(grid: Tensor, sizes: Tensor) -> Tensor:
        calls.append(len(sizes))
        return inside_mask(grid, sizes)

    monkeypatch.setattr(module, "_inside_mask", counted)
    columns = tokenizer.embed(values, positions)
    assert calls == ([] if full else [2])
    torch.testing.assert_close(columns[0], tokenizer(PICTURE))


def test_gelu_runs_in_memory_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another order, torch's GELU and its gradient take 1.5 times as long."""
    contiguous, gelu = list[bool](), functional.gelu

    def watched(x: Tensor) -> Tensor:
        y = gelu(x)
        y.register_hook(lambda gradient: contiguous.append(gradient.is_contiguous()))
        contiguous.append(x.is_contiguous())
        return y

    monkeypatch.setattr(module.functional, "gelu", watched)
    FrameStem("strided", D, 4, F)(torch.randn(2, 3, 4, F), torch.arange(3).expand(2, 1, -1)).square().sum().backward()
    assert contiguous == [True] * 4
