"""Data sets of pictures and sounds by the name that an experiment's setting `data` gives."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Literal

from unifier.data.source import LabeledSource
from unifier.datasets.audio_folder import AudioFolder
from unifier.datasets.cifar10 import CIFAR10
from unifier.datasets.digits import Digits
from unifier.datasets.emotify import Emotify
from unifier.datasets.esc import ESC
from unifier.datasets.fsdd import FSDD, SPEAKERS
from unifier.datasets.gtzan import GTZAN
from unifier.datasets.image_folder import ImageFolder
from unifier.datasets.mnist import MNIST
from unifier.datasets.synthetic_music import SyntheticMusic
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice

IMAGE_DATASETS: dict[str, Callable[[], LabeledSource]] = {
    "embedded": Digits,
    "mnist": MNIST,
    "fashion_mnist": partial(MNIST, "fashion_mnist"),
    "cifar10": CIFAR10,
    "cifar10_jpg": partial(CIFAR10, jpeg=True),
}


AUDIO_DATASETS = ("embedded", "emotify", "gtzan", "fsdd", "esc10", "esc50")


MAX_NAMED_SIDE = 32
"""The longest side of a picture in any of these, in pixels."""


def create_image_dataset(data: str, *, fold: int | None = None, size: int | None = None) -> LabeledSource:
    """The set of that name, or the `ImageFolder` at that place; `fold`, one of the folder's, is tested on.

    The folder's pictures are shrunk to `size` pixels on their longer side. Raises InputError where a named set is asked
    for folds, or for pictures smaller than `NAMED_SIDE`, and where there is neither such a set nor such a folder.
    """
    if data not in IMAGE_DATASETS:
        return ImageFolder(_there(data, IMAGE_DATASETS), fold=fold, size=size)
    if fold is not None:
        raise InputError(f"fold={fold}: {data} has no folds")
    if size is not None and size < MAX_NAMED_SIDE:
        raise InputError(
            f"size={size}: only pictures of a folder are shrunk; for {data} it is at least {MAX_NAMED_SIDE}"
        )
    return IMAGE_DATASETS[data]()


def create_audio_dataset(
    data: str, *, target: Literal["genre", "tags"] = "genre", fold: int | None = None
) -> LabeledSource:
    """The set of that name, or the `AudioFolder` of that table or folder: one label a sound, or with task "tags" any.

    `fold` is tested on, by default the first; of FSDD, where it is a speaker's number, by default the official split.
    Raises InputError where the set has no tags or no folds, and where there is neither such a set nor such a place.
    """
    if target == "tags" and data in ("gtzan", "fsdd", "esc10", "esc50"):
        raise InputError(f"{data} has one label a sound and no tags: take task=genre, or data=emotify")
    if fold is not None and data in ("embedded", "gtzan"):
        raise InputError(f"fold={fold}: {data} has no folds")
    match data:
        case "embedded":
            return SyntheticMusic(target=target)
        case "emotify":
            return Emotify(target, fold=0 if fold is None else fold)
        case "gtzan":
            return GTZAN()
        case "fsdd":
            return FSDD(speaker=None if fold is None else SPEAKERS[check_choice("fold", fold, range(len(SPEAKERS)))])
        case "esc10" | "esc50":
            return ESC(data, fold=1 if fold is None else fold)
        case _:
            return AudioFolder(_there(data, AUDIO_DATASETS), target="tags" if target == "tags" else "label", fold=fold)


def _there(data: str, names: Iterable[str]) -> str:
    if not data or not Path(data).exists():  # of no text Path makes the folder that the program was started in
        raise InputError(f"{data or 'an empty text'}: neither a place nor one of the sets {', '.join(names)}")
    return data
