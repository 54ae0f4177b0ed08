"""Small models of each kind, with random weights that give clearly different answers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unifier import (
    ClassificationHead,
    CTCHead,
    FrameTokenizer,
    ItemTokenizer,
    LanguageModelingHead,
    Mixture,
    MultiLabelNextHead,
    NextItemHead,
    PatchTokenizer,
    PianoRollTokenizer,
    PixelTokenizer,
    PrefixHead,
    QuestionAnsweringHead,
    RegressionHead,
    SegmentationHead,
    SentenceSelectionHead,
    SpectrogramDecoderHead,
    SubwordTokenizer,
    TaggingHead,
    TokenClassificationHead,
    TranslationHead,
    VideoTokenizer,
    Vocabulary,
    WordTokenizer,
    create_trunk,
)
from unifier.data.inputs import reader_of
from unifier.models.folder import ModelTask, StoredModel, write_model
from unifier_tokenizers import Audio
from unifier_tokenizers.log_mel import LogMel

D = 16
VOCABULARY = Vocabulary.fit(["one two three", "four five six"], size=280)
LABELS = ["red", "green", "blue"]
SOUND = Audio(np.sin(np.arange(8000) / 9).astype(np.float32), 16000)

Parts = tuple[Any, Any]
"""A tokenizer and a head."""

PARTS: Mapping[str, Callable[[], Parts]] = {
    "text": lambda: (SubwordTokenizer(VOCABULARY, D), ClassificationHead(LABELS, D)),
    "picture": lambda: (PatchTokenizer(D, class_token=True), ClassificationHead(LABELS, D, pooling="cls")),
    "clip": lambda: (VideoTokenizer(D, patch=4), ClassificationHead(LABELS, D)),
    "tags": lambda: (PatchTokenizer(D), TaggingHead(LABELS, D)),
    "sound": lambda: (FrameTokenizer(D, patch=(16, 16)).fit([SOUND]), TaggingHead(LABELS, D)),
    "translation": lambda: (SubwordTokenizer(VOCABULARY, D), TranslationHead(VOCABULARY, D, depth=1, heads=2)),
    "prefix": lambda: (SubwordTokenizer(VOCABULARY, D), PrefixHead(VOCABULARY, D)),
    "caption": lambda: (PatchTokenizer(D), TranslationHead(VOCABULARY, D, depth=1, heads=2)),
    "mixture": lambda: (
        Mixture({"caption": SubwordTokenizer(VOCABULARY, D), "image": PatchTokenizer(D)}),
        ClassificationHead(LABELS, D),
    ),
    "segmentation": lambda: (PatchTokenizer(D, patch=4), SegmentationHead(LABELS, D, patch=4)),
    "symbols": lambda: (FrameTokenizer(D, patch=(16, 16)).fit([SOUND]), CTCHead(LABELS, D)),
    "numbers": lambda: (SubwordTokenizer(VOCABULARY, D), RegressionHead("ab", D, mean=[3, 4], std=[2, 5])),
    "sentences": lambda: (SubwordTokenizer(VOCABULARY, D, sentences=True), SentenceSelectionHead(D)),
    "questions": lambda: (
        Mixture(dict.fromkeys(("question", "context"), WordTokenizer(VOCABULARY, D)), mark_shared=True),
        QuestionAnsweringHead(D),
    ),
    "speech": lambda: (
        SubwordTokenizer(VOCABULARY, D),
        SpectrogramDecoderHead(D, log_mel=LogMel(8000, n_mels=8), mean=[0] * 8, std=[1] * 8, max_seconds=0.5, depth=1),
    ),
    "words": lambda: (WordTokenizer(VOCABULARY, D), TokenClassificationHead(LABELS, D)),
    "music": lambda: (PianoRollTokenizer(D), MultiLabelNextHead(88, D)),
    "shop": lambda: (shop := ItemTokenizer(30, D), NextItemHead(shop.embedding)),
    "pixels": lambda: (PixelTokenizer(D, side=4), LanguageModelingHead(17, D, unit="pixel")),
}


def small_model(
    *kinds: str, trunk: str = "transformer", experts: int = 1, longest: int = 8, **tasks: Parts
) -> StoredModel:
    """Return a model with one task per kind and per argument.

    Args:
        kinds: Keys of `PARTS`, which are also the names of the tasks.
        trunk: The name of the trunk.
        experts: The number of feed-forward networks in each layer of a transformer.
        longest: The number of tokens of the longest training example.
        tasks: The tokenizer and the head of other tasks.
    """
    torch.manual_seed(0)
    made = {}
    for name, (tokenizer, head) in ({kind: PARTS[kind]() for kind in kinds} | tasks).items():
        for layer in (module for module in head.modules() if isinstance(module, torch.nn.Linear)):
            torch.nn.init.normal_(layer.weight)
        reader = reader_of(None, tokenizer, marked=head.marked_text)
        made[name] = ModelTask(tokenizer, head, reader, longest)
    return StoredModel("small", create_trunk(trunk, D, 1, 2, D, experts=experts), made, 2 * longest, {"scores": {}})


def save_model(folder: Path, *kinds: str, **options: Any) -> str:
    """Write the folder of a small model into a folder, and return its path."""
    write_model(folder / "model", small_model(*kinds, **options), "card")
    return str(folder / "model")
