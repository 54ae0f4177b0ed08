"""Columns lie in memory one after the other, as the trunk reads them, so that nothing is turned on the way.

In any order the numbers are the same; in the wrong one embedding and pooling take up to twice as long.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unifier.heads.classification import Pooling, TokenPool
from unifier_tokenizers import (
    Audio,
    FrameTokenizer,
    PatchTokenizer,
    SubwordTokenizer,
    Tokenizer,
    Tokens,
    Vocabulary,
    WaveformTokenizer,
    pad_columns,
)
from unifier_tokenizers.stems import LinearProjection, Stem

D, N = 24, 5
SOUND = Audio(torch.linspace(-1, 1, 8000).sin(), 16000)
PICTURE = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)


def texts(**settings: Any) -> SubwordTokenizer:
    return SubwordTokenizer(Vocabulary.fit(["a dog", "two cats"], size=270), D, **settings)


@pytest.mark.parametrize(
    ("tokenizer", "raws"),
    [
        *((texts(positions=kind), ["a dog", "two cats and a dog"]) for kind in ("none", "sinusoid", "learned")),
        *(
            (PatchTokenizer(D, positions=kind, class_token=first), [PICTURE, PICTURE])
            for kind in ("none", "sinusoid", "learned")
            for first in (False, True)
        ),
        (PatchTokenizer(D, class_token=True), [PICTURE, PICTURE[:4]]),
        (PatchTokenizer(D, stem="pooled", class_token=True), [PICTURE, PICTURE]),
        *((FrameTokenizer(D, stack=4, stem=stem), [SOUND, SOUND]) for stem in (None, "strided", "pooled")),
        (FrameTokenizer(D, patch=(16, 16)), [SOUND, SOUND]),
        (WaveformTokenizer(D), [SOUND, SOUND]),
    ],
)
def test_a_tokenizers_columns_and_their_gradients_lie_one_after_the_other(
    tokenizer: Tokenizer, raws: list[Any]
) -> None:
    values, positions, _ = pad_columns([tokenizer.encode(raw) for raw in raws])
    steps: list[int] = []

    def watch(_: nn.Module, given: object, found: Tensor) -> None:
        found.register_hook(lambda gradient: steps.append(gradient.stride(2)))

    for part in tokenizer.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(watch)
    columns = tokenizer.embed(values, positions)
    assert columns.mT.is_contiguous()
    columns.backward(torch.randn(len(columns), columns.shape[2], D).mT)
    assert set(steps) == ({1} if isinstance(tokenizer.project, (LinearProjection, Stem)) else set())


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_the_gradients_of_pooled_columns_do_too(pooling: Pooling) -> None:
    rows = torch.randn(2, N, D, requires_grad=True)
    pooled = TokenPool(pooling, D)(Tokens(rows.mT, torch.ones(2, N, dtype=torch.bool), torch.zeros(2, 1, N)))
    gradients: list[Tensor] = []
    rows.register_hook(gradients.append)
    pooled.square().sum().backward()
    assert gradients[0].is_contiguous()
