"""Genres and moods of the same music, jointly on one tokenizer and one trunk."""

from dataclasses import replace
from typing import Literal

from genres import genres
from unifier.experiment import Experiment
from unifier.trials.joint import together
from unifier_tokenizers.normalization import Normalise


def genres_and_moods(
    *,
    data: str = "embedded",
    fold: int | None = None,
    normalise: Normalise = "band",
    crop: float | None = None,
    crops: int | None = None,
    dim: int = 128,
    depth: int = 3,
    dropout: float = 0.1,
    epochs: float | None = None,
    batch_tokens: int = 2048,
    learning_rate: float = 5e-3,
    validations: int = 8,
    refit: bool = False,
) -> Experiment:
    """Label and tag `data`, which has both ("embedded", "emotify"); settings are those of `genres`."""

    def heard(name: str, task: Literal["genre", "tags"]) -> Experiment:
        alone = genres(
            data=data,
            task=task,
            fold=fold,
            normalise=normalise,
            crop=crop,
            crops=crops,
            dim=dim,
            depth=depth,
            dropout=dropout,
            epochs=epochs,
            batch_tokens=batch_tokens,
            learning_rate=learning_rate,
            validations=validations,
            refit=refit,
        )
        (arm,) = alone.arms.values()
        return replace(alone, arms={name: arm})

    both = together([heard("genre", "genre"), heard("moods", "tags")])
    shared = both.arms["genre"].tokenizer
    arms = {name: replace(arm, tokenizer=shared) for name, arm in both.arms.items()}
    return replace(both, name="genres_and_moods", arms=arms)


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
