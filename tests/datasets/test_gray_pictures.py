"""The loss of independent pixels against a plain loop, and the recipe of the next pixel."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import unifier as uf
from benchmarks.pixel_floors import data_bytes, png, png_floors
from tests.experiments.test_recipes import build, only_task
from unifier.datasets import independent_pixel_nats
from unifier_tokenizers import InputError, PixelTokenizer

TOKENIZER = PixelTokenizer(8, side=4, grays=4)


class Few:
    name = "few"

    def split(self, name: str) -> list[uf.Example]:
        pictures = np.random.default_rng(len(name)).integers(0, 256, (5, 4, 4), np.uint8)
        return [uf.Example(picture, "a") for picture in [*pictures, np.zeros((2, 3), np.uint8)]]


def test_independent_pixels_equal_a_plain_loop() -> None:
    train, test = (
        [TOKENIZER.encode(each.input).values[1:].tolist() for each in Few().split(name)[:5]]
        for name in ("train", "test")
    )
    nats = list[float]()
    for pixel in range(16):
        counts = Counter(picture[pixel] for picture in train)
        nats += [-math.log((counts[picture[pixel]] + 1) / (5 + 4)) for picture in test]
    assert independent_pixel_nats(Few(), TOKENIZER) == pytest.approx(sum(nats) / len(nats))


def test_png_sizes_count_the_data() -> None:
    pictures = np.random.default_rng(0).integers(0, 16, (9, 14, 14), np.uint8) * 17
    file = png(pictures[0])
    assert len(file) - data_bytes(file) == 8 + 4 * 12 + 13 + 3 * 16
    whole, data, sheet = (bits for _, bits in png_floors(pictures))
    assert 4 < data < sheet < whole or 4 < sheet < data < whole


def test_uniform_head_and_batches_score_each_pixel_once() -> None:
    network = uf.Network(
        uf.Transformer(8, 1, 2, 16),
        {
            "p": uf.Task(
                Few(), TOKENIZER, uf.LanguageModelingHead(4, 8, unit="pixel", context=16), objective=uf.NextToken()
            )
        },
    )
    values, positions, mask = uf.pad_columns([TOKENIZER.encode(each.input) for each in Few().split("test")[:5]])
    batch = uf.NextToken()(uf.Batch(values, positions, mask, torch.zeros(5), torch.arange(5)), [])
    scores: list[Any] = list(network.evaluate_batch("p", batch).values())
    assert [score.tokens for score in scores] == [16] * 5
    assert scores[0].nats == pytest.approx(16 * math.log(4), rel=1e-5)


@pytest.mark.parametrize(("given", "message"), [({"level": "bpe"}, "level=bpe"), ({"length": 9}, "length=9")])
def test_settings_of_texts_are_refused_for_pictures(given: dict[str, Any], message: str) -> None:
    from unifier.config import load_experiment

    with pytest.raises(InputError, match=message):
        load_experiment("language_model")(data="embedded", **given)
    with pytest.raises(InputError, match="side=8"):
        load_experiment("language_model")(side=8)


@pytest.mark.parametrize(("positions", "expected"), [("rotary", "learned"), ("sinusoid", "sinusoid")])
def test_recipe_adds_learned_positions_to_rotary_positions(positions: str, expected: str) -> None:
    settings: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "steps": 1, "side": 4, "positions": positions}
    tokenizer = only_task(build("language_model", data="embedded", **settings)).tokenizer
    assert isinstance(tokenizer, PixelTokenizer)
    assert tokenizer.encoding.kind == expected
