"""Transfer of a trunk from photographs to sounds and from sounds to photographs, compared with random trunks."""

from dataclasses import replace

import unifier as uf
from genres import AUGMENTATION, genres
from pictures import pictures
from unifier.options import AudioFrontend, ImageAugmentationConfig, ImageFrontend, TrunkConfig

TRUNK = TrunkConfig(depth=4, heads=4, ffn_dim=256, positions="learned")
TRAINING = uf.Training(tokens=2_000_000, batch_tokens=2048, optimizer="muon", learning_rate=5e-3, precision="bf16")


def photographs(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify the images of CIFAR-10, stored as JPEG files. Each image has 64 patches."""
    return pictures(
        data="cifar10_jpg",
        frontend=ImageFrontend(patch=4, stem=None),
        trunk=trunk,
        augmentation=ImageAugmentationConfig(crop=4, flip=True, num_crops=1),
        training=training,
    )


def noises(*, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING) -> uf.Experiment:
    """Classify the noises of ESC-10; a token is a square patch of the spectrogram (AST, Gong et al. 2021).

    Fold 1 is the test split.
    """
    return genres(
        data="esc10",
        fold=1,
        frontend=AudioFrontend(patch=(16, 16)),
        trunk=trunk,
        augmentation=replace(AUGMENTATION, freq_shift_tta=False),
        training=training,
    )


def pictures_and_sound(
    *, trunk: TrunkConfig = TRUNK, training: uf.Training = TRAINING, seeds: tuple[int, ...] = (0, 1, 2)
) -> uf.Comparison:
    """Transfer a trunk between pictures and sounds, and train all of the trunk, only its norms, or nothing.

    Args:
        seeds: Random seeds; each condition is trained once per seed.
    """
    return uf.Comparison(
        "pictures_and_sound",
        [photographs, noises],
        settings={"trunk": trunk, "training": training},
        seeds=seeds,
        modes=("solo", "transfer"),
        trainable=("none", "norms", "all"),
        question="Does a trunk trained on pictures help with sounds, and vice versa?",
    )


if __name__ == "__main__":
    uf.run_this_file(__file__)
