"""Predictions for files, folders, tables and lines, as CSV or JSON Lines."""

import csv
import io
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO, final, get_args

from torch import Tensor

from unifier.files import create_temporary, print_status
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.ctc import CTCHead
from unifier.heads.detection import DetectionHead
from unifier.heads.forecasting import ForecastingHead
from unifier.heads.head import Head
from unifier.heads.language_modeling import LanguageModelingHead
from unifier.heads.masked_language_modeling import MaskedLanguageModelingHead
from unifier.heads.multi_label_next import MultiLabelNextHead
from unifier.heads.query_detection import QueryDetectionHead
from unifier.heads.question_answering import QuestionAnsweringHead
from unifier.heads.regression import RegressionHead
from unifier.heads.segmentation import SegmentationHead
from unifier.heads.sentence_selection import SentenceSelectionHead
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead
from unifier.heads.text_generation import TextGenerationHead
from unifier.heads.token_classification import TokenClassificationHead, describe_labels
from unifier.heads.token_detection import TokenDetectionHead
from unifier.inference.inputs import Input, read_inputs
from unifier.inference.mask_folder import PredictedMasks
from unifier.inference.model import Model
from unifier.inference.sound_folder import PredictedSpeech
from unifier.inference.stream import Pause, round_probability
from unifier_tokenizers import InputError
from unifier_tokenizers.errors import check_choice, one_line

OutputFormat = Literal["csv", "jsonl"]

BadInputs = Literal["stop", "skip"]
"""Policy for an input that cannot be read: "stop" raises an error, and "skip" leaves out the input with a warning."""

COLUMNS: dict[type[Head], str] = {
    TokenClassificationHead: "labels",
    MaskedLanguageModelingHead: "word",
    SegmentationHead: "shares",
    TokenDetectionHead: "objects",
    QueryDetectionHead: "objects",
    RegressionHead: "number",
    CTCHead: "text",
    ForecastingHead: "forecast",
    SentenceSelectionHead: "text",
    QuestionAnsweringHead: "text",
    LanguageModelingHead: "loss",
    MultiLabelNextHead: "next",
    SpectrogramDecoderHead: "sound",
}
"""Name of the column with the answers of a head. The default is "text" for written texts, else "label"."""

RANKED_HEADS = ClassificationHead, TaggingHead, MaskedLanguageModelingHead
"""The heads whose answers have probabilities."""

PROGRESS_SECONDS = 10.0
"""Time between two lines about the progress."""

MAX_SKIP_WARNINGS = 20
"""Maximum number of skipped inputs that are named."""


@final
class LabelProbability(NamedTuple):
    """A label with its probability, or with None if the head computes no probabilities."""

    label: str
    probability: float | None


@final
@dataclass(frozen=True)
class PredictionOptions:
    """Options of the output."""

    format: OutputFormat = "csv"
    top_k: int | None = None
    """Number of labels per input. None means the most probable label, and all tags of a tagger."""
    bad_inputs: BadInputs = "stop"
    attention: Path | None = None
    """Folder for one figure per input with the attention of the model (see `AttentionFolder`)."""
    masks: Path | None = None
    """Folder for one mask per input picture (see `PredictedMasks`)."""
    sounds: Path | None = None
    """Folder for one sound per input text, for a model that speaks (see `PredictedSpeech`)."""

    def __post_init__(self) -> None:
        check_choice("format", self.format, get_args(OutputFormat))
        check_choice("bad_inputs", self.bad_inputs, get_args(BadInputs))
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k={self.top_k}: at least 1 label is needed")


@final
class InputPredictions:
    """Predictions of the inputs of a command, in order, with the policy for inputs that cannot be read.

    Lines about the progress and about skipped inputs are printed to standard error.
    """

    def __init__(self, predict: Callable[[Iterable[Any]], Iterator[Any]], bad_inputs: BadInputs) -> None:
        """Store the function and the policy.

        Args:
            predict: A function that yields one prediction, or an `InputError`, per input or `Pause`.
            bad_inputs: The policy for an input that cannot be read.
        """
        self._predict, self._bad_inputs = predict, bad_inputs
        self.num_done = self.num_skipped = 0

    def __call__(self, inputs: Iterable[Input | Pause]) -> Iterator[tuple[Input, Any]]:
        """Yield each input with its prediction.

        Raises:
            InputError: An input cannot be read and the policy is "stop", or all inputs were skipped.
        """
        waiting = deque[Input]()

        def values() -> Iterator[Any]:
            for each in inputs:
                if isinstance(each, Input):
                    waiting.append(each)
                    yield each.value
                else:
                    yield each

        start = reported = time.monotonic()
        for prediction in self._predict(values()):
            each = waiting.popleft()
            if isinstance(prediction, InputError):
                self._handle(each, prediction)
                continue
            self.num_done += 1
            yield each, prediction
            if (now := time.monotonic()) - reported > PROGRESS_SECONDS:
                reported = now
                rate = self.num_done / (now - start)
                print_status(f"{self.num_done:,} predictions, {rate:,.1f} per second", sys.stderr)
        if self.num_skipped:
            print_status(
                f"warning: skipped {self.num_skipped:,} of {self.num_done + self.num_skipped:,} inputs", sys.stderr
            )
            if not self.num_done:
                raise InputError(f"none of the {self.num_skipped:,} inputs can be read")

    def _handle(self, each: Input, error: InputError) -> None:
        """Count and name an input that cannot be read, or raise its error."""
        message = one_line(error)
        message = message if each.place in message else f"{each.place}: {message}"
        if self._bad_inputs == "stop":
            raise InputError(f"{message} (--bad-inputs skip leaves out such inputs)") from error
        self.num_skipped += 1
        if self.num_skipped <= MAX_SKIP_WARNINGS:
            print_status(f"warning: skipped {message}", sys.stderr)


