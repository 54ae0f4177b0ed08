"""Genres of music: spectrogram frames in, a label out, or moods as tags."""

from typing import Literal

from unifier.data.embedded import SyntheticMusic
from unifier.data.sets.audio_folder import AudioFolder
from unifier.data.sets.emotify import Emotify
from unifier.data.sets.gtzan import GTZAN
from unifier.data.source import BadExamples, readable
from unifier.heads.classification import ClassificationHead
from unifier.heads.tagging import TaggingHead
from unifier.study.experiment import Arm, Experiment, Precision, Training
from unifier.trunks.named import Positions, added, make_trunk
from unifier_tokenizers import FrameTokenizer, InputError


def genres(
    *,
    data: str = "embedded",
    task: Literal["genre", "tags"] = "genre",
    fold: int = 0,
    rate: int = 8000,
    stack: int = 4,
    trunk: str = "transformer",
    positions: Positions = "sinusoid",
    dim: int = 128,
    depth: int = 3,
    heads: int = 4,
    hidden: int = 256,
    dropout: float = 0.1,
    tokens: int = 600_000,
    batch_tokens: int = 2048,
    learning_rate: float = 2e-3,
    precision: Precision = "float32",
    bad_examples: BadExamples = "stop",
) -> Experiment:
    """Classify or tag `data`: "embedded" (rendered music), "emotify" (400 clips), "gtzan", or a table of your own.

    A table of your own is a CSV with the columns file and label. Sounds are resampled to `rate` Hz; a column is a stack
    of `stack` frames of 10 ms. `fold` is Emotify's, 0 to 4: its artists are heard in the test alone. `trunk`
    is a name that `make_trunk` knows.
    """
    if data == "gtzan" and task == "tags":
        raise InputError("GTZAN has genres and no tags: take task=genre, or data=emotify")
    if data == "embedded":
        source = SyntheticMusic(task=task)
    elif data == "emotify":
        source = Emotify(task=task, fold=fold)
    else:
        source = GTZAN() if data == "gtzan" else AudioFolder(data, task="tags" if task == "tags" else "label")
    some = readable(source.split("train"), bad_examples=bad_examples, most=200)
    tokenizer = FrameTokenizer(dim, rate=rate, stack=stack, positions=added(positions), dropout=dropout)
    tokenizer.fit(example.input for example in some)
    head = TaggingHead(source.labels, dim) if task == "tags" else ClassificationHead(source.labels, dim)
    return Experiment(
        "genres",
        make_trunk(trunk, dim, depth, heads, hidden, dropout, positions=positions),
        {source.name: Arm(source, tokenizer, head)},
        Training(
            tokens=tokens,
            batch_tokens=batch_tokens,
            learning_rate=learning_rate,
            precision=precision,
            bad_examples=bad_examples,
        ),
        tags=("sound", "tagging" if task == "tags" else "classification"),
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
