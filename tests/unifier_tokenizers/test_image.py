"""Pictures become columns: every configuration, every kind of input, and timm's patches with the same weights."""

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

D = 12
SIZES = [(8, 12), (9, 5), (3, 2), (17, 12), (8, 12)]


def pictures(channels: int = 3) -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 256, (*size, channels), dtype=np.uint8) for size in SIZES]


CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"positions": "none"},
    {"positions": "sinusoid"},
    {"class_token": True},
    {"class_token": True, "positions": "sinusoid"},
    {"patch": 5, "stride": 3},
    {"patch": 1},
    {"stem": "strided"},
    {"stem": "strided", "patch": 2, "class_token": True, "positions": "none"},
    {"stem": "strided", "patch": 8, "positions": "sinusoid", "dropout": 0.1},
    {"stem": "pooled"},
    {"stem": "pooled", "patch": 2, "class_token": True, "positions": "none"},
    {"stem": "pooled", "patch": 8, "positions": "sinusoid", "dropout": 0.1},
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_every_configuration_keeps_the_contract(configuration: dict[str, Any], channels: int) -> None:
    check_tokenizer(PatchTokenizer(D, channels=channels, **configuration), pictures(channels))


@pytest.mark.parametrize(("patch", "stride"), [(4, 4), (4, 2), (3, 1)])
def test_columns_are_torchs_unfolded_patches(patch: int, stride: int) -> None:
    picture = pictures()[0]
    values, positions = PatchTokenizer(D, patch=patch, stride=stride).encode(picture)
    padded = torch.from_numpy(picture).permute(2, 0, 1)[None].float()
    short = [-(side - patch) % stride for side in padded.shape[2:]]
    padded = functional.pad(padded, (0, short[1], 0, short[0]))
    assert torch.equal(values.float(), functional.unfold(padded, patch, stride=stride)[0])
    for n, (row, column) in enumerate(positions.T.tolist()):
        corner = padded[0, :, row * stride :, column * stride :][:, :patch, :patch]
        assert torch.equal(values[:, n].float(), corner.flatten())


def test_timms_patch_embedding_with_the_same_weights() -> None:
    tokenizer = PatchTokenizer(D, patch=4, positions="none")
    peer = PatchEmbed(img_size=None, patch_size=4, in_chans=3, embed_dim=D)
    with torch.no_grad():
        peer.proj.weight.copy_(tokenizer.project.out.weight.view_as(peer.proj.weight))
        assert peer.proj.bias is not None
        peer.proj.bias.copy_(tokenizer.project.out.bias)
    picture = pictures()[0]
    normal = (torch.from_numpy(picture).permute(2, 0, 1)[None] / 255 - 0.5) / 0.25
    torch.testing.assert_close(tokenizer(picture), peer(normal)[0].T)


def test_a_picture_that_patches_do_not_fill_is_padded_with_black() -> None:
    tokenizer = PatchTokenizer(D, patch=4, stride=3)
    picture = pictures()[1]
    black = np.zeros((10, 7, 3), dtype=np.uint8)
    black[:9, :5] = picture
    assert all(map(torch.equal, tokenizer.encode(picture), tokenizer.encode(black)))


