"""Genres of music: spectrogram frames in, a label out, or moods as tags."""

from typing import Literal

from unifier.data.embedded import SyntheticMusic
from unifier.data.sets.emotify import Emotify
from unifier.data.sets.gtzan import GTZAN
from unifier.heads.classification import ClassificationHead
from unifier.heads.tagging import TaggingHead
from unifier.study.experiment import Arm, Experiment, Precision, Training
from unifier.trunks.transformer import Transformer
from unifier_tokenizers import FrameTokenizer, InputError


def genres(
    *,
    data: Literal["embedded", "emotify", "gtzan"] = "embedded",
    task: Literal["genre", "tags"] = "genre",
    fold: int = 0,
    stack: int = 4,
    dim: int = 128,
    depth: int = 3,
    heads: int = 4,
    hidden: int = 256,
    dropout: float = 0.1,
    tokens: int = 600_000,
    batch_tokens: int = 2048,
    learning_rate: float = 2e-3,
    precision: Precision = "float32",
) -> Experiment:
    """`data` "embedded" is rendered music, "emotify" 400 real clips in four genres with moods, "gtzan" ten genres.

    `stack` is how many frames a column holds; `fold` is Emotify's, 0 to 4, whose artists are heard in the test alone.
    """
    if data == "gtzan" and task == "tags":
        raise InputError("GTZAN has genres and no tags: take task=genre, or data=emotify")
    source = (
        Emotify(task=task, fold=fold)
        if data == "emotify"
        else GTZAN()
        if data == "gtzan"
        else SyntheticMusic(task=task)
    )
    rate = 8000 if data == "embedded" else 16000
    tokenizer = FrameTokenizer(dim, rate=rate, hop=0.01, window=0.025, stack=stack, dropout=dropout)
    tokenizer.fit(example.input for example in source.split("train"))
    head = TaggingHead(source.labels, dim) if task == "tags" else ClassificationHead(source.labels, dim)
    return Experiment(
        "genres",
        Transformer(dim, depth, heads, hidden, dropout=dropout),
        {"music" if data == "embedded" else data: Arm(source, tokenizer, head)},
        Training(tokens=tokens, batch_tokens=batch_tokens, learning_rate=learning_rate, precision=precision),
        tags=("sound", "tagging" if task == "tags" else "classification"),
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