def write_predictions(model: Model, task: str, paths: Sequence[str], out: TextIO, options: PredictionOptions) -> None:
    """Write the predictions for files, folders, tables and standard input, as soon as they are computed.

    In CSV, there is one row per label, and the header is written with the first row. In JSON Lines, there is one object
    per input. With several labels per input, the most probable label comes first.

    Args:
        model: The model.
        task: The name of the task.
        paths: See `read_inputs`.
        out: The stream that receives the rows.
        options: The options of the output.

    Raises:
        InputError: The head has no predictions, the head has no probabilities but `top_k` is given, the model has no
            attention but `attention` is given, or an input cannot be read.
    """
    head, reader = model.tasks[task].head, model.tasks[task].reader
    if head.missing_prediction:
        raise InputError(f"the task {task} has no predictions: {head.missing_prediction}")
    if options.top_k is not None and not isinstance(head, RANKED_HEADS):
        raise InputError(f"top_k={options.top_k}: answers of the task {task} have no probabilities; leave out --top-k")
    figures = None
    if options.attention is not None:
        from unifier.inference.attention_folder import AttentionFolder  # It imports matplotlib, which is slow.

        figures = AttentionFolder(model, task, options.attention)
    masks = None if options.masks is None else PredictedMasks(model, task, options.masks)
    speaks = isinstance(head, SpectrogramDecoderHead) or options.sounds is not None
    speech = PredictedSpeech(model, task, options.sounds) if speaks else None
    inputs = read_inputs(paths, reader)
    label = COLUMNS.get(type(head), "text" if isinstance(head, TextGenerationHead) else "label")
    columns = ["input", label, *(["probability"] if isinstance(head, RANKED_HEADS) else [])]
    header = [columns]
    is_single = options.top_k is None and not isinstance(head, TaggingHead | MaskedLanguageModelingHead)
    for each, prediction in InputPredictions(predict_fn(model, task), options.bad_inputs)(inputs):
        if figures is not None:
            figures.draw(each, prediction)
        if masks is not None:
            masks.write(each, prediction)
        answers = answers_of(head, prediction, options.top_k)
        if speech is not None:
            answers = [LabelProbability(str(speech.write(each, prediction)), None)]
        if (marked := describe_labels(head, model.tasks[task].tokenizer, each.value, prediction)) is not None:
            answers = [LabelProbability(marked, None)]
        if options.format == "csv":
            for row in [*header, *([each.name, *answer][: len(columns)] for answer in answers)]:
                out.write(_format_row(row))
            header = []
        else:
            rows = [dict(zip(columns[1:], answer, strict=False)) for answer in answers]
            out.write(json.dumps({"input": each.name} | (rows[0] if is_single else {"labels": rows})) + "\n")
        out.flush()


def predict_fn(model: Model, task: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that yields the model's prediction, or an `InputError`, for each input of a task."""
    return partial(model.predictions, task=task, bad_inputs="yield")


def answers_of(head: Head, prediction: Any, top_k: int | None = None) -> list[LabelProbability]:
    """Return the answers in a prediction, most probable first.

    Args:
        head: The head that made the prediction.
        prediction: The prediction.
        top_k: Number of labels, or of words for each gap. None means one label of a classifier, all tags of a tagger,
            and one word for each gap.
    """
    if isinstance(head, MaskedLanguageModelingHead):
        words = [candidate for gap in prediction for candidate in gap[: top_k or 1]]
        return [LabelProbability(word, round_probability(probability)) for word, probability in words]
    if isinstance(head, ForecastingHead):
        channels = ["; ".join(f"{number:.6g}" for number in channel) for channel in prediction.tolist()]
        return [LabelProbability(" | ".join(channels), None)]
    if isinstance(head, DetectionHead):
        return [LabelProbability(head.list_objects(prediction), None)]
    if not isinstance(head, ClassificationHead | TaggingHead):
        return [LabelProbability(head.describe(prediction), None)]
    probabilities: Tensor = prediction
    count = len(head.labels) if isinstance(head, TaggingHead) else 1
    best = probabilities.argsort(descending=True, stable=True)[: top_k or count].tolist()
    return [LabelProbability(head.labels[c], round_probability(float(probabilities[c]))) for c in best]


@contextmanager
def open_output(path: Path | None) -> Generator[TextIO]:
    """Open a text file for writing, or standard output for None.

    The file appears under its name only if the block ends without an error. A device or a pipe is written directly.

    Raises:
        InputError: The file cannot be created.
    """
    if path is None:
        yield sys.stdout
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder: give a file in it, such as {path / 'predictions.csv'}")
    # Renaming a file to /dev/null would replace the device.
    is_device = os.path.exists(path) and not path.is_file()  # noqa: PTH110  Path.exists fails for long names.
    try:
        file = path.open("wb") if is_device else create_temporary(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
    temporary = None if is_device else Path(file.name)
    try:
        with io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="\n") as text:
            yield text
        if temporary is not None:
            temporary.replace(path)
    except BaseException:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise


def _format_row(cells: Sequence[Any]) -> str:
    # Python quotes a cell with a carriage return only if the line terminator contains a carriage return.
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n") + "\n"
