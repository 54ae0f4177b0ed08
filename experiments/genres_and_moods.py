"""Genres and moods of the same music, jointly on one tokenizer and one trunk."""

from dataclasses import replace
from typing import Literal

from genres import genres
from unifier.experiment import Experiment
from unifier.trials.joint import merge_experiments
from unifier_tokenizers.normalization import Normalization


def genres_and_moods(
    *,
    data: str = "embedded",
    fold: int | None = None,
    normalize: Normalization = "band",
    crop: float | None = None,
    crops: int | None = None,
    dim: int = 128,
    depth: int = 3,
    dropout: float = 0.1,
    epochs: float | None = None,
    batch_tokens: int = 2048,
    learning_rate: float = 5e-3,
    num_validations: int = 8,
    refit: bool = False,
) -> Experiment:
    """Label and tag `data`, which has both ("embedded", "emotify"); settings are those of `genres`."""

    def heard(name: str, target: Literal["genre", "tags"]) -> Experiment:
        alone = genres(
            data=data,
            target=target,
            fold=fold,
            normalize=normalize,
            crop=crop,
            crops=crops,
            dim=dim,
            depth=depth,
            dropout=dropout,
            epochs=epochs,
            batch_tokens=batch_tokens,
            learning_rate=learning_rate,
            num_validations=num_validations,
            refit=refit,
        )
        (task,) = alone.tasks.values()
        return replace(alone, tasks={name: task})

    both = merge_experiments([heard("genre", "genre"), heard("moods", "tags")])
    shared = both.tasks["genre"].tokenizer
    tasks = {name: replace(task, tokenizer=shared) for name, task in both.tasks.items()}
    return replace(both, name="genres_and_moods", tasks=tasks)


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
