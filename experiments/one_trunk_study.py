"""Comparisons of solo, joint and transfer training, and of experts, on captions, pictures of clothes, and music."""

from dataclasses import replace

import genres
import pictures
import unifier as uf
from translation import translation
from unifier.options import DecoderConfig, ImageFrontend, ParallelTextConfig, TrunkConfig

TRUNK = TrunkConfig(depth=6, heads=4, ffn_dim=256)
TRAINING = uf.Training(
    tokens=600_000, batch_tokens=1024, optimizer="muon", learning_rate=6e-3, num_validations=2, precision="bf16"
)
"""A run has only two validations, because translating the validation split takes as long as hundreds of steps."""


def multi30k(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Translate captions from English into German.

    A small vocabulary and a single decoder layer keep the layers outside the trunk small.
    """
    pairs = ParallelTextConfig("multi30k", "en", "de")
    return translation(
        pairs=pairs, vocabulary=1000, trunk=trunk, decoder=DecoderConfig(decoder_depth=1), training=training
    )


def fashion_mnist(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify pictures of ten kinds of clothes. Each picture has 49 patches."""
    return pictures.pictures(
        data="fashion_mnist",
        frontend=ImageFrontend(patch=4, stem=None),
        trunk=replace(trunk, positions="learned"),
        augmentation=pictures.PLAIN,
        training=training,
    )


def emotify(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify music into four genres; each token covers 160 ms. The artists of fold 0 occur only in the test split."""
    return genres.genres(
        data="emotify",
        fold=0,
        frontend=replace(genres.PLAIN_FRAMES, stack=16),
        trunk=trunk,
        augmentation=genres.PLAIN,
        training=training,
    )


def one_trunk_study(
    *, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING, seeds: tuple[int, ...] = (0, 1, 2)
) -> uf.Comparison:
    """Compare solo training, joint training and transfer on three real data sets. `tokens` is the budget of each task.

    Args:
        seeds: Random seeds; each condition is trained once per seed.
    """
    return uf.Comparison(
        "one_trunk_study",
        [multi30k, fashion_mnist, emotify],
        settings={"trunk": trunk, "training": training},
        seeds=seeds,
        modes=("solo", "joint", "transfer"),
        trainable=("none", "all"),
        question="What happens to text, pictures and sound when they share a trunk?",
    )


def experts_in_one_trunk(
    *,
    experts: tuple[int, ...] = (1, 4),
    trunk: TrunkConfig = TRUNK,
    training: uf.Training = TRAINING,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> uf.Comparison:
    """Compare one feed-forward network per layer with several, of which a token uses one, in solo and joint training.

    A token uses one network in both cases, so the FLOPs are equal except for the router.

    Args:
        experts: Numbers of feed-forward networks per layer.
        seeds: Random seeds; each condition is trained once per seed.
    """
    return uf.Comparison(
        "experts_in_one_trunk",
        [multi30k, fashion_mnist, emotify],
        settings={"trunk": trunk, "training": training},
        seeds=seeds,
        modes=("solo", "joint"),
        grid={"experts": experts},
        question="Do experts win back what a shared trunk loses, and do they divide by modality?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
