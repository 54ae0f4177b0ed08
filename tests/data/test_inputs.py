"""Preparation of raw inputs: a path, a PIL image, an array and a tensor give equal pixels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unifier import Audio, FrameTokenizer, Mixture, PatchTokenizer, SubwordTokenizer, Vocabulary
from unifier.data.inputs import AudioReader, ImageReader, TextReader, reader_of
from unifier.datasets.image_folder import ImageFolder
from unifier_tokenizers import InputError


@pytest.mark.parametrize("reader", [ImageReader(), ImageReader(channels=1), ImageReader(size=6), ImageReader(1, 5)])
def test_every_form_of_a_picture_gives_the_pixels_of_training(reader: ImageReader, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 4), np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "picture.png")
    for folder in ("a", "b"):
        (tmp_path / "set" / folder).mkdir(parents=True)
        for index in range(4):
            image.save(tmp_path / "set" / folder / f"{index}.png")
    source = ImageFolder(tmp_path / "set", channels=reader.channels, size=reader.size)
    trained = source.split("train")[0].input
    assert trained.shape[2] == reader.channels
    forms = [tmp_path / "picture.png", str(tmp_path / "picture.png"), image, pixels, torch.from_numpy(pixels)]
    for form in forms:
        np.testing.assert_array_equal(source.reader.prepare(form), trained)
        np.testing.assert_array_equal(reader.prepare(form), trained)
    for color in (pixels[:, :, :3], trained):  # An array that needs no change is not converted by Pillow.
        expected = reader.prepare(Image.fromarray(color.squeeze(2) if color.shape[2] == 1 else color))
        np.testing.assert_array_equal(reader.prepare(color), expected)


def test_float_and_gray_arrays_are_converted() -> None:
    gray = np.arange(16, dtype=np.uint8).reshape(4, 4)
    assert ImageReader(3).prepare(gray).tolist() == np.stack([gray] * 3, 2).tolist()
    assert ImageReader(1).prepare(gray / 255).tolist() == gray[:, :, None].tolist()


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        *((ImageReader(), value) for value in (5, np.zeros(3), np.full((2, 2), 300), Image.new("I", (2, 2)))),
        *((AudioReader(), value) for value in ("no.wav", 5)),
        *((TextReader(), value) for value in (5, Path("text.txt"))),
    ],
)
def test_value_of_another_modality_is_refused(reader: Any, value: Any) -> None:
    with pytest.raises(InputError):
        reader.prepare(value)


def test_default_reader_follows_the_tokenizer() -> None:
    text, image = SubwordTokenizer(Vocabulary.fit(["a"], size=260), 8), PatchTokenizer(8, channels=1)
    assert reader_of(None, image) == ImageReader(channels=1)
    sound = Audio(np.zeros(9, np.float32), 8000)
    assert reader_of(None, FrameTokenizer(8)).prepare((sound.waveform, 8000)) == sound
    mixed = reader_of(None, Mixture({"text": text, "image": image})).prepare({"text": "a", "image": np.zeros((2, 2))})
    assert mixed["text"] == "a"
    assert mixed["image"].dtype == np.uint8
