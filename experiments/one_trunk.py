"""Text, pictures and sound together on one trunk: one set of weights reads all three."""

from dataclasses import replace

from genres import genres
from pictures import pictures
from translation import translation
from unifier.study.experiment import Experiment
from unifier.study.joint import together


def one_trunk(*, dim: int = 128, depth: int = 3, tokens: int = 600_000, dropout: float = 0.1) -> Experiment:
    """`tokens` is what the trunk reads of each arm."""
    parts = [make(dim=dim, depth=depth, tokens=tokens, dropout=dropout) for make in (translation, pictures, genres)]
    return replace(together(parts), name="one_trunk", tags=("text", "pictures", "sound"))


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
