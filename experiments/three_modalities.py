"""Text, pictures and sound: solo, joint and transfer, with controls."""

from genres import PLAIN, genres
from pictures import pictures
from translation import PLAIN as PLAIN_BLOCKS
from translation import translation
from unifier.comparison import Comparison
from unifier.experiment import Experiment


def grammar(
    *, dim: int, depth: int, tokens: int, batch_tokens: int, learning_rate: float, num_validations: int
) -> Experiment:
    """Sentences of a small grammar, from English into French."""
    return translation(
        dim=dim,
        depth=depth,
        decoder_depth=2,
        **PLAIN_BLOCKS,
        tokens=tokens,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        num_validations=num_validations,
    )


def digits(
    *, dim: int, depth: int, tokens: int, batch_tokens: int, learning_rate: float, num_validations: int
) -> Experiment:
    """Handwritten digits, in plain patches and as they are: so few columns leave no time to learn from changed ones."""
    return pictures(
        stem=None,
        crop=0,
        dim=dim,
        depth=depth,
        tokens=tokens,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        num_validations=num_validations,
    )


def music(
    *, dim: int, depth: int, tokens: int, batch_tokens: int, learning_rate: float, num_validations: int
) -> Experiment:
    """Rendered music in five genres, in plain columns of 40 ms and as it is."""
    return genres(
        sample_rate=8000,
        stack=4,
        **PLAIN,
        dim=dim,
        depth=depth,
        tokens=tokens,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        num_validations=num_validations,
    )


def three_modalities(
    *,
    dim: int = 128,
    depth: int = 2,
    tokens: int = 40_000,
    batch_tokens: int = 512,
    learning_rate: float = 2e-2,
    num_validations: int = 2,
    seeds: tuple[int, ...] = (0, 1),
) -> Comparison:
    """`tokens` is what each task's trunk reads: alone, together, and in transfer, where the trunk stays frozen.

    So few of them are worth most in small batches.
    """
    return Comparison(
        "three_modalities",
        [grammar, digits, music],
        settings={
            "dim": dim,
            "depth": depth,
            "tokens": tokens,
            "batch_tokens": batch_tokens,
            "learning_rate": learning_rate,
            "num_validations": num_validations,
        },
        seeds=seeds,
        modes=("solo", "joint", "transfer"),
        trainable=("none",),
        question="What happens to text, pictures and sound when they share a trunk?",
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
