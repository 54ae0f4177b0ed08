"""Text, pictures and sound: each on its own trunk, all on one, and on the trunks that the others trained."""

from genres import genres
from pictures import pictures
from translation import translation
from unifier.study.comparison import Comparison


def three_modalities(
    *,
    dim: int = 128,
    depth: int = 2,
    tokens: int = 45_000,
    batch_tokens: int = 512,
    learning_rate: float = 2e-2,
    validations: int = 2,
    seeds: tuple[int, ...] = (0, 1),
) -> Comparison:
    """`tokens` is what each arm's trunk reads: alone, together, and in transfer, where the trunk stays frozen.

    So few of them are worth most in small batches, and with Muon.
    """
    return Comparison(
        "three_modalities",
        [translation, pictures, genres],
        settings={
            "dim": dim,
            "depth": depth,
            "tokens": tokens,
            "batch_tokens": batch_tokens,
            "optimizer": "muon",
            "learning_rate": learning_rate,
            "validations": validations,
        },
        seeds=seeds,
        modes=("solo", "joint", "transfer"),
        tuned=("none",),
        question="What happens to text, pictures and sound when they share a trunk?",
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
