"""Comparison of a bidirectional GRU with a transformer on the genres and the moods of music, with equal parameters."""

from dataclasses import replace
from typing import Any, Literal, get_args

import unifier as uf
from genres import PLAIN, PLAIN_FRAMES, genres
from unifier.datasets import create_audio_dataset
from unifier.options import ClipStatistics, MaskedPatchesConfig, TrunkConfig

Reader = Literal["gru", "transformer"]
READERS: tuple[Reader, ...] = get_args(Reader)
SIZES: dict[Reader, dict[str, Any]] = {
    "gru": {"trunk": "gru", "depth": 4},
    "transformer": {"trunk": "transformer", "depth": 2, "heads": 4, "ffn_dim": 320},
}
"""Settings with which both trunks of 128 features have 0.30 million parameters."""

LEARNING_RATE_FACTORS: dict[Reader, float] = {"gru": 0.5, "transformer": 2.0}
"""Factors of the learning rate, chosen from 0.5, 1, 2 and 4 for each trunk on the validation genres of fold 0."""

TRUNK = TrunkConfig()
FRONTEND = replace(PLAIN_FRAMES, stack=16)
TRAINING = uf.Training(
    tokens=300_000, batch_tokens=1024, optimizer="muon", learning_rate=5e-3, num_validations=4, precision="bf16"
)
FOLDS = (0, 1, 2, 3, 4)
PUBLISHED = "average precision weighted by support, 0.18 (GRU) and 0.20 (transformer), and 0.19 and 0.22 over crops"
"""Published figures on FMA, which has other music and other tags than Emotify."""


def choose_trunk(reader: Reader, trunk: TrunkConfig) -> TrunkConfig:
    """Return the settings of a trunk with the sizes of `SIZES`."""
    return replace(trunk, **SIZES[uf.check_choice("reader", reader, READERS)])


def choose_rate(reader: Reader, training: uf.Training) -> uf.Training:
    """Return the budget with a learning rate that suits the trunk, by the factors of `LEARNING_RATE_FACTORS`."""
    return replace(training, learning_rate=training.learning_rate * LEARNING_RATE_FACTORS[reader])


def hidden_frames(
    *, reader: Reader = "transformer", fold: int = 0, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING
) -> uf.Experiment:
    """Predict hidden frames of the music in the training split, without labels.

    Args:
        reader: gru (in both directions) or transformer.
        fold: The fold that is tested, from 0 to 4.
    """
    source = create_audio_dataset("emotify", fold=fold)
    trunk = choose_trunk(reader, trunk)
    tokenizer = FRONTEND.build(source, trunk, ClipStatistics(source, "genre"), training.bad_examples)
    task = MaskedPatchesConfig().build(source, tokenizer)
    return uf.Experiment(trunk.build(), {"hidden_frames": task}, choose_rate(reader, training))


def music_genres(
    *,
    reader: Reader = "transformer",
    fold: int = 0,
    num_crops: int = 1,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Classify music into the four genres of Emotify.

    Args:
        reader: gru (in both directions) or transformer.
        fold: The fold that is tested, from 0 to 4.
        num_crops: Number of crops of 6 seconds that validation and test average.
    """
    return _read_music(reader, "genre", fold, num_crops, trunk, training)


def music_moods(
    *,
    reader: Reader = "transformer",
    fold: int = 0,
    num_crops: int = 1,
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
) -> uf.Experiment:
    """Tag music with the nine emotions of Emotify.

    Args:
        reader: gru (in both directions) or transformer.
        fold: The fold that is tested, from 0 to 4.
        num_crops: Number of crops of 6 seconds that validation and test average.
    """
    return _read_music(reader, "tags", fold, num_crops, trunk, training)


def _read_music(
    reader: Reader,
    target: Literal["genre", "tags"],
    fold: int,
    num_crops: int,
    trunk: TrunkConfig,
    training: uf.Training,
) -> uf.Experiment:
    """Build the experiment of one reader on one kind of target of Emotify.

    Args:
        reader: gru (in both directions) or transformer.
        target: genre for the genres, or tags for the emotions.
        fold: The fold that is tested, from 0 to 4.
        num_crops: Number of crops of 6 seconds that validation and test average.
    """
    experiment = genres(
        data="emotify",
        target=target,
        fold=fold,
        frontend=FRONTEND,
        trunk=choose_trunk(reader, trunk),
        augmentation=replace(PLAIN, crop=6.0, num_crops=num_crops),
        training=choose_rate(reader, training),
    )
    (task,) = experiment.tasks.values()
    return replace(experiment, tasks={"genres" if target == "genre" else "moods": task})


def music_readers(
    *,
    folds: tuple[int, ...] = FOLDS,
    crops: tuple[int, ...] = (1, 5),
    training: uf.Training = TRAINING,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> uf.Comparison:
    """Compare both readers with equal budgets, without and with pretraining, for single crops and for averages.

    Args:
        folds: The folds that are tested, from 0 to 4.
        crops: Numbers of crops that validation and test average.
        training: The budget of each run, with the learning rate before `LEARNING_RATE_FACTORS`.
        seeds: Random seeds; each condition is trained once per fold and seed.
    """
    return uf.Comparison(
        "music_readers",
        [hidden_frames, music_genres, music_moods],
        settings={"training": training},
        seeds=seeds,
        modes=("solo", "transfer"),
        transfers=[(hidden_frames, music_genres), (hidden_frames, music_moods)],
        trainable=("all",),
        controls=(),
        grid={"fold": folds, "reader": READERS, "num_crops": crops},
        question=f"Does a transformer read music better than a GRU? Published on FMA: {PUBLISHED}.",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
