"""Evaluation of a trained model on new labeled data: scores with intervals, scores of each class, and a page."""

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray

from unifier.data.audio_files import AUDIO_SUFFIXES, read_audio
from unifier.data.image_files import IMAGE_SUFFIXES
from unifier.data.inputs import AudioReader, ImageReader, InputReader, MixtureReader, SeriesReader, TextReader
from unifier.data.readers import parse_number
from unifier.datasets.boxes import read_boxed_picture, read_boxes
from unifier.datasets.class_folders import files_by_class
from unifier.datasets.nuclei import masked_pictures, read_mask, read_masked_picture
from unifier.datasets.parallel_text import ParallelText
from unifier.datasets.question_answering import AnswerKind, iterate_questions, read_question
from unifier.datasets.series_windows import labeled_windows
from unifier.datasets.token_labels import read_sentences
from unifier.files import check_output_folder, printable, write_json, write_text
from unifier.heads.classification import ClassificationHead, TaggingHead
from unifier.heads.ctc import CTCHead
from unifier.heads.detection import DetectionHead
from unifier.heads.forecasting import ForecastingHead
from unifier.heads.head import Head
from unifier.heads.question_answering import (
    CONTEXT,
    QuestionAnsweringHead,
    SpanTarget,
    context_token_seconds,
    timed_span,
)
from unifier.heads.regression import RegressionHead
from unifier.heads.score_intervals import score_intervals, wilson_interval
from unifier.heads.segmentation import SegmentationHead
from unifier.heads.sentence_selection import SentenceSelectionHead, SummaryTarget, split_sentences
from unifier.heads.spectrogram_decoder import SpectrogramDecoderHead
from unifier.heads.text_generation import TextGenerationHead
from unifier.heads.token_classification import TokenClassificationHead
from unifier.inference.inputs import Input, is_table, read_inputs
from unifier.inference.model import Model
from unifier.inference.predict import BadInputs, InputPredictions, predict_fn
from unifier.models.folder import ModelTask
from unifier.report.content_policy import add_policy
from unifier.report.estimates import display_name, format_value
from unifier.report.page import TEMPLATES
from unifier.report.plot_scores import MAX_CLASSES, plot_confusion
from unifier.report.plot_style import plot_style, render_svg
from unifier_tokenizers import Audio, InputError, Mixture

LABEL = "label"
"""Column of a table with the target of each input. Several tags or numbers in one cell are separated by ";"."""

HEADS_WITHOUT_CLASSES = TaggingHead, RegressionHead, CTCHead, TextGenerationHead
"""Heads whose targets cannot be the names of folders."""

TEST_SPLIT = "test"
"""The split that is evaluated if a folder or a table has several splits."""

UNDEFINED = "not defined for these examples"
"""A score in words, if the metric is not a number for the examples."""


@final
class Evaluation:
    """Predictions of a model for labeled data, and their scores."""

    def __init__(self, head: Head, predictions: Sequence[Any], targets: Sequence[Any]) -> None:
        """Store the predictions and the targets of the examples.

        Raises:
            InputError: No metric is defined for the targets.
        """
        head.check_targets(targets)
        self.head, self.predictions, self.targets = head, predictions, targets

    def scores(self) -> dict[str, dict[str, Any]]:
        """Return the score of each metric, with its 95 % interval over the examples if there is one."""
        intervals = score_intervals(self.head, self.predictions, self.targets)
        return {
            name: {"score": score, "lower_is_better": name in self.head.lower_is_better}
            | (intervals[name]._asdict() if name in intervals else {})
            for name, score in self.head.checked_metrics(self.predictions, self.targets).items()
        }

    def confusion(self) -> NDArray[np.int64] | None:
        """Return the counts (C, C) of each true class (row) and predicted class (column), or None for other heads."""
        if not isinstance(self.head, ClassificationHead):
            return None
        counts = np.zeros((len(self.head.labels),) * 2, np.int64)
        true = [int(self.head.encode(target)) for target in self.targets]
        np.add.at(counts, (true, [int(prediction.argmax()) for prediction in self.predictions]), 1)
        return counts

    def class_scores(self) -> list[dict[str, Any]]:
        """Return the scores of each class, type of entity or tag, in percent. Other heads have no classes."""
        if isinstance(self.head, TaggingHead):
            return self._tag_scores(self.head)
        if isinstance(self.head, TokenClassificationHead):
            counted = self.head.class_counts(self.predictions, self.targets)
            return [_score_class(label, *counts) for label, counts in counted.items()]
        if isinstance(self.head, SegmentationHead):
            shares = self.head.class_scores(self.predictions, self.targets)
            return [{"label": label, "iou": iou, "dice": dice} for label, (iou, dice) in shares.items()]
        if (counts := self.confusion()) is None or not isinstance(self.head, ClassificationHead):
            return []
        rows: list[dict[str, Any]] = []
        for c, label in enumerate(self.head.labels):
            right, true, predicted = (int(count) for count in (counts[c, c], counts[c].sum(), counts[:, c].sum()))
            row = _score_class(label, right, predicted, true)
            row["recall_low"], row["recall_high"] = wilson_interval(right, true)[:2] if true else (None, None)
            rows.append(row)
        return rows

    def _tag_scores(self, head: TaggingHead) -> list[dict[str, Any]]:
        from sklearn.metrics import average_precision_score, roc_auc_score

        expected = torch.stack([head.encode(target) for target in self.targets]).numpy()
        scores = torch.stack([*self.predictions]).numpy()
        rows: list[dict[str, Any]] = []
        for c, label in enumerate(head.labels):
            count = int(expected[:, c].sum())
            varies = 0 < count < len(expected)
            auc, precision = (
                float(metric(expected[:, c], scores[:, c])) if varies else None
                for metric in (roc_auc_score, average_precision_score)
            )
            rows.append({"label": label, "examples": count, "auc": auc, "average_precision": precision})
        return rows


