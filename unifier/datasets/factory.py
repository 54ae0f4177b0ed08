"""Data sets by the value of a recipe's setting `data`: the name of a set, or the path of your own data."""

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
from unifier.datasets.text_classification import SST2, TREC, TextTable
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

TEXT_DATASETS: dict[str, Callable[[], LabeledSource]] = {"sst2": SST2, "trec": TREC}

MAX_NAMED_SIDE = 32
"""Longest side in pixels of the images in the named sets."""


def create_image_dataset(data: str, *, fold: int | None = None, size: int | None = None) -> LabeledSource:
    """Return the named image data set, or the `ImageFolder` at a path.

    Args:
        data: A name in `IMAGE_DATASETS`, or the path of a folder.
        fold: The fold of a folder to test on.
        size: Longest side in pixels to which a folder's images are shrunk.

    Raises:
        InputError: If `data` is neither, or a named set is given a fold or a size below its own.
    """
    if data not in IMAGE_DATASETS:
        return ImageFolder(_existing_path(data, IMAGE_DATASETS), fold=fold, size=size)
    if fold is not None:
        raise InputError(f"fold={fold}: {data} has no folds")
    if size is not None and size < MAX_NAMED_SIDE:
        raise InputError(
            f"size={size}: only images of a folder are shrunk; give at least {MAX_NAMED_SIDE} for data={data}"
        )
    return IMAGE_DATASETS[data]()


def create_audio_dataset(
    data: str, *, target: Literal["genre", "tags"] = "genre", fold: int | None = None
) -> LabeledSource:
    """Return the named audio data set, or the `AudioFolder` at a path.

    Args:
        data: A name in `AUDIO_DATASETS`, or the path of a table or folder.
        target: "genre" for one label per sound, "tags" for any number of them.
        fold: The fold to test on; None takes the first. FSDD's folds are its speakers, and None is its official split.

    Raises:
        InputError: If `data` is neither, or the set has no tags or no folds.
    """
    if target == "tags" and data in ("gtzan", "fsdd", "esc10", "esc50"):
        raise InputError(f"target=tags: {data} has one label per sound; take target=genre, or data=emotify")
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
            path = _existing_path(data, AUDIO_DATASETS)
            return AudioFolder(path, target="tags" if target == "tags" else "label", fold=fold)


def create_text_dataset(data: str, *, text: str | None = None, label: str | None = None) -> LabeledSource:
    """Return the named text classification data set, or the `TextTable` at a path.

    Args:
        data: A name in `TEXT_DATASETS`, or the path of a CSV or TSV file.
        text: Name of the file's column with the texts; None is "text".
        label: Name of the file's column with the labels; None is "label".

    Raises:
        InputError: If `data` is neither, or a named set is given the name of a column.
    """
    if data not in TEXT_DATASETS:
        return TextTable(_existing_path(data, TEXT_DATASETS), text=text or "text", label=label or "label")
    for setting, column in (("text", text), ("label", label)):
        if column is not None:
            raise InputError(f"{setting}={column}: only a table of your own has columns to name; {data} has none")
    return TEXT_DATASETS[data]()


def _existing_path(data: str, names: Iterable[str]) -> str:
    if not data or not Path(data).exists():  # Path("") is the current folder.
        raise InputError(f"data={data or repr('')}: neither an existing path nor one of the sets {', '.join(names)}")
    return data
