"""Pictures: the contract, every kind of input, torch's unfold, timm's patch embedding, and bad input."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.layers.patch_embed import PatchEmbed
from torch import Tensor
from torch.nn import functional

from unifier_tokenizers import NO_POSITION, InputError, PatchTokenizer, check_tokenizer, pad_columns
from unifier_tokenizers.stems import StemKind

Array = np.ndarray[Any, Any]

D = 12
SIZES = [(8, 12), (9, 5), (3, 2), (17, 12), (8, 12)]
SETTINGS: list[dict[str, Any]] = [
    *[{}, {"positions": "none"}, {"positions": "sinusoid"}, {"class_token": True}],
    *[{"class_token": True, "positions": "sinusoid"}, {"patch": 5, "stride": 3}, {"patch": 1}],
    *[{"stem": "strided"}, {"stem": "strided", "patch": 2, "class_token": True, "positions": "none"}],
    *[{"stem": "strided", "patch": 8, "positions": "sinusoid", "dropout": 0.1}, {"stem": "pooled"}],
    {"stem": "pooled", "patch": 2, "class_token": True, "positions": "none"},
    {"stem": "pooled", "patch": 8, "positions": "sinusoid", "dropout": 0.1},
]


def pictures(channels: int = 3) -> list[Array]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 256, (*size, channels), dtype=np.uint8) for size in SIZES]


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_patches_keep_contract(settings: dict[str, Any], channels: int) -> None:
    check_tokenizer(PatchTokenizer(D, channels=channels, **settings), pictures(channels))


@pytest.mark.parametrize(("patch", "stride"), [(4, 4), (4, 2), (3, 1)])
def test_patches_are_torchs_unfold(patch: int, stride: int) -> None:
    picture = pictures()[0]
    values, positions = PatchTokenizer(D, patch=patch, stride=stride).encode(picture)
    padded = torch.from_numpy(picture).permute(2, 0, 1)[None].float()
    missing = [-(side - patch) % stride for side in padded.shape[2:]]
    padded = functional.pad(padded, (0, missing[1], 0, missing[0]))
    assert torch.equal(values.float(), functional.unfold(padded, patch, stride=stride)[0])
    for n, (row, column) in enumerate(positions.T.tolist()):
        corner = padded[0, :, row * stride :, column * stride :][:, :patch, :patch]
        assert torch.equal(values[:, n].float(), corner.flatten())


def test_embedding_is_timms() -> None:
    tokenizer = PatchTokenizer(D, patch=4, positions="none")
    peer = PatchEmbed(img_size=None, patch_size=4, in_chans=3, embed_dim=D)
    with torch.no_grad():
        peer.proj.weight.copy_(tokenizer.project.out.weight.view_as(peer.proj.weight))
        assert peer.proj.bias is not None
        peer.proj.bias.copy_(tokenizer.project.out.bias)
    picture = pictures()[0]
    normalized = (torch.from_numpy(picture).permute(2, 0, 1)[None] / 255 - 0.5) / 0.25
    torch.testing.assert_close(tokenizer(picture), peer(normalized)[0].T)


def test_partial_patch_padded_with_black() -> None:
    tokenizer = PatchTokenizer(D, patch=4, stride=3)
    picture = pictures()[1]
    black = np.zeros((10, 7, 3), dtype=np.uint8)
    black[:9, :5] = picture
    assert all(map(torch.equal, tokenizer.encode(picture), tokenizer.encode(black)))


@pytest.mark.parametrize("stem", [None, "strided", "pooled"])
@pytest.mark.parametrize("class_token", [False, True])
def test_batch_of_two_sizes_as_alone(stem: StemKind | None, class_token: bool) -> None:
    tokenizer = PatchTokenizer(D, stem=stem, class_token=class_token)
    raws = pictures()[1], pictures()[3]
    values, positions, mask = pad_columns([tokenizer.encode(raw) for raw in raws])
    for raw, columns, real in zip(raws, tokenizer.embed(values, positions), mask, strict=True):
        torch.testing.assert_close(columns[:, real], tokenizer(raw), atol=1e-5, rtol=1e-5)


def test_class_token_first_without_position() -> None:
    tokenizer = PatchTokenizer(D, class_token=True)
    first, second = pictures()[0], pictures()[3]
    units = tokenizer.encode(first)
    assert (units.positions[:, 0] == NO_POSITION).all()
    assert (units.positions[:, 1:] >= 0).all()
    assert (units.values.shape[1], tokenizer.encode(second).values.shape[1]) == (2 * 3 + 1, 5 * 3 + 1)
    torch.testing.assert_close(tokenizer(first)[:, 0], tokenizer(second)[:, 0])


def test_picture_kinds_give_equal_units() -> None:
    array, tokenizer = pictures()[0], PatchTokenizer(D)
    read_only, fraction = array.copy(), array / 255
    read_only.setflags(write=False)
    opaque = np.dstack([array, np.full_like(array[:, :, 0], 255)])
    kinds: list[Any] = [
        *[Image.fromarray(array), Image.fromarray(opaque), torch.from_numpy(array), torch.from_numpy(fraction)],
        *[torch.from_numpy(fraction).requires_grad_(), fraction, fraction.astype(np.float32), read_only],
        *[np.asfortranarray(array), array[::-1][::-1]],
    ]
    for picture in kinds:
        assert all(map(torch.equal, tokenizer.encode(picture), tokenizer.encode(array)))
    assert (tokenizer.encode(Image.new("RGBA", (8, 8), (255, 0, 0, 0))).values == 255).all(), "transparent is white"
    turned = Image.fromarray(np.rot90(array))
    turned.getexif()[0x112] = 6
    assert torch.equal(tokenizer.encode(turned).values, tokenizer.encode(array).values), "EXIF orientation"


def test_gray_kinds_give_equal_units() -> None:
    array, tokenizer = pictures(1)[0], PatchTokenizer(D, channels=1)
    expected = tokenizer.encode(array).values
    for picture in (array[:, :, 0], Image.fromarray(array[:, :, 0]), torch.from_numpy(array[:, :, 0])):
        assert torch.equal(tokenizer.encode(picture).values, expected)
    color = PatchTokenizer(D).encode(Image.fromarray(array[:, :, 0])).values.unflatten(0, (3, -1))
    assert all(torch.equal(channel, expected) for channel in color)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"H x W x 3 .*\(3, 8, 8\)"),
        *[(np.zeros((8, 8), np.uint8), r"\(8, 8, 1\)"), (np.zeros((0, 8, 3), np.uint8), r"\(0, 8, 3\)")],
        *[(np.zeros(8, np.uint8), r"\(8,\)"), (np.zeros((8, 8, 3), np.int64), "int64")],
        *[(np.zeros((8, 8, 3), bool), "bool"), (np.full((8, 8, 3), 200.0), "200 to 200")],
        *[(np.full((8, 8, 3), -0.5), "-0.5 to -0.5"), (np.full((8, 8, 3), np.nan), "nan to nan")],
        (torch.zeros(8, 8, 4, dtype=torch.uint8), r"\(8, 8, 4\)"),
        (Image.fromarray(np.full((8, 8), 4000, np.uint16)), "I;16"),
        *[(Image.fromarray(np.full((8, 8), 0.5, np.float32)), "mode F"), ("picture.png", r"\(\)")],
    ],
)
def test_invalid_picture_refused(picture: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        PatchTokenizer(D).encode(picture)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 0}, "dim=0"),
        ({"dim": D, "patch": 0}, "patch=0"),
        ({"dim": D, "patch": 4, "stride": 5}, "stride=5"),
        ({"dim": D, "patch": 6, "stem": "strided"}, ": 6 "),
        ({"dim": D, "patch": 1, "stem": "pooled"}, ": 1 "),
        ({"dim": D, "patch": 4, "stride": 2, "stem": "pooled"}, "stride=2"),
        ({"dim": D, "stem": "plain"}, "stem 'plain'"),
    ],
)
def test_invalid_setting_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PatchTokenizer(**settings)


@pytest.mark.parametrize("channels", [1, 3])
def test_fit_gives_channels_mean_0_and_std_1(channels: int) -> None:
    inputs: list[Tensor] = []
    images = [picture[:8, :4] // 2 for picture in pictures(channels) if picture.shape[0] >= 8]
    tokenizer = PatchTokenizer(D, channels=channels, patch=4).fit(images)
    tokenizer.project.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    for image in images:
        tokenizer(image)
    pixels = torch.cat(inputs, dim=1)[0].unflatten(1, (channels, -1)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(pixels.mean(1), torch.zeros(channels), atol=1e-5, rtol=0)
    torch.testing.assert_close(pixels.std(1, correction=0), torch.ones(channels), atol=1e-4, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_fit_streams_statistics_of_all_pictures(channels: int) -> None:
    references: list[weakref.ref[Array]] = []

    def stream() -> Iterator[Array]:
        for picture in pictures(channels):
            fresh = picture.copy()
            references.append(weakref.ref(fresh))
            yield fresh
            assert sum(reference() is not None for reference in references) == 1

    tokenizer = PatchTokenizer(D, channels=channels).fit(stream())
    pixels = np.concatenate([picture.reshape(-1, channels) for picture in pictures(channels)])
    assert np.allclose(tokenizer.mean, pixels.mean(0) / 255)
    assert np.allclose(tokenizer.std, pixels.std(0) / 255)
    with pytest.raises(InputError, match="no picture"):
        tokenizer.fit(iter(()))
    flat = np.full((8, 8, channels), 100, np.uint8)
    assert tokenizer.fit([flat])(flat).isfinite().all()


def test_position_values_are_pixel_centers() -> None:
    tokenizer = PatchTokenizer(D, patch=4, stride=2, channels=1, class_token=True)
    units = tokenizer.encode(np.zeros((8, 6), np.uint8))
    centers = [[top + 2, left + 2] for top in (0, 2, 4) for left in (0, 2)]
    assert tokenizer.position_values(units)[:, 1:].T.tolist() == centers