def _score_class(label: str, right: int, predicted: int, true: int) -> dict[str, Any]:
    """Return precision, recall and F1 of a class in percent, given the numbers of its right and all answers."""
    return {
        "label": label,
        "examples": true,
        "predicted": predicted,
        "precision": 100 * right / predicted if predicted else None,
        "recall": 100 * right / true if true else None,
        "f1": 200 * right / (true + predicted) if true + predicted else None,
    }


def evaluate(
    model: Model,
    task: str,
    data: str,
    *,
    bad_inputs: BadInputs = "stop",
    languages: tuple[str, str] | None = None,
) -> tuple[Evaluation, dict[str, Any]]:
    """Score a model on labeled data, or on any inputs if the task's objective defines the targets.

    Args:
        model: The model.
        task: The name of the task.
        data: A folder with one folder per class, a table with a column `label`, or files of parallel text. A file with
            one word and its label per line, or a folder with the folders images and masks. A table of boxes (see
            `BoxTable`), or questions with answers (see `QuestionFile`). For questions about sounds, a table whose
            column `label` has the times of the answers in seconds, as 0.5-0.9 or 0.5-0.9;1.3-1.7. For a task with an
            objective: inputs as in `read_inputs`.
        bad_inputs: "skip" leaves out examples that cannot be read. "stop" raises an error.
        languages: The languages of the input and the target, for a translation memory.

    Returns:
        The evaluation, and the content of evaluation.json.

    Raises:
        InputError: The data cannot be read, a label is not one of the model's labels, or no example can be read.
    """
    part = model.tasks[task]
    predict = InputPredictions(predict_fn(model, task), bad_inputs)
    if part.objective is not None:
        predict = InputPredictions(partial(model.evaluations, task=task), bad_inputs)
        examples = read_inputs([data], part.reader)
    elif (seconds := context_token_seconds(part.tokenizer)) and isinstance(part.head, QuestionAnsweringHead):
        examples = _read_sound_questions(data, part, seconds)
    elif answers := _answer_kind(part.head, part.reader):
        examples = _read_questions(Path(data), answers)
    elif isinstance(part.head, TextGenerationHead | SentenceSelectionHead) and isinstance(part.reader, TextReader):
        examples = _read_pairs(data, languages)
    elif isinstance(part.head, SpectrogramDecoderHead):
        examples = _read_spoken_texts(data, part.reader)
    elif isinstance(part.head, SegmentationHead):
        examples = _read_masked_pictures(Path(data), part.head)
    elif isinstance(part.head, DetectionHead):
        examples = _read_boxed_pictures(Path(data), part.head)
    elif isinstance(part.head, TokenClassificationHead):
        examples = _read_labeled_words(data, part.head)
    elif isinstance(part.head, ForecastingHead) and isinstance(part.reader, SeriesReader):
        windows = labeled_windows(Path(data), part.reader, part.head.horizon)
        examples = (Input(name, name, past, {LABEL: future}) for name, past, future in windows)
    elif os.path.isdir(data):  # noqa: PTH112  Path.is_dir fails for long names.
        examples = _read_class_folders(Path(data), part.reader, part.head)
    else:
        examples = _read_labeled_table(data, part.reader, part.head)
    predictions, targets = list[Any](), list[Any]()
    for example, prediction in predict(examples):
        predictions.append(prediction)
        if part.objective is None:
            targets.append(parse_target(part.head, example))
        else:  # A model that removes noise writes its input.
            targets.append(example.value if isinstance(part.head, TextGenerationHead) else None)
    if not targets:
        raise InputError(f"{data} has no examples: at least one labeled example is needed")
    if isinstance(part.head, DetectionHead) and not any(len(target.labels) for target in targets):
        raise InputError(f"{data} has no boxes: at least one true object is needed")
    evaluation = Evaluation(part.head, predictions, targets)
    counts = evaluation.confusion()
    content: dict[str, Any] = {
        "model": model.name,
        "task": task,
        "data": data,
        "examples": len(targets),
        "skipped": predict.num_skipped,
        "dtype": model.dtype,
        "scores": evaluation.scores(),
        "signatures": part.head.signatures,
        "classes": evaluation.class_scores(),
    }
    if counts is not None:
        content["confusion"] = {"labels": getattr(part.head, "labels", ()), "counts": counts.tolist()}
    return evaluation, content


