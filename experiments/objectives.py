"""Comparison of four objectives on six modalities: hide, next, label and point, on trunks of one shape."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import unifier as uf
from detection import detection
from forecasting import forecasting
from language_model import language_model
from next_item import next_item
from pretrain import pretrain
from question_answering import question_answering
from segmentation import segmentation
from speech_recognition import speech_recognition
from spoken_digits import spoken_digits
from token_classification import token_classification
from unifier.datasets import find_floor
from unifier.options import AudioFrontend, MaskedTextConfig, TrunkConfig

TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256)
TRAINING = uf.Training(
    flops=1.2e13, optimizer="muon", learning_rate=4e-3, batch_tokens=2048, precision="bf16", num_validations=4
)
"""All cells have the same budget in FLOPs, which do not depend on the load of the machine."""

WORDS = MaskedTextConfig(unit="words")
SOUND = AudioFrontend(sample_rate=8000, stack=4, stem=None, normalize="example")
"""The tokens of hide and label have the same shape within a modality, so that a tokenizer can be handed over."""

Recipe = Callable[[TrunkConfig, uf.Training], uf.Experiment]
"""A function that builds an experiment with one task."""

CELLS: dict[str, Callable[..., uf.Experiment]] = {}
"""The experiment of each cell, named by its row and its column, such as hide-text. `cell` adds the experiments."""

ROWS = ("hide", "next", "label", "point")

EMPTY = {
    "label-series": "the series have no labels",
    "label-items": "the items have no labels",
    "point-series": "no data set marks a part of a series",
    "point-protein": "no data set marks a part of a protein",
    "point-items": "an item has no parts",
}
"""The reason for each empty cell."""

RATES: dict[str, float] = {}
"""The learning rates that differ from `TRAINING`: of a cell, and of the joint training of a row.

The table is empty, because no rate has been tuned yet. A rate is found on validation, by the same trials for each cell:
`rates=1e-3,2e-3,4e-3,8e-3 flops=4e12 seeds=10`.
"""

FLOORS: dict[tuple[str, str], float] = {}
"""The score of the simple rule of each cell, for each hash of its data. Each score is measured once per process."""


def cell(recipe: Recipe) -> Callable[..., uf.Experiment]:
    """Add an experiment with one task to `CELLS`. The task gets the name of the recipe.

    The score of a cell is normalized: 0 is the score of a simple rule on the test split, and 100 is a perfect score.
    """
    name = recipe.__name__

    def build(
        *, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING, rate: float | None = None
    ) -> uf.Experiment:
        chosen = RATES.get(name.replace("_", "-"), training.learning_rate) if rate is None else rate
        experiment = recipe(trunk, replace(training, learning_rate=chosen))
        (task,) = experiment.tasks.values()
        floor = find_floor(task.source, task.tokenizer, task.head, task.objective)
        key = name, str(getattr(task.source, "sha256", ""))

        def measure() -> float:
            if key not in FLOORS:
                FLOORS[key] = floor.measure()
            return FLOORS[key]

        chance = uf.fitted(f"{name}-floor", measure)
        origin = f"chance: {floor.rule}; reference: a perfect score"
        score_range = uf.ScoreRange(floor.metric, chance, floor.perfect, origin)
        return replace(experiment, tasks={name: replace(task, score_range=score_range)})

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"{recipe.__doc__}\n\nArgs:\n    rate: Learning rate; None means the rate in RATES.\n"
    CELLS[name.replace("_", "-")] = build
    return build


@cell
def hide_text(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Predict hidden words of film reviews."""
    return pretrain(data="movie_reviews", text=WORDS, trunk=trunk, training=training)


