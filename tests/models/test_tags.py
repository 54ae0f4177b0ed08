"""Tags of a model for W&B and the hub."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from unifier import ClassificationHead, PrefixHead, TaggingHead, TranslationHead
from unifier.datasets import Digits
from unifier.models.tags import pipeline_tag, run_tags
from unifier_tokenizers import Mixture, PatchTokenizer, SubwordTokenizer, Tokenizer, Vocabulary, WaveformTokenizer

D = 8


class Series(Tokenizer):
    """A modality that unifier does not have."""

    encode = embed = Mock()


def task_of(tokenizer: Tokenizer, head: Any) -> Any:
    return SimpleNamespace(tokenizer=tokenizer, head=head)


def test_run_tags_are_modalities_and_tasks() -> None:
    vocabulary = Vocabulary.fit(["a text"], size=300)
    text, image = SubwordTokenizer(vocabulary, D), PatchTokenizer(D)
    audio = WaveformTokenizer(D, sample_rate=8000)
    classify, tag = ClassificationHead(Digits.labels, D), TaggingHead(("a", "b"), D)
    translate = TranslationHead(vocabulary, D, depth=1, heads=2, ffn_dim=8)
    for tokenizer, head, tags, pipeline in [
        (text, translate, ["text", "translation"], "translation"),
        (text, PrefixHead(vocabulary, D), ["text", "translation"], "translation"),
        (image, classify, ["image", "classification"], "image-classification"),
        (image, translate, ["image", "translation"], "image-to-text"),
        (audio, tag, ["audio", "tagging"], None),
        (Mixture({"t": text, "i": image, "a": audio}), classify, ["text", "image", "audio", "classification"], None),
        (Series(D), classify, ["Series", "classification"], None),
        (image, SimpleNamespace(task_tag=""), ["image", "SimpleNamespace"], None),
    ]:
        assert run_tags([task_of(tokenizer, head)]) == tags
        assert pipeline_tag([task_of(tokenizer, head)]) == pipeline
    tasks = [task_of(image, classify), task_of(audio, tag)]
    assert run_tags(tasks) == ["image", "audio", "classification", "tagging"]
    assert pipeline_tag(tasks) is None