def write_evaluation(folder: Path, evaluation: Evaluation, content: Mapping[str, Any]) -> Path:
    """Write evaluation.json and evaluation.html, and return the path of the page.

    Args:
        folder: The folder, which is created.
        evaluation: The evaluation.
        content: The content of evaluation.json.
    """
    page = _render_page(evaluation, content)
    check_output_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "evaluation.json", content)
    write_text(folder / "evaluation.html", add_policy(printable(page, keep="\n\t")))
    return folder / "evaluation.html"


def parse_target(head: Head, example: Input) -> Any:
    """Return the target in an example's cell `label`. Raises InputError if the head does not know the target."""
    is_written_answer = isinstance(head, TextGenerationHead) and head.scores == "squad"
    if isinstance(head, ForecastingHead | QuestionAnsweringHead | DetectionHead) or is_written_answer:
        return example.cells[LABEL]
    cell: str = example.cells[LABEL]
    target: Any = cell.strip()
    if isinstance(head, SegmentationHead):
        target = read_mask(Path(cell), len(head.labels))
    elif isinstance(head, SpectrogramDecoderHead):
        target = read_audio(Path(cell))
    elif isinstance(head, TokenClassificationHead):
        target = cell.split()
    elif isinstance(head, SentenceSelectionHead):
        target = SummaryTarget(split_sentences(example.value), (cell,))
    elif isinstance(head, RegressionHead):
        target = [parse_number(number, f"{example.place}, {LABEL}") for number in cell.split(";")]
    elif isinstance(head, TaggingHead):
        target = [tag.strip() for tag in cell.split(";") if tag.strip()]
    try:
        head.encode(target)
    except InputError as error:
        raise InputError(f"{example.place}: {error}") from error
    return target


def describe_score(name: str, score: Mapping[str, Any]) -> str:
    """Return a score with its interval in words, such as "accuracy 97.2 (96.1 to 98.0)"."""
    if not isfinite(float(score["score"])):
        return f"{display_name(name)} {UNDEFINED}"
    interval = f" ({format_value(score['low'])} to {format_value(score['high'])})" if "low" in score else ""
    direction = ", lower is better" if score["lower_is_better"] else ""
    return f"{display_name(name)} {format_value(score['score'])}{interval}{direction}"


def _read_pairs(data: str, languages: tuple[str, str] | None) -> Iterator[Input]:
    """Return the pairs of a file with two columns, of two files separated by a comma, or of a translation memory."""
    source, comma, target = data.partition(",")
    is_pair = comma and not os.path.exists(data)  # noqa: PTH110  Path.exists fails for long names.
    pairs = ParallelText((source, target) if is_pair else data, languages=languages).cleaned_pairs

    def inputs() -> Iterator[Input]:
        for index in range(len(pairs)):
            place = pairs.example_id(index)
            try:
                text, target = pairs[index]
            except InputError as error:
                yield Input(place, place, error)
            else:
                yield Input(text, place, text, {LABEL: target})

    return inputs()


