"""Comparison of text, pictures and sound on separate trunks and on one shared trunk."""

from dataclasses import replace

import genres
import pictures
import unifier as uf
from translation import translation
from unifier.options import DecoderConfig, ImageFrontend, TrunkConfig

TRUNK = TrunkConfig(depth=2, heads=4, ffn_dim=256)
TRAINING = uf.Training(tokens=30_000, batch_tokens=512, optimizer="muon", learning_rate=2e-2, num_validations=2)
"""Small batches allow more optimizer steps. With small batches, float32 is faster than bfloat16 on a CPU."""
LONGER = replace(TRAINING, tokens=250_000, batch_tokens=1024, learning_rate=1e-2, num_validations=5, precision="bf16")


def grammar(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Translate sentences of a small grammar from English into French."""
    return translation(trunk=trunk, decoder=DecoderConfig(decoder_depth=2), training=training)


def digits(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify handwritten digits. Augmentation is off, because augmentation does not help with a small budget."""
    return pictures.pictures(
        frontend=ImageFrontend(stem=None),
        trunk=replace(trunk, positions="learned"),
        augmentation=pictures.PLAIN,
        training=training,
    )


def music(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify rendered music into five genres; each token covers 40 ms."""
    frontend = replace(genres.PLAIN_FRAMES, sample_rate=8000, stack=4)
    return genres.genres(frontend=frontend, trunk=trunk, augmentation=genres.PLAIN, training=training)


def one_network(*, trunk: TrunkConfig = TRUNK, training: uf.Training = LONGER) -> uf.Experiment:
    """Train all three tasks jointly, with a budget that is sufficient for good scores."""
    parts = [build(trunk=trunk, training=training) for build in (grammar, digits, music)]
    return replace(uf.merge_experiments(parts), name="one_network")


def three_modalities(
    *, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING, seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
) -> uf.Comparison:
    """Train one network for all tasks. Then compare solo and joint training and one transfer with a small budget.

    Args:
        seeds: Random seeds; each condition is trained once per seed.
    """
    return uf.Comparison(
        "three_modalities",
        [grammar, digits, music],
        settings={"trunk": trunk, "training": training},
        seeds=seeds,
        modes=("solo", "joint", "transfer"),
        trainable=("none",),
        transfers=[(digits, grammar)],
        controls=("random",),
        showcase=one_network,
        question="Can text, pictures and sound share a trunk, and what does sharing cost?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
