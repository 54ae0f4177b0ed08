"""Comparison of four objectives on six modalities: hide, next, label and point, on trunks of one shape."""

import unifier as uf
from detection import detection
from forecasting import forecasting
from language_model import language_model
from next_item import next_item
from pretrain import pretrain
from question_answering import question_answering
from segmentation import segmentation
from speech_recognition import speech_recognition
from token_classification import token_classification
from unifier.options import TrunkConfig

TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256)
TRAINING = uf.Training(
    seconds=480, optimizer="muon", learning_rate=4e-3, batch_tokens=2048, precision="bf16", num_validations=4
)
"""The budget counts seconds, because every run must end within 10 minutes, with the test included."""


def hide_text(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Predict hidden words of film reviews."""
    return pretrain(data="movie_reviews", trunk=trunk, training=training)


def hide_picture(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Reconstruct hidden patches of CIFAR-10."""
    return pretrain(data="cifar10_jpg", trunk=trunk, training=training)


def hide_sound(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Reconstruct hidden frames of Emotify's music."""
    return pretrain(data="emotify", trunk=trunk, training=training)


def hide_series(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Reconstruct hidden patches of ETTh1."""
    return pretrain(data="etth1", trunk=trunk, training=training)


def hide_protein(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Predict hidden residues of proteins."""
    return pretrain(data="protein_ss", trunk=trunk, training=training)


def hide_items(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Predict hidden products of Amazon Beauty."""
    return next_item(objective="hidden", trunk=trunk, training=training)


def next_text(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Predict the next character of Shakespeare's plays."""
    return language_model(data="tinyshakespeare", trunk=trunk, training=training)


def next_picture(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Predict the next pixel of Fashion-MNIST, reduced to 14 x 14 pixels."""
    return language_model(data="fashion_mnist", trunk=trunk, training=training)


def next_sound(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Predict the next 8-bit sample of spoken digits."""
    return language_model(data="fsdd_samples", trunk=trunk, training=training)


def next_series(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Forecast the next 96 hours of ETTh1."""
    return forecasting(data="etth1", horizon=96, trunk=trunk, training=training)


def next_items(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Predict the next product of Amazon Beauty."""
    return next_item(trunk=trunk, training=training)


def label_text(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Find the names of diseases in sentences of NCBI."""
    return token_classification(data="ncbi_disease", trunk=trunk, training=training)


def label_picture(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Give a class to each pixel of pictures of nuclei."""
    return segmentation(trunk=trunk, training=training)


def label_sound(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Read strings of spoken digits."""
    return speech_recognition(longer=None, trunk=trunk, training=training)


def label_protein(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Give the secondary structure of each residue of a protein."""
    return token_classification(data="protein_ss", trunk=trunk, training=training)


def point_text(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Find the answer to a question of SQuAD in its context."""
    return question_answering(trunk=trunk, training=training)


def point_picture(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Find the blood cells in pictures of BCCD."""
    return detection(trunk=trunk, training=training)


CELLS = {
    make.__name__.replace("_", "-"): make
    for make in (
        *(hide_text, hide_picture, hide_sound, hide_series, hide_protein, hide_items),
        *(next_text, next_picture, next_sound, next_series, next_items),
        *(label_text, label_picture, label_sound, label_protein),
        *(point_text, point_picture),
    )
}
"""The experiment of each cell, named by its row and its column."""
EMPTY = {
    "next-protein": "no recipe predicts the next residue",
    "label-series": "the series have no labels",
    "label-items": "the items have no labels",
    "point-sound": "no data set has the begin and the end of a spoken digit",
    "point-series": "no data set marks a part of a series",
    "point-protein": "no data set marks a part of a protein",
    "point-items": "an item has no parts",
}
"""The reason for each empty cell."""


def objectives(
    *,
    cells: tuple[str, ...] = tuple(CELLS),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> uf.Comparison:
    """Train the cells of the table of objectives and modalities, each on a trunk of its own.

    Args:
        cells: Cells to train, such as hide-text or next-items; the rows are hide, next, label and point.
        seeds: Random seeds; each cell is trained once per seed.
    """
    for cell in cells:
        if cell in EMPTY:
            raise uf.InputError(f"cells={cell}: this cell is empty, because {EMPTY[cell]}; leave it out")
        uf.check_choice("cells", cell, tuple(CELLS))
    budget = training.seconds
    if budget is None or training.budget:
        raise uf.InputError("the budget of a cell is a number of seconds: give seconds, and no other budget")
    empty = ", ".join(f"{cell} ({reason})" for cell, reason in EMPTY.items())
    return uf.Comparison(
        "objectives",
        [CELLS[cell] for cell in cells],
        settings={"trunk": trunk, "training": training},
        seeds=seeds,
        budget_unit="seconds",
        budget=budget,
        question=f"How far do four objectives come on six modalities? Empty cells: {empty}.",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
