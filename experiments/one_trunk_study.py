"""Captions, clothing and music on one trunk: solo, joint and transfer, with controls."""

from typing import Any

from genres import PLAIN, genres
from pictures import pictures
from translation import PLAIN as PLAIN_BLOCKS
from translation import translation
from unifier.comparison import Comparison
from unifier.experiment import Experiment

RECIPE: dict[str, Any] = {"learning_rate": 6e-3, "batch_tokens": 1024}
"""How all are trained; the log says what was tried beside it. Columns are plain, and batches as they are."""


def multi30k(*, dim: int, depth: int, tokens: int, num_validations: int) -> Experiment:
    """English captions into German, with few subwords and a shallow decoder: the trunk is to do the work."""
    return translation(
        data="multi30k",
        source="en",
        target="de",
        vocabulary=1000,
        decoder_depth=1,
        **PLAIN_BLOCKS,
        dim=dim,
        depth=depth,
        tokens=tokens,
        num_validations=num_validations,
        **RECIPE,
    )


def fashion_mnist(*, dim: int, depth: int, tokens: int, num_validations: int) -> Experiment:
    """Clothes of ten kinds, in 49 patches each."""
    return pictures(
        data="fashion_mnist",
        patch=4,
        stem=None,
        crop=0,
        dim=dim,
        depth=depth,
        tokens=tokens,
        num_validations=num_validations,
        **RECIPE,
    )


def emotify(*, dim: int, depth: int, tokens: int, num_validations: int) -> Experiment:
    """Music of four genres, in columns of 160 ms; fold 0, whose artists are heard in the test alone."""
    return genres(
        data="emotify",
        fold=0,
        sample_rate=16000,
        stack=16,
        **PLAIN,
        dim=dim,
        depth=depth,
        tokens=tokens,
        num_validations=num_validations,
        **RECIPE,
    )


def one_trunk_study(
    *,
    dim: int = 128,
    depth: int = 6,
    tokens: int = 600_000,
    num_validations: int = 2,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Comparison:
    """`tokens` is what each task's trunk reads, alone, together and in transfer.

    There are few num_validations, for to translate a split takes as long as hundreds of steps.
    """
    return Comparison(
        "one_trunk_study",
        [multi30k, fashion_mnist, emotify],
        settings={"dim": dim, "depth": depth, "tokens": tokens, "num_validations": num_validations},
        seeds=seeds,
        modes=("solo", "joint", "transfer"),
        trainable=("none", "all"),
        question="What happens to text, pictures and sound when they share a trunk?",
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
