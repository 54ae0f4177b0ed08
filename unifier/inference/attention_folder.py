"""A folder with one figure per input of a command: where the model looked."""

import re
import sys
from pathlib import Path
from typing import Any, final

from unifier.data.encoding import encode_units
from unifier.data.source import Example
from unifier.figures.attention_figures import describe_missing_attention, draw_attention, draw_attention_heads
from unifier.files import check_output_folder, print_status
from unifier.inference.explain import embed_units
from unifier.inference.inputs import Input
from unifier.inference.model import Model
from unifier_tokenizers import InputError

MAX_DRAWN_TOKENS = 2048
"""Maximum number of tokens of an input with a figure. The weights of a layer are quadratic in memory."""

MAX_NAME = 60
"""Maximum number of characters of an input's name in the name of its figure. File systems limit a name to 255 bytes."""


@final
class AttentionFolder:
    """Writer of the figures of each input of a task. The name of a figure has the number and the name of its input.

    The first figure shows the mean attention. The figure with the suffix "-heads" shows each layer and head.
    """

    def __init__(self, model: Model, task: str, folder: Path) -> None:
        """Store the model and the folder, which is created with the first figure.

        Args:
            model: The model.
            task: The name of the task.
            folder: The folder, which may exist.

        Raises:
            InputError: The model has no attention to the inputs of the task, or the path of the folder is a file.
        """
        if reason := describe_missing_attention(model.network.trunk, model.tasks[task]):
            raise InputError(f"attention: the task {task} has no attention to draw ({reason}); leave out --attention")
        check_output_folder(folder)
        self._model, self._task, self._folder = model, task, folder
        self._number = 0

    def draw(self, each: Input, prediction: Any) -> None:
        """Draw the attention to an input. A warning names an input with too many tokens.

        Args:
            each: The input, in the order of the output.
            prediction: The model's prediction for the input.
        """
        self._number += 1
        self._create_folder()
        parts, trunk = self._model.tasks[self._task], self._model.network.trunk
        raw = parts.reader.prepare(each.value)
        units = encode_units(parts.tokenizer, Example(raw, None))
        if (length := units.values.shape[-1]) > MAX_DRAWN_TOKENS:
            reason = f"no figure, because it has {length:,} tokens (at most {MAX_DRAWN_TOKENS:,})"
            print_status(f"warning: {each.place}: {reason}", sys.stderr)
            return
        answer = parts.head.describe(prediction)
        path = self._folder / f"{self._number:06}-{input_stem(each)}.svg"
        with self._model.inference_mode():
            tokens = embed_units(self._model, self._task, units)
            draw_attention(path, trunk, parts, raw, units, tokens, answer, answer)
            draw_attention_heads(
                path.with_name(f"{path.stem}-heads.svg"), trunk, parts, units, tokens, answer, lines=True
            )

    def _create_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self._folder} cannot be created as a folder: {error.strerror}") from error


def input_stem(each: Input) -> str:
    """Return the name of an input without the characters that are unsafe in the name of a file."""
    name = each.value.name if isinstance(each.value, Path) else each.name
    return re.sub(r"[^\w.]+", "-", name)[:MAX_NAME].strip("-.") or "input"
