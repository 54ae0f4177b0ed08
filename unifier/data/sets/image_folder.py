"""Pictures of your own, a folder for each class."""

from functools import cached_property, partial
from pathlib import Path
from typing import Literal, final

from unifier.data.examples import Examples, Labelled, from_files
from unifier.data.files import PICTURES, hash_files, read_picture
from unifier.data.source import UNKNOWN, Scale, SplitName, scale_of_accuracy
from unifier.data.splitting import SPLITS, hold_out, pick
from unifier_tokenizers import InputError


@final
class ImageFolder:
    """Pictures in folder/train/<class>/, folder/val/<class>/ and folder/test/<class>/, or all in folder/<class>/.

    What there is no folder for, val or test or both, is held out of the rest: a tenth of every class, the same
    pictures every time. The input is uint8 H x W x `channels`, of any size; the target is the name of the class.
    Files with other endings than a picture's, and hidden ones, are left out.
    """

    def __init__(self, folder: str | Path, *, channels: Literal[1, 3] = 3, name: str = "image_folder") -> None:
        """`channels` is 3 for colour, 1 for grey, whatever the files hold."""
        self.name = name
        self._folder, self._channels = Path(folder), channels

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes, in the order of the alphabet."""
        return tuple(sorted({picture.target for picture in self._divided[0]}))

    @property
    def scale(self) -> Scale:
        """Chance alone: of your own pictures no reference is known."""
        return scale_of_accuracy(self.labels, None, UNKNOWN)

    def split(self, name: SplitName) -> Examples[Labelled]:
        """The pictures of one split, by class and file name. A picture that cannot be read raises InputError."""
        return from_files(pick(*self._divided, name), partial(read_picture, channels=self._channels))

    @cached_property
    def sha256(self) -> str:
        """The hash of every picture and its place in the folder."""
        pictures = [picture.path for picture in self._divided[0]]
        return hash_files({path.relative_to(self._folder).as_posix(): path for path in pictures})

    @cached_property
    def _divided(self) -> tuple[list[Labelled], list[SplitName]]:
        folders = _folders(self._folder)
        given: list[SplitName] = [part for part in SPLITS if part in folders]
        if given and ("train" not in given or len(folders) > len(given)):
            raise InputError(
                f"{self._folder} has the folders {', '.join(folders)}: expected are train, val and test, "
                "of which only train must be there, or one for each class"
            )
        roots: dict[SplitName, Path] = {part: self._folder / part for part in given} or {"train": self._folder}
        found: dict[SplitName, list[Labelled]] = {part: _pictures(root) for part, root in roots.items()}
        pictures = [picture for part in found for picture in found[part]]
        parts: list[SplitName] = [part for part in found for _ in found[part]]
        if not pictures:
            raise InputError(f"{self._folder} has no pictures in folders of classes, such as {self._folder}/cat/1.png")
        lacking: list[SplitName] = [part for part in SPLITS[1:] if part not in given]
        if lacking:
            train = parts.count("train")  # the first so many
            labels = [picture.target for picture in pictures[:train]]
            parts[:train] = hold_out(str(self._folder), labels, lacking)
        return pictures, parts


def _folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of pictures")
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures(folder: Path) -> list[Labelled]:
    return [
        Labelled(path, label)
        for label in _folders(folder)
        for path in sorted((folder / label).iterdir())
        if path.suffix.lower() in PICTURES and not path.name.startswith(".")
    ]
