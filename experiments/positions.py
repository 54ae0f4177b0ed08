"""Comparison of five kinds of positions on captions, pictures of clothes, and noises."""

import unifier as uf
from genres import PLAIN as PLAIN_SOUNDS
from genres import genres
from pictures import PLAIN as PLAIN_PICTURES
from pictures import pictures
from translation import translation
from unifier.options import AudioFrontend, DecoderConfig, ImageFrontend, ParallelTextConfig, Positions, TrunkConfig

KINDS: tuple[Positions, ...] = ("sinusoid", "learned", "rotary", "concat", "none")
TRUNK = TrunkConfig(depth=4, heads=4, ffn_dim=256)
TRAINING = uf.Training(
    tokens=1_000_000, batch_tokens=1024, optimizer="muon", learning_rate=6e-3, num_validations=4, precision="bf16"
)


def captions(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Translate captions from English into German. The decoder always has sinusoids."""
    pairs = ParallelTextConfig("multi30k", "en", "de")
    decoder = DecoderConfig(decoder_depth=1)
    return translation(pairs=pairs, vocabulary=1000, trunk=trunk, decoder=decoder, training=training)


def clothes(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify pictures of ten kinds of clothes. Each picture has 49 patches, with a row and a column as positions."""
    frontend = ImageFrontend(patch=4, stem=None)
    return pictures(
        data="fashion_mnist", frontend=frontend, trunk=trunk, augmentation=PLAIN_PICTURES, training=training
    )


def noises(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify the noises of ESC-10; a token is a patch of the spectrogram, with a time and a band as positions.

    Fold 1 is the test split.
    """
    frontend = AudioFrontend(patch=(16, 16))
    return genres(data="esc10", fold=1, frontend=frontend, trunk=trunk, augmentation=PLAIN_SOUNDS, training=training)


def positions(*, kinds: tuple[Positions, ...] = KINDS, seeds: tuple[int, ...] = (0, 1, 2)) -> uf.Comparison:
    """Compare kinds of positions on three modalities with equal budgets. All other settings can be set.

    Args:
        kinds: The kinds of positions to compare.
        seeds: Random seeds; each kind is trained once per seed.
    """
    for kind in kinds:
        uf.check_choice("kinds", kind, KINDS)
    return uf.Comparison(
        "positions",
        [captions, clothes, noises],
        seeds=seeds,
        grid={"positions": kinds},
        question="Which kind of positions do texts, pictures and sounds need?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
