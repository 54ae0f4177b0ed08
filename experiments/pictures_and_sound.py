"""Photographs and sounds: does a trunk trained on one help with the other, compared with a random trunk?"""

from genres import genres
from pictures import pictures
from unifier.comparison import Comparison
from unifier.experiment import Experiment


def photographs(*, dim: int, depth: int, tokens: int, batch_tokens: int) -> Experiment:
    """CIFAR-10's JPEG copy, in 64 patches each."""
    return pictures(
        data="cifar10_jpg",
        patch=4,
        stem=None,
        flip=True,
        crop=4,
        crops=1,
        dim=dim,
        depth=depth,
        tokens=tokens,
        batch_tokens=batch_tokens,
    )


def noises(*, dim: int, depth: int, tokens: int, batch_tokens: int) -> Experiment:
    """ESC-10, fold 1, in square patches of the spectrogram, as Gong et al. 2021 gave sounds to a trunk of pictures."""
    return genres(
        data="esc10",
        fold=1,
        sample_rate=16000,
        patch=(16, 16),
        positions="learned",
        freq_shift_tta=False,
        dim=dim,
        depth=depth,
        tokens=tokens,
        batch_tokens=batch_tokens,
    )


def pictures_and_sound(
    *,
    dim: int = 128,
    depth: int = 4,
    tokens: int = 2_000_000,
    batch_tokens: int = 2048,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Comparison:
    """A trunk trained on either, then the other: frozen, its norms alone, all of it, beside the controls."""
    return Comparison(
        "pictures_and_sound",
        [photographs, noises],
        settings={
            "dim": dim,
            "depth": depth,
            "tokens": tokens,
            "batch_tokens": batch_tokens,
        },
        seeds=seeds,
        modes=("solo", "transfer"),
        trainable=("none", "norms", "all"),
        question="Does a trunk trained on pictures hear, and one trained on sound see?",
    )


if __name__ == "__main__":
    from unifier.cli import run_this_file

    run_this_file(__file__)
