"""The memory order of embedded tokens, which must be that of the trunk; otherwise embedding takes twice as long."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unifier_tokenizers import (
    Audio,
    FrameTokenizer,
    PatchTokenizer,
    SubwordTokenizer,
    Tokenizer,
    Vocabulary,
    WaveformTokenizer,
    pad_columns,
)
from unifier_tokenizers.stems import LinearProjection, Stem

D = 24
VOCABULARY = Vocabulary.fit(["a dog", "two cats"], size=270)
SOUND = Audio(torch.linspace(-1, 1, 8000).sin(), 16000)
PICTURE = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
TEXTS = ["a dog", "two cats and a dog"]
KINDS = ("none", "sinusoid", "learned")


@pytest.mark.parametrize(
    ("tokenizer", "raws"),
    [
        *((SubwordTokenizer(VOCABULARY, D, positions=kind), TEXTS) for kind in KINDS),
        *((PatchTokenizer(D, positions=kind, class_token=c), [PICTURE] * 2) for kind in KINDS for c in (False, True)),
        (PatchTokenizer(D, class_token=True), [PICTURE, PICTURE[:4]]),
        (PatchTokenizer(D, stem="pooled", class_token=True), [PICTURE] * 2),
        *((FrameTokenizer(D, stack=4, stem=stem), [SOUND] * 2) for stem in (None, "strided", "pooled")),
        (FrameTokenizer(D, patch=(16, 16)), [SOUND] * 2),
        (WaveformTokenizer(D), [SOUND] * 2),
    ],
)
def test_embedded_tokens_are_contiguous(tokenizer: Tokenizer, raws: list[Any]) -> None:
    values, positions, _ = pad_columns([tokenizer.encode(raw) for raw in raws])
    strides: set[int] = set()

    def record(_: nn.Module, inputs: object, output: Tensor) -> None:
        output.register_hook(lambda gradient: strides.add(gradient.stride(2)))

    for part in tokenizer.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(record)
    matrix = tokenizer.embed(values, positions)
    assert matrix.mT.is_contiguous()
    matrix.backward(torch.randn(len(matrix), matrix.shape[2], D).mT)
    assert strides == ({1} if isinstance(tokenizer.project, (LinearProjection, Stem)) else set())