def _answer_kind(head: Head, reader: InputReader) -> AnswerKind | None:
    """Return the kind of target of a head that answers questions, or None for other heads and inputs."""
    if not isinstance(reader, MixtureReader) or not isinstance(reader.members.get(CONTEXT), TextReader):
        return None
    if isinstance(head, TextGenerationHead) and head.scores == "squad":
        return "write"
    return "span" if isinstance(head, QuestionAnsweringHead) else None


def _is_scored(split: str) -> bool:
    """Return True for the test split, and for data without splits."""
    return split in ("", TEST_SPLIT)


def _read_questions(path: Path, kind: AnswerKind) -> Iterator[Input]:
    """Return the questions of a file, or of its split "test". The cell `label` contains the target."""
    for row in iterate_questions(path):
        if isinstance(row, InputError):
            yield Input(str(path), str(path), row)
            continue
        if not _is_scored(row.split):
            continue
        try:
            value, target = read_question(kind, row)
        except InputError as error:
            value, target = error, None
        yield Input(row.question, row.place, value, {LABEL: target})


def _read_spoken_texts(data: str, reader: InputReader) -> Iterator[Input]:
    """Return the rows of a table with texts. The cell `label` contains the path of the recorded sound."""
    if not is_table(data):
        raise InputError(
            f"{data}: give a table (.csv or .tsv) with the columns text and {LABEL}, the path of the sound"
        )

    def inputs() -> Iterator[Input]:
        for each in read_inputs([data], reader, (LABEL,)):
            if isinstance(each, Input):
                yield each._replace(cells={LABEL: str(Path(data).parent / each.cells[LABEL])})

    return inputs()


def _read_sound_questions(data: str, task: ModelTask, token_seconds: float) -> Iterator[Input]:
    """Return the rows of a table of questions about sounds. The cell `label` contains the true spans."""
    _check_table(data)
    for each in read_inputs([data], task.reader, (LABEL,)):
        if not isinstance(each, Input) or each.cells.get("split", TEST_SPLIT) != TEST_SPLIT:
            continue
        try:
            times = _parse_times(each.cells[LABEL], f"{each.place}, {LABEL}")
            if not isinstance(each.value, InputError):
                value = task.reader.prepare(each.value)
                spans = _spans_of_times(times, value[CONTEXT], task, token_seconds, f"{each.place}, {LABEL}")
                each = each._replace(value=value, cells={**each.cells, LABEL: SpanTarget(spans)})
            yield each
        except InputError as error:
            yield each._replace(value=error)


def _spans_of_times(
    times: Sequence[tuple[float, float]], sound: Audio, task: ModelTask, token_seconds: float, place: str
) -> tuple[tuple[int, int], ...]:
    """Return the first and the last token of each time span of a sound.

    The end of the last token may be before or after the end of the sound, so an end up to one token later is accepted.

    Raises:
        InputError: A time is after the end of the sound.
    """
    seconds = sound.waveform.shape[-1] / sound.sample_rate
    for begin, end in times:
        if begin >= seconds or end > seconds + token_seconds:
            raise InputError(f"{place}: {begin:g}-{end:g} is after the end of the sound ({seconds:g} s)")
    last_token = cast("Mixture", task.tokenizer).members[CONTEXT].encode(sound).values.shape[-1] - 1
    spans = (timed_span(begin, end, token_seconds) for begin, end in times)
    return tuple((min(first, last_token), min(last, last_token)) for first, last in spans)


def _parse_times(cell: str, place: str) -> list[tuple[float, float]]:
    """Return the begin and the end of each time span of a cell, such as 0.5-0.9;1.3-1.7, in seconds."""
    spans: list[tuple[float, float]] = []
    for part in cell.split(";"):
        begin, _, end = part.partition("-")
        try:
            times = parse_number(begin.strip(), place), parse_number(end.strip(), place)
        except InputError:
            times = 0.0, 0.0
        if not 0 <= times[0] < times[1]:
            raise InputError(f"{place}: {cell!r} is no time in a sound; give begin and end in seconds, such as 0.5-0.9")
        spans.append(times)
    return spans


def _read_labeled_words(data: str, head: Head) -> Iterator[Input]:
    """Return the sentences of a file in the format of CoNLL. The cell `label` contains the labels of all words."""
    for sentence in read_sentences(Path(data)):
        place = f"{sentence.path}, line {sentence.line}"
        example = Input(" ".join(sentence.words), place, sentence.words, {LABEL: " ".join(sentence.labels)})
        parse_target(head, example)
        yield example