@cell
def hide_picture(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Reconstruct hidden patches of CIFAR-10."""
    return pretrain(data="cifar10_jpg", trunk=trunk, training=training)


@cell
def hide_sound(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Reconstruct hidden frames of Emotify's music."""
    return pretrain(data="emotify", sound=SOUND, trunk=trunk, training=training)


@cell
def hide_series(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Reconstruct hidden patches of ETTh1."""
    return pretrain(data="etth1", trunk=trunk, training=training)


@cell
def hide_protein(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Predict hidden residues of proteins."""
    return pretrain(data="protein_ss", trunk=trunk, training=training)


@cell
def hide_items(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Predict hidden products of Amazon Beauty."""
    return next_item(objective="hidden", trunk=trunk, training=training)


@cell
def next_text(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Predict the next character of Shakespeare's plays."""
    return language_model(data="tinyshakespeare", trunk=trunk, training=training)


@cell
def next_picture(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Predict the next pixel of Fashion-MNIST, reduced to 14 x 14 pixels."""
    return language_model(data="fashion_mnist", trunk=trunk, training=training)


@cell
def next_sound(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Predict the next 8-bit sample of spoken digits."""
    return language_model(data="fsdd_samples", trunk=trunk, training=training)


@cell
def next_series(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Forecast the next 96 hours of ETTh1."""
    return forecasting(data="etth1", horizon=96, trunk=trunk, training=training)


@cell
def next_protein(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Predict the next residue of a protein."""
    return language_model(data="protein_ss", trunk=trunk, training=training)


@cell
def next_items(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Predict the next product of Amazon Beauty."""
    return next_item(trunk=trunk, training=training)


@cell
def label_text(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Find the names of diseases in sentences of NCBI."""
    return token_classification(data="ncbi_disease", trunk=trunk, training=training)


@cell
def label_picture(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Give a class to each pixel of pictures of nuclei."""
    return segmentation(trunk=trunk, training=training)


@cell
def label_sound(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Read strings of spoken digits."""
    return speech_recognition(longer=None, frontend=SOUND, trunk=trunk, training=training)


@cell
def label_protein(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Give the secondary structure of each residue of a protein."""
    return token_classification(data="protein_ss", trunk=trunk, training=training)


@cell
def point_text(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Find the answer to a question of SQuAD in its context."""
    return question_answering(trunk=trunk, training=training)


@cell
def point_picture(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Find the blood cells in pictures of BCCD."""
    return detection(trunk=trunk, training=training)


@cell
def point_sound(trunk: TrunkConfig, training: uf.Training) -> uf.Experiment:
    """Find the start and the end of a named digit in a string of spoken digits."""
    return spoken_digits(frontend=SOUND, trunk=trunk, training=training)


def objectives(
    *,
    cells: tuple[str, ...] = tuple(CELLS),
    rates: tuple[float, ...] = (),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> uf.Comparison:
    """Train the cells of the table of objectives and modalities, each on a trunk of its own.

    Args:
        cells: Cells to train, such as hide-text or next-items; the rows are hide, next, label and point.
        rates: Learning rates to try for each cell; () means the chosen rates.
        seeds: Random seeds; each cell is trained once per seed.
    """
    empty = ", ".join(f"{name} ({reason})" for name, reason in EMPTY.items())
    return uf.Comparison(
        "objectives",
        seeds=seeds,
        grid={"rate": rates} if rates else {},
        question=f"How far do four objectives come on six modalities? Empty cells: {empty}.",
        **_shared(cells, trunk, training),
    )


def objectives_joint(
    *,
    row: Literal["hide", "next", "label", "point"] = "hide",
    cells: tuple[str, ...] = (),
    rates: tuple[float, ...] = (),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> uf.Comparison:
    """Train one trunk on all cells of a row. Each cell has the budget of `objectives`.

    Args:
        row: Row of the table of objectives and modalities.
        cells: Cells of the row; () means all cells.
        rates: Learning rates to try; () means the chosen rate.
        seeds: Random seeds; the trunk is trained once per seed.
    """
    every = tuple(name for name in CELLS if name.startswith(f"{uf.check_choice('row', row, ROWS)}-"))
    for name in cells:
        uf.check_choice("cells", name, every)
    return uf.Comparison(
        f"objectives_{row}",
        seeds=seeds,
        modes=("joint",),
        grid={"rate": rates or (RATES.get(row, training.learning_rate),)},
        question=f"What does one trunk for all modalities of the row {row} cost each of them?",
        **_shared(cells or every, trunk, training),
    )


def objectives_transfer(
    *,
    starts: tuple[str, ...] = tuple(name for name in CELLS if name.startswith("hide-")),
    cells: tuple[str, ...] = tuple(name for name in CELLS if name.startswith("label-")),
    tokenizers: bool = False,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> uf.Comparison:
    """Hand over each trunk of the row hide to each cell of the row label, beside random and shuffled trunks.

    Args:
        starts: Cells that train a trunk, such as hide-text.
        cells: Cells that start from the trunk, such as label-text.
        tokenizers: Hand over the tokenizer with the trunk, and only within a modality.
        seeds: Random seeds; each condition is trained once per seed.
    """
    pairs = [
        (start, name)
        for start in starts
        for name in cells
        if not tokenizers or start.partition("-")[2] == name.partition("-")[2]
    ]
    if not pairs:
        raise uf.InputError(
            f"tokenizers=true: {', '.join(starts)} and {', '.join(cells)} have no common modality; give cells of one"
        )
    kept = tuple(name for name in (*starts, *cells) if any(name in pair for pair in pairs))
    shared = _shared(kept, trunk, training)
    return uf.Comparison(
        "objectives_tokenizers" if tokenizers else "objectives_transfer",
        seeds=seeds,
        modes=("solo", "transfer"),
        transfers=[(CELLS[start], CELLS[name]) for start, name in pairs],
        trainable=("all",),
        controls=() if tokenizers else ("random", "shuffled"),
        start_tokenizers=tokenizers,
        question="What does a trunk that has learned to fill in hidden parts bring to labels?",
        **shared,
    )


def _shared(cells: tuple[str, ...], trunk: TrunkConfig, training: uf.Training) -> dict[str, Any]:
    """Return the arguments that all comparisons of cells share.

    Raises:
        InputError: A cell is empty or unknown, or the training has another budget than FLOPs.
    """
    for name in cells:
        if name in EMPTY:
            raise uf.InputError(f"cells={name}: this cell is empty, because {EMPTY[name]}; leave it out")
        uf.check_choice("cells", name, tuple(CELLS))
    if training.flops is None or training.seconds is not None or len(training.budget) > 1:
        raise uf.InputError("the budget of a cell is a number of FLOPs: give flops, and no other budget")
    if training.learning_rate != TRAINING.learning_rate:
        raise uf.InputError(f"learning_rate={training.learning_rate:g}: each cell has its own rate; give rates instead")
    return {
        "experiments": [CELLS[name] for name in cells],
        "settings": {"trunk": trunk, "training": training},
        "budget_unit": "flops",
        "budget": training.flops,
    }


if __name__ == "__main__":
    uf.run_this_file(__file__)
