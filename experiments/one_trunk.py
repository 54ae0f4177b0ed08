"""Text, pictures and sound together on one trunk: one set of weights reads all three."""

from dataclasses import replace

from three_modalities import digits, grammar, music
from unifier.experiment import Experiment
from unifier.trials.joint import merge_experiments


def one_trunk(
    *,
    dim: int = 128,
    depth: int = 3,
    tokens: int = 600_000,
    batch_tokens: int = 2048,
    learning_rate: float = 5e-3,
    num_validations: int = 8,
) -> Experiment:
    """`tokens` is what the trunk reads of each task."""
    parts = [
        make(
            dim=dim,
            depth=depth,
            tokens=tokens,
            batch_tokens=batch_tokens,
            learning_rate=learning_rate,
            num_validations=num_validations,
        )
        for make in (grammar, digits, music)
    ]
    return replace(merge_experiments(parts), name="one_trunk")


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