def _read_masked_pictures(folder: Path, head: Head) -> Iterator[Input]:
    """Return the pictures of a folder. The cell `label` contains the path of the mask."""
    for row in masked_pictures(folder):
        value: Path | InputError = row.picture
        try:
            head.encode(read_masked_picture(len(getattr(head, "labels", ())), {}, row).target)
        except InputError as error:
            value = error
        yield Input(str(row.picture), str(row.picture), value, {LABEL: str(row.mask)})


def _read_boxed_pictures(table: Path, head: DetectionHead) -> Iterator[Input]:
    """Return the pictures of a table of boxes, or of its split "test". The cell `label` contains the boxes."""
    if table.is_dir():
        raise InputError(f"{table} is a folder: give a table (.csv or .tsv) with one row per box")
    for row in read_boxes(table, table.parent):
        if not _is_scored(row.split):
            continue
        value: Path | InputError = row.path
        boxes = None
        try:
            boxes = read_boxed_picture(head.labels, {}, row).target
            head.encode(boxes)
        except InputError as error:
            value = error
        yield Input(str(row.path), str(row.path), value, {LABEL: boxes})


def _read_class_folders(folder: Path, reader: InputReader, head: Head) -> Iterator[Input]:
    """Return the files of class folders, or of the split "test" if the folder has splits."""
    if not isinstance(reader, ImageReader | AudioReader) or isinstance(head, HEADS_WITHOUT_CLASSES):
        raise InputError(f"{folder} is a folder: give a table (.csv or .tsv) with a column {LABEL}")
    if isinstance(reader, ImageReader):
        splits = files_by_class(folder, IMAGE_SUFFIXES, "pictures", "cat/1.png", allow_outside=True)
    else:
        splits = files_by_class(folder, AUDIO_SUFFIXES, "sounds", "dog/1.wav", allow_outside=True)
    if len(splits) > 1 and TEST_SPLIT not in splits:
        raise InputError(f"{folder} has the splits {', '.join(splits)}: give the folder of one split")
    files = splits[TEST_SPLIT] if len(splits) > 1 else next(iter(splits.values()))
    inputs = [Input(str(file.path), str(file.path), file.path, {LABEL: file.target}) for file in files]
    for each in {each.cells[LABEL]: each for each in inputs}.values():
        parse_target(head, each)
    return iter(inputs)


def _read_labeled_table(data: str, reader: InputReader, head: Head) -> Iterator[Input]:
    """Return the rows of a table, or the rows of the split "test" if the table has a column `split`."""
    _check_table(data)

    def inputs() -> Iterator[Input]:
        for each in read_inputs([data], reader, (LABEL,)):
            if isinstance(each, Input) and each.cells.get("split", TEST_SPLIT) == TEST_SPLIT:
                parse_target(head, each)
                yield each

    return inputs()


def _check_table(data: str) -> None:
    if os.path.exists(data) and not is_table(data):  # noqa: PTH110  Path.exists fails for long names.
        raise InputError(f"{data}: give a table (.csv or .tsv) with a column {LABEL}, or a folder with class folders")


def _render_page(evaluation: Evaluation, content: Mapping[str, Any]) -> str:
    counts, figure = evaluation.confusion(), ""
    if counts is not None and len(counts) <= MAX_CLASSES:
        with plot_style():
            drawing = plot_confusion(content["task"], content["confusion"]["labels"], counts)
            svg = render_svg(drawing, f"confusion matrix, {content['task']}")
        figure = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    scores = [
        {
            "metric": display_name(name) + (" (lower is better)" if score["lower_is_better"] else ""),
            "score": format_value(score["score"]) if isfinite(float(score["score"])) else UNDEFINED,
            "95 % interval": f"{format_value(score['low'])} to {format_value(score['high'])}" if "low" in score else "",
            "method": score.get("method", ""),
        }
        for name, score in content["scores"].items()
    ]
    classes = [{name.replace("_", " "): _format_cell(cell) for name, cell in row.items()} for row in content["classes"]]
    skipped = f", {content['skipped']:,} skipped" if content["skipped"] else ""
    return TEMPLATES.get_template("evaluation.html").render(
        model=content["model"],
        task=content["task"],
        data=Path(content["data"]).name,
        answer=describe_score(*next(iter(content["scores"].items()))),
        size=f"{content['examples']:,} examples{skipped}, {content['dtype']}",
        scores=scores,
        classes=classes,
        figure=figure,
    )


def _format_cell(cell: Any) -> str:
    if cell is None:
        return "–"
    return format_value(cell) if isinstance(cell, float) else str(cell)