@pytest.mark.parametrize("stem", [None, "strided", "pooled"])
@pytest.mark.parametrize("class_token", [False, True])
def test_a_picture_has_the_same_columns_alone_and_beside_a_larger_one(stem: StemKind | None, class_token: bool) -> None:
    tokenizer = PatchTokenizer(D, stem=stem, class_token=class_token)
    small, large = pictures()[1], pictures()[3]
    values, positions, mask = pad_columns([tokenizer.encode(small), tokenizer.encode(large)])
    columns = tokenizer.embed(values, positions)
    torch.testing.assert_close(columns[0][:, mask[0]], tokenizer(small), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(columns[1][:, mask[1]], tokenizer(large), atol=1e-5, rtol=1e-5)


def test_the_class_token_stands_first_and_nowhere() -> None:
    tokenizer = PatchTokenizer(D, class_token=True)
    units, other = (tokenizer.encode(picture) for picture in (pictures()[0], pictures()[3]))
    assert (units.positions[:, 0] == NO_POSITION).all()
    assert (units.positions[:, 1:] >= 0).all()
    assert units.values.shape[1] == 2 * 3 + 1
    assert other.values.shape[1] == 5 * 3 + 1
    torch.testing.assert_close(tokenizer(pictures()[0])[:, 0], tokenizer(pictures()[3])[:, 0])


def test_all_kinds_of_pictures_agree() -> None:
    array, tokenizer = pictures()[0], PatchTokenizer(D)
    fixed, fraction = array.copy(), array / 255
    fixed.setflags(write=False)
    kinds: list[Any] = [
        Image.fromarray(array),
        Image.fromarray(np.dstack([array, np.full_like(array[:, :, 0], 255)])),  # with opacity beside its colors
        torch.from_numpy(array),
        torch.from_numpy(fraction),
        torch.from_numpy(fraction).requires_grad_(),
        fraction,
        fraction.astype(np.float32),
        fixed,
        np.asfortranarray(array),
        array[::-1][::-1],
    ]
    for picture in kinds:
        assert all(map(torch.equal, tokenizer.encode(picture), tokenizer.encode(array)))


def test_what_is_transparent_is_white_whatever_color_it_hides() -> None:
    tokenizer = PatchTokenizer(D)
    hidden = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    assert (tokenizer.encode(hidden).values == 255).all()


def test_grey_pictures_agree_with_and_without_an_axis_of_channels() -> None:
    array, tokenizer = pictures(1)[0], PatchTokenizer(D, channels=1)
    for picture in (array[:, :, 0], Image.fromarray(array[:, :, 0]), torch.from_numpy(array[:, :, 0])):
        assert torch.equal(tokenizer.encode(picture).values, tokenizer.encode(array).values)
    gray = Image.fromarray(array[:, :, 0])
    color = PatchTokenizer(D).encode(gray).values.unflatten(0, (3, -1))
    assert all(torch.equal(channel, tokenizer.encode(array).values) for channel in color)


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"H x W x 3 is expected, not one of shape \(3, 8, 8\)"),
        (np.zeros((8, 8), np.uint8), r"not one of shape \(8, 8, 1\)"),
        (np.zeros((0, 8, 3), np.uint8), r"not one of shape \(0, 8, 3\)"),
        (np.zeros(8, np.uint8), r"not one of shape \(8,\)"),
        (np.zeros((8, 8, 3), np.int64), "not int64"),
        (np.zeros((8, 8, 3), bool), "not bool"),
        (np.full((8, 8, 3), 200.0), "a float picture holds 0 to 1, not 200 to 200"),
        (np.full((8, 8, 3), -0.5), "not -0.5 to -0.5"),
        (np.full((8, 8, 3), np.nan), "not nan to nan"),
        (torch.zeros(8, 8, 4, dtype=torch.uint8), r"not one of shape \(8, 8, 4\)"),
        (Image.fromarray(np.full((8, 8), 4000, np.uint16)), "not of mode I;16: scale it first"),
        (Image.fromarray(np.full((8, 8), 0.5, np.float32)), "not of mode F: scale it first"),
        ("picture.png", r"not one of shape \(\)"),
    ],
)
def test_what_is_no_such_picture(picture: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        PatchTokenizer(D).encode(picture)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"patch": 0}, "patch=0: at least 1 pixel"),
        ({"patch": 4, "stride": 5}, "a stride of 5 skips pixels"),
        ({"patch": 6, "stem": "strided"}, "6 is no power of 2"),
        ({"patch": 1, "stem": "pooled"}, "1 is no power of 2"),
        ({"patch": 4, "stride": 2, "stem": "pooled"}, "leave stride at the patch"),
        ({"stem": "plain"}, "no stem 'plain': choose one of strided, pooled"),
    ],
)
def test_configurations_that_cannot_be(configuration: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        PatchTokenizer(D, **configuration)


def test_a_picture_larger_than_the_learned_positions_names_the_way_out() -> None:
    tokenizer = PatchTokenizer(D, length=3)
    tokenizer.encode(pictures()[0])
    with pytest.raises(InputError, match=r"5 places on axis 0 and only 3 learned positions: .*larger length"):
        tokenizer.encode(pictures()[3])


@pytest.mark.parametrize("channels", [1, 3])
def test_fit_makes_each_channel_mean_0_and_std_1(channels: int) -> None:
    seen: list[Tensor] = []
    sizes = [picture[:8, :4] // 2 for picture in pictures(channels) if picture.shape[0] >= 8]
    tokenizer = PatchTokenizer(D, channels=channels, patch=4).fit(sizes)
    tokenizer.project.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for picture in sizes:
        tokenizer(picture)
    normal = torch.cat(seen, dim=1)[0].unflatten(1, (channels, -1)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(normal.mean(1), torch.zeros(channels), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std(1, correction=0), torch.ones(channels), atol=1e-4, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_fit_holds_one_picture_at_a_time_and_finds_what_all_together_have(channels: int) -> None:
    alive: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def one_by_one() -> Iterator[np.ndarray[Any, Any]]:
        for picture in pictures(channels):
            fresh = picture.copy()
            alive.append(weakref.ref(fresh))
            yield fresh
            assert sum(one() is not None for one in alive) == 1

    tokenizer = PatchTokenizer(D, channels=channels).fit(one_by_one())
    pixels = np.concatenate([picture.reshape(-1, channels) for picture in pictures(channels)])
    assert np.allclose(tokenizer.mean, pixels.mean(0) / 255)
    assert np.allclose(tokenizer.std, pixels.std(0) / 255)
    with pytest.raises(InputError, match="no picture: give it at least one"):
        tokenizer.fit(iter(()))


def test_pictures_of_one_color_are_numbers_too() -> None:
    flat = np.full((8, 8), 100, np.uint8)
    assert PatchTokenizer(D, channels=1, patch=4).fit([flat])(flat).isfinite().all()


def test_coordinates_are_pixels_from_middle_to_middle() -> None:
    tokenizer = PatchTokenizer(D, patch=4, stride=2, channels=1, class_token=True)
    units = tokenizer.encode(np.zeros((8, 6), np.uint8))
    middles = [[top + 2, left + 2] for top in (0, 2, 4) for left in (0, 2)]
    assert tokenizer.position_values(units)[:, 1:].T.tolist() == middles


def test_columns_have_rows() -> None:
    with pytest.raises(InputError, match="dim=0: columns of at least 1 row are needed"):
        PatchTokenizer(0)
