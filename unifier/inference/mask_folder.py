"""A folder with one mask per input picture of a command, as PNG files."""

from pathlib import Path
from typing import Any, final

from unifier.figures.mask_figures import save_mask
from unifier.heads.segmentation import SegmentationHead
from unifier.inference.attention_folder import input_stem
from unifier.inference.inputs import Input
from unifier.inference.model import Model
from unifier_tokenizers import InputError


@final
class PredictedMasks:
    """Writer of one mask per input picture. The name of a mask has the number and the name of its picture."""

    def __init__(self, model: Model, task: str, folder: Path) -> None:
        """Create the folder, which may exist.

        Raises:
            InputError: The task gives no masks, or the folder cannot be created.
        """
        head = model.tasks[task].head
        if not isinstance(head, SegmentationHead):
            raise InputError(f"masks: the task {task} gives no masks; leave out --masks")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder} cannot be created as a folder: {error.strerror}") from error
        self._reader, self._classes, self._folder = model.tasks[task].reader, len(head.labels), folder
        self._number = 0

    def write(self, each: Input, prediction: Any) -> None:
        """Write the mask of an input, as large as the picture that the model reads."""
        self._number += 1
        height, width = self._reader.prepare(each.value).shape[:2]
        path = self._folder / f"{self._number:06}-{input_stem(each)}.png"
        save_mask(path, prediction.numpy()[:height, :width], self._classes)
