"""Genres of music: spectrogram frames in, a label out, or moods as tags."""

from typing import Literal

from unifier.data.sets.by_name import sound_source
from unifier.data.source import BadExamples, readable
from unifier.heads.classification import ClassificationHead
from unifier.heads.tagging import TaggingHead
from unifier.study.experiment import Arm, Experiment, Precision, Training
from unifier.trunks.named import Positions, added, make_trunk
from unifier_tokenizers import FrameTokenizer


def genres(
    *,
    data: str = "embedded",
    task: Literal["genre", "tags"] = "genre",
    fold: int | None = None,
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
    validations: int = 8,
    precision: Precision = "float32",
    bad_examples: BadExamples = "stop",
) -> Experiment:
    """Classify or tag `data`: "embedded" (rendered music), one of the sets below, or a table of your own.

    Music is "emotify" and "gtzan", spoken digits are "fsdd", noises "esc10" and "esc50"; of these, Emotify has tags. A
    table of your own is a CSV with the columns file and label. Sounds are resampled to `rate` Hz; a column is a stack
    of `stack` frames of 10 ms. `fold` is tested on: 0 to 4 of Emotify, whose artists are heard there alone, 1 to 5 of
    ESC, 0 to 5 of FSDD, each a speaker (None is its official split), or of your table's. `trunk` is a name that
    `make_trunk` knows.
    """
    source = sound_source(data, task=task, fold=fold)
    some = readable(source.split("train"), bad_examples=bad_examples, most=50)
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
            validations=validations,
            precision=precision,
            bad_examples=bad_examples,
        ),
        tags=("sound", "tagging" if task == "tags" else "classification"),
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
