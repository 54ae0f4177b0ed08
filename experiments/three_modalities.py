"""Text, pictures and sound on the same trunk from the same first weights, each with the same budget of columns."""

from genres import genres
from pictures import pictures
from translation import translation
from unifier.study.comparison import Comparison


def three_modalities(
    *, dim: int = 128, depth: int = 3, tokens: int = 600_000, seeds: tuple[int, ...] = (0,)
) -> Comparison:
    """`tokens` is what each arm's trunk reads."""
    return Comparison(
        "three_modalities",
        [translation, pictures, genres],
        settings={"dim": dim, "depth": depth, "tokens": tokens},
        seeds=seeds,
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
