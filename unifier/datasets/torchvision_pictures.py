"""Labeled pictures of torchvision's data sets, which are read from the data folder and never downloaded."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, final

from unifier.data.dataset import Examples
from unifier.data.inputs import ImageReader
from unifier.data.source import NO_SCORE_RANGE, SPLITS, Example, ScoreRange, SplitName, accuracy_range, data_folder
from unifier.data.splits import hold_out, select_part
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line

TORCHVISION = "torchvision:"
"""Beginning of the setting `data` for a class of torchvision.datasets."""

SPLIT_WORDS: Mapping[SplitName, tuple[str, ...]] = {
    "train": ("train",),
    "val": ("val", "valid", "validation"),
    "test": ("test",),
}
"""Values of the argument `split` of torchvision's classes."""


@final
class TorchvisionPictures:
    """The pictures of a class of torchvision.datasets, such as FashionMNIST or Flowers102.

    The class must have the argument `train` or `split`, and give pictures with a number as the label. A tenth of the
    train pictures is held out for each missing split. The files are in the data folder, where torchvision's own
    `download=True` stores them.

    Args:
        name: The name of the class.
        size: The maximum length of the longer side in pixels. None means no limit.
    """

    def __init__(self, name: str, *, size: int | None = None) -> None:
        self.name = name.lower()
        self._class_name = name
        self.reader = ImageReader(3, size)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers if torchvision does not name the classes."""
        return self._labels

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        train = self._given["train"]
        names: Any = getattr(train, "classes", None)
        if isinstance(names, list | tuple):
            return tuple(" ".join(name) if isinstance(name, tuple) else str(name) for name in names)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return tuple(map(str, range(max(_targets(train)) + 1)))

    @property
    def score_range(self) -> ScoreRange:
        """The score range, which contains a chance score but no reference score."""
        return accuracy_range(self.labels, None, NO_SCORE_RANGE)

    def split(self, name: SplitName) -> Examples[int]:
        """Return the pictures of one split, in the order of torchvision.

        Raises:
            InputError: torchvision has no such class, or its files are missing.
        """
        check_choice("split", name, SPLITS)
        part = name if name in self._given else "train"
        pictures, rows = self._given[part], range(len(self._given[part]))
        missing: list[SplitName] = [other for other in SPLITS if other not in self._given]
        if part == "train" and missing:
            targets = [self.labels[target] for target in _targets(pictures)]
            rows = select_part(rows, hold_out(self.name, targets, missing), name)
        return Examples(rows, partial(_read, pictures, self.labels, self.reader), partial(_locate, self._class_name))

    @cached_property
    def _given(self) -> dict[SplitName, Any]:
        """The data sets of torchvision."""
        from torchvision import datasets

        kind: Callable[..., Any] | None = getattr(datasets, self._class_name, None)
        arguments = inspect.signature(kind).parameters if isinstance(kind, type) else {}
        if kind is None or "root" not in arguments or not {"train", "split"} & arguments.keys():
            raise InputError(
                f"data={TORCHVISION}{self._class_name}: torchvision.datasets has no such class with the argument train "
                "or split; give a class such as FashionMNIST"
            )
        root = data_folder("torchvision").parent
        words: Mapping[SplitName, Sequence[Any]] = SPLIT_WORDS
        if "train" in arguments:
            words = {"train": (True,), "test": (False,)}
        found = dict[SplitName, Any]()
        for part, values in words.items():
            for value in values:
                try:
                    found[part] = kind(root, **{"train" if "train" in arguments else "split": value})
                    break
                except ValueError:  # The class has no such split.
                    continue
                except (RuntimeError, OSError, ImportError) as error:
                    raise InputError(
                        f"data={TORCHVISION}{self._class_name}: no such files in {root} ({one_line(error)}); download "
                        "them with torchvision"
                    ) from error
        if "train" not in found:
            raise InputError(f"data={TORCHVISION}{self._class_name}: it has no split train")
        return found


def _targets(pictures: Any) -> list[int]:
    for name in ("targets", "labels", "_labels"):
        targets: Any = getattr(pictures, name, None)
        if targets is not None and hasattr(targets, "__len__"):
            return [int(target) for target in targets]
    return [int(target) for _, target in pictures]


def _read(pictures: Any, labels: Sequence[str], reader: ImageReader, index: int) -> Example:
    picture, target = pictures[index]
    pixels = reader.prepare(picture)
    # Gray pictures have one channel, like those of MNIST.
    return Example(pixels[:, :, 0] if getattr(picture, "mode", "") == "L" else pixels, labels[int(target)])


def _locate(name: str, index: int) -> str:
    return f"{name}, picture {index + 1}"
